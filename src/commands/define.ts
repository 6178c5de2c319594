import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { GenericSchema, InferOutput } from "valibot";
import type { CommandAnswer, Effect } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import type { Actor } from "./actor.ts";

/** A command as every surface sees it. */
export interface Registered {
  readonly name: string;
  readonly effect: Effect;
  readonly grant: string;
  readonly args: StandardSchemaV1;
  readonly help: string;
  // biome-ignore lint/suspicious/noExplicitAny: the arguments are what `args` answers
  run(args: any, invocation: Invocation, actor: Actor): Promise<CommandAnswer>;
}

/** Declares one of the runtime's own commands, its arguments typed by their schema. */
export function define<Schema extends GenericSchema>(
  head: { name: string; effect: Effect; grant: string; help: string },
  args: Schema,
  run: (args: InferOutput<Schema>, invocation: Invocation, actor: Actor) => Promise<CommandAnswer>,
): Registered {
  return { ...head, args, run };
}
