import { DB_DEADLINE_MS } from "../../../src/db/client.ts";
import type { Agenda } from "./agenda.ts";
import { ASSUMED } from "./limits.ts";

/**
 * One D1 database: one writer, which serves calls in the order they come. In a stall it serves nobody. A call that would
 * begin later than the client waits is given up, and taken not to have run.
 */
export class Database {
  readonly #agenda: Agenda;
  readonly #stalls: readonly { from: number; until: number }[];
  readonly #slower: number;
  #free = 0;
  /** ms that it was busy. */
  busy = 0;
  failed = 0;
  /** Longest that a call waited for its turn, ms. */
  longestWait = 0;

  constructor(agenda: Agenda, stalls: readonly { from: number; until: number }[], slower: number) {
    this.#agenda = agenda;
    this.#stalls = stalls;
    this.#slower = slower;
  }

  /** @param ms how long its statements keep D1 busy, as measured */
  call(ms: number, done: () => void, failed: () => void): void {
    const { now } = this.#agenda;
    const service = ms * this.#slower;
    let start = Math.max(now, this.#free);
    for (const { from, until } of this.#stalls) {
      if (start < until && start + service > from) start = until;
    }
    if (start - now > DB_DEADLINE_MS) {
      this.failed += 1;
      this.#agenda.at(now + DB_DEADLINE_MS, failed);
      return;
    }
    this.longestWait = Math.max(this.longestWait, start - now);
    this.#free = start + service;
    this.busy += service;
    this.#agenda.at(this.#free + ASSUMED.roundTripMs, done);
  }
}
