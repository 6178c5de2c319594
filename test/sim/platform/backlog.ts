import type { Topic } from "../../../src/outbox/topic.ts";
import type { Group } from "./queue.ts";

/** Rows alike: due at the same instant, at the same place of the table. */
export interface Rows {
  /** Ready: when they are due. Leased or running: when the lease ends. */
  at: number;
  due: number;
  count: number;
}

/** Rows that a claim took. */
export interface Claimed {
  due: number;
  count: number;
  lapsed: boolean;
}

/** The rows of one topic, counted by lane. A lane is in the order of `at`, as the table's key is. */
export class Backlog {
  readonly topic: Topic;
  readonly #ready: Rows[] = [];
  readonly #leased: Group<unknown>[] = [];
  readonly #running: Rows[] = [];
  #firstReady = 0;
  #firstLeased = 0;
  waiting = 0;

  constructor(topic: Topic) {
    this.topic = topic;
  }

  born(due: number, count: number): void {
    this.#ready.push({ at: due, due, count });
    this.waiting += count;
    let index = this.#ready.length - 1;
    // Almost always in order: only what is given back is older than the last.
    while (index > this.#firstReady && (this.#ready[index - 1] as Rows).at > due) {
      const before = this.#ready[index - 1] as Rows;
      this.#ready[index - 1] = this.#ready[index] as Rows;
      this.#ready[index] = before;
      index -= 1;
    }
  }

  /** Rows that went with messages: they can be claimed anew when their lease has ended and nobody has begun them. */
  leased(group: Group<unknown>): void {
    this.#leased.push(group);
  }

  /** Rows whose run was not settled. */
  unsettled(leaseUntil: number, due: number, count: number): void {
    if (count === 0) return;
    this.#running.push({ at: leaseUntil, due, count });
    this.#running.sort((a, b) => a.at - b.at);
    this.waiting += count;
  }

  /** The first row of each lane, as the tick's own statement reads it. */
  firsts(): { ready: number | null; leased: number | null; running: number | null } {
    this.#skipEmpty();
    return {
      ready: this.#ready[this.#firstReady]?.at ?? null,
      leased: this.#leased[this.#firstLeased]?.leaseUntil ?? null,
      running: this.#running[0]?.at ?? null,
    };
  }

  /** The oldest due instant among what waits in the table; null = nothing does. */
  oldest(): number | null {
    const all = [this.#ready[this.#firstReady]?.due, this.#running[0]?.due].filter((due) => due !== undefined);
    return all.length === 0 ? null : Math.min(...all);
  }

  /** As the claim does: ready rows due by `ahead`, leased and running ones that lapsed by `now`, oldest first. */
  claim(now: number, ahead: number, limit: number): Claimed[] {
    const claimed: Claimed[] = [];
    for (let room = limit; room > 0; ) {
      const { ready, leased, running } = this.firsts();
      const places = [
        ready !== null && ready <= ahead ? ready : Number.POSITIVE_INFINITY,
        leased !== null && leased <= now ? leased : Number.POSITIVE_INFINITY,
        running !== null && running <= now ? running : Number.POSITIVE_INFINITY,
      ];
      const first = Math.min(...places);
      if (first === Number.POSITIVE_INFINITY) break;
      const lane = places.indexOf(first);
      const taken = lane === 0 ? this.#takeReady(room) : lane === 1 ? this.#takeLeased(room) : this.#takeRunning(room);
      claimed.push(taken);
      room -= taken.count;
    }
    return claimed;
  }

  #takeReady(most: number): Claimed {
    const rows = this.#ready[this.#firstReady] as Rows;
    const count = Math.min(most, rows.count);
    rows.count -= count;
    this.waiting -= count;
    this.#skipEmpty();
    return { due: rows.due, count, lapsed: false };
  }

  #takeLeased(most: number): Claimed {
    const group = this.#leased[this.#firstLeased] as Group<unknown>;
    const count = Math.min(most, group.rows);
    group.rows -= count;
    return { due: group.due, count, lapsed: true };
  }

  #takeRunning(most: number): Claimed {
    const rows = this.#running[0] as Rows;
    const count = Math.min(most, rows.count);
    rows.count -= count;
    this.waiting -= count;
    if (rows.count === 0) this.#running.shift();
    return { due: rows.due, count, lapsed: true };
  }

  #skipEmpty(): void {
    while (this.#ready[this.#firstReady]?.count === 0) this.#firstReady += 1;
    while (this.#leased[this.#firstLeased]?.rows === 0) this.#firstLeased += 1;
    if (this.#firstReady > 10_000) {
      this.#ready.splice(0, this.#firstReady);
      this.#firstReady = 0;
    }
    if (this.#firstLeased > 10_000) {
      this.#leased.splice(0, this.#firstLeased);
      this.#firstLeased = 0;
    }
  }
}
