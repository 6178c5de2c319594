import type { Budget } from "../core/budget.ts";
import type { Ports } from "../core/ports.ts";
import type { Outbox } from "./outbox.ts";

/** What a module's code gets. One is made for each tick share, request, command and batch. */
export interface Context<Settings = unknown> {
  /** The module whose code this is. */
  readonly module: string;
  /** The instant this invocation counts from, ms: taken once. */
  readonly now: number;
  /** The wall clock, ms: for measuring, and for what the other side will compare with its own clock. */
  clock(): number;
  /** What may be spent. Unbounded outside `scheduled`. */
  readonly budget: Budget;
  readonly outbox: Outbox;
  /** D1, metered: the tick record and the budget see what it costs. */
  readonly db: D1Database;
  /** `fetch`, metered; inside a handler it is aborted at the deadline. */
  readonly fetch: Ports["fetch"];
  /** Writes one structured line. `event` is a fixed word; never put a secret in a field. */
  log(event: string, fields?: Record<string, unknown>): void;
  /** Cryptographically random bytes. */
  bytes(length: number): Uint8Array;
  /** A number in [0, 1). */
  random(): number;
  /** What the module's `settings` schema read from the environment. */
  readonly settings: Settings;
}

/** The context of one delivery. */
export interface ItemContext<Settings = unknown> extends Context<Settings> {
  /** Aborted at the handler's deadline; `fetch` carries it already. */
  readonly signal: AbortSignal;
  /** When the delivery is settled as failed, ms by {@link Context.clock}. */
  readonly deadline: number;
}

/** The context of one command. Under a `read` command, `db` and `outbox` refuse to write. */
export interface CommandContext<Settings = unknown> extends Context<Settings> {
  /** Who acts: `http:<subject>` or `schedule:<name>`. */
  readonly actor: string;
  /** What `in <scope>:` said, for a command that knows scopes; null = none. */
  readonly scope: string | null;
}
