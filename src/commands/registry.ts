import type { Job } from "../jobs/catalog.ts";
import type { AskStorefront } from "../jobs/quarantine.ts";
import type { JobsAtWork } from "../jobs/selection.ts";
import type { Module } from "../outbox/module.ts";
import { contextFor } from "../outbox/runtime.ts";
import type { Registered } from "./define.ts";
import { itemCommands } from "./items.ts";
import { jobCommands } from "./jobs.ts";
import { quarantineCommands } from "./quarantine.ts";

/** All commands by name: the runtime's own, then each module's. No surface has a rule of its own. */
export function createRegistry(
  modules: readonly Module[],
  catalog: readonly Job[],
  jobs: JobsAtWork,
  asks: ReadonlyMap<string, AskStorefront>,
  others: readonly Registered[] = [],
): ReadonlyMap<string, Registered> {
  const all: Registered[] = [
    ...others,
    ...itemCommands,
    ...jobCommands(catalog, jobs),
    ...quarantineCommands(asks),
    ...modules.flatMap((module) =>
      module.commands.map(
        ({ handle, ...command }): Registered => ({
          positional: [],
          scoped: false,
          secret: false,
          personOnly: false,
          ...command,
          run: (args, invocation, actor, scope = null) =>
            handle(args, { ...contextFor(invocation, module.name), actor: actor.id, scope }),
        }),
      ),
    ),
  ];
  return new Map(all.map((command) => [command.name, command]));
}
