import type { Channels } from "./channels.ts";
import type { Token } from "./actor.ts";
import type { Registered } from "./define.ts";
import type { Router } from "./router.ts";

/** What a deployment dispatches with. One for the life of the isolate. */
export interface Dispatcher {
  /** Asked late: the registry holds the commands that dispatch, too. */
  registry(): ReadonlyMap<string, Registered>;
  /** Who the people are, as the settings say now. */
  readonly tokens: readonly Token[];
  /** Finds a command in text that is no command's own form; null = such text is `no_route`. */
  readonly router: Router | null;
  /** The Workflow that runs are instances of; null = not bound, and nothing is dispatched. */
  readonly runs: Workflow | null;
  readonly channels: Channels;
  /** The channel that is told what needs a person; null = none is. */
  readonly alertsTo: string | null;
}
