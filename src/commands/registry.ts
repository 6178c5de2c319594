import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { CommandAnswer, Effect, Module } from "../outbox/module.ts";
import { contextFor, type Invocation } from "../outbox/runtime.ts";
import type { Actor } from "./actor.ts";
import { itemCommands } from "./items.ts";

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

/** All commands by name: the runtime's own, then each module's. No surface has a rule of its own. */
export function createRegistry(modules: readonly Module[]): ReadonlyMap<string, Registered> {
  const all: Registered[] = [
    ...itemCommands,
    ...modules.flatMap((module) =>
      module.commands.map(
        ({ handle, ...command }): Registered => ({
          ...command,
          run: (args, invocation) => handle(args, contextFor(invocation, module.name)),
        }),
      ),
    ),
  ];
  return new Map(all.map((command) => [command.name, command]));
}
