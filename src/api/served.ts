import type { Context, Hono } from "hono";
import type { Actor, Token } from "../commands/actor.ts";
import type { Registered } from "../commands/define.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Selection } from "../jobs/selection.ts";
import type { Problem } from "../outbox/configure.ts";
import type { Runtime } from "../outbox/runtime.ts";
import type { Access } from "./access.ts";

/** What the API serves: a runtime, or why there is none. */
export interface Served {
  runtime: Runtime | null;
  problems: readonly Problem[];
  tokens: readonly Token[] | null;
  /** Null: not set up. */
  access: Access | null;
  /** Who is signed in on the panel; null = there is no panel. */
  session: ((c: Context) => Promise<Actor | null>) | null;
  registry: ReadonlyMap<string, Registered>;
  /** All jobs of the code, and those that are on. */
  catalog: readonly Job[];
  jobs: Selection;
  /** The Workflow that runs are instances of; null = not bound. */
  runs: Workflow | null;
  /** What another side signs, instead of bearing a token; null = nothing is. */
  events: Hono | null;
  /** Files beside the Worker's bundle; null = it has none. */
  assets: Fetcher | null;
  /** Fires the tick that the cron fires. */
  tick(runtime: Runtime): Promise<object>;
  clock(): number;
}
