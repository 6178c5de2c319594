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
  /** Arguments that a text may give without their names, in this order. */
  readonly positional: readonly string[];
  /** Knows scopes: `in <scope>:` before its text. */
  readonly scoped: boolean;
  /** Its answer holds a secret, which is shown once and kept nowhere: it cannot be dispatched as text. */
  readonly secret: boolean;
  /** A person's business alone: a schedule that dispatches it is refused `schedule_fire`. */
  readonly personOnly: boolean;
  /** @param scope what `in <scope>:` said; null = none */
  // biome-ignore lint/suspicious/noExplicitAny: the arguments are what `args` answers
  run(args: any, invocation: Invocation, actor: Actor, scope?: string | null): Promise<CommandAnswer>;
}

/** What a command says about itself; what is absent is empty or false. */
export interface Head {
  name: string;
  effect: Effect;
  grant: string;
  help: string;
  positional?: readonly string[];
  scoped?: boolean;
  secret?: boolean;
  personOnly?: boolean;
}

/** Declares one of the runtime's own commands, its arguments typed by their schema. */
export function define<Schema extends GenericSchema>(
  head: Head,
  args: Schema,
  run: (
    args: InferOutput<Schema>,
    invocation: Invocation,
    actor: Actor,
    scope?: string | null,
  ) => Promise<CommandAnswer>,
): Registered {
  return { positional: [], scoped: false, secret: false, personOnly: false, ...head, args, run };
}
