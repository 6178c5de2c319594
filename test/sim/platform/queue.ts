import { SECOND } from "../../../src/core/time.ts";
import type { Agenda } from "./agenda.ts";
import { ASSUMED, PLATFORM } from "./limits.ts";

/** A step of a chain. */
export interface Pump {
  total: number;
  attempts: number;
}

/** Messages alike that were sent together, and the rows they refer to. */
export interface Group<Topic> {
  readonly topic: Topic;
  /** Null: item messages. Else a pump message, with what its chain has sent and how often it has been delivered. */
  readonly pump: Pump | null;
  readonly itemsPerMessage: number;
  readonly alone: boolean;
  readonly due: number;
  readonly leaseUntil: number;
  /** Messages still in the queue, and how many of their rows are still leased to them: others were claimed anew. */
  messages: number;
  rows: number;
}

/** What a consumer gets. */
export interface Part<Topic> {
  group: Group<Topic>;
  messages: number;
  rows: number;
}

/** Counts of one second after another: a limit holds in each. */
class Seconds {
  #second = -1;
  #count = 0;
  most = 0;

  room(now: number, limit: number): number {
    return this.#secondOf(now) === this.#second ? limit - this.#count : limit;
  }

  add(now: number, count: number): void {
    const second = this.#secondOf(now);
    if (second !== this.#second) {
      this.#second = second;
      this.#count = 0;
    }
    this.#count += count;
    this.most = Math.max(this.most, this.#count);
  }

  #secondOf = (now: number) => Math.floor(now / SECOND);
}

/**
 * One queue and its consumer. A send above the limit of its second is refused as a whole. A batch is up to 100 of the
 * messages that are there, first come first served. Each invocation that ends while messages wait makes room for one
 * more, up to 250: the platform decides at a batch's end, and how fast it grows is assumed.
 */
export class SimQueue<Topic> {
  readonly #agenda: Agenda;
  readonly #consume: (batch: Part<Topic>[], end: () => void) => void;
  readonly #waiting: Group<Topic>[] = [];
  #first = 0;
  #allowed = 1;
  #running = 0;
  #woken = -1;
  readonly #in = new Seconds();
  readonly #out = new Seconds();
  /** Messages that are there to be delivered. */
  backlog = 0;
  sent = 0;
  refused = 0;
  batches = 0;
  mostConsumers = 0;
  /** ms of all invocations together. */
  consumerMs = 0;

  constructor(agenda: Agenda, consume: (batch: Part<Topic>[], end: () => void) => void) {
    this.#agenda = agenda;
    this.#consume = consume;
  }

  get mostASecond(): { in: number; out: number } {
    return { in: this.#in.most, out: this.#out.most };
  }

  /** Takes messages, or refuses all of them. */
  take(count: number): boolean {
    const { now } = this.#agenda;
    if (count > this.#in.room(now, PLATFORM.queueMessagesASecond)) {
      this.refused += 1;
      return false;
    }
    this.#in.add(now, count);
    this.sent += count;
    return true;
  }

  /** Makes messages that were taken visible after their delay, ms. */
  put(group: Group<Topic>, delayMs: number): void {
    this.#agenda.at(this.#agenda.now + delayMs + ASSUMED.deliverMs, () => {
      this.#waiting.push(group);
      this.backlog += group.messages;
      this.#deliver();
    });
  }

  #deliver(): void {
    while (this.#running < this.#allowed && this.backlog > 0) {
      const { now } = this.#agenda;
      const room = Math.min(PLATFORM.batch, this.#out.room(now, PLATFORM.queueMessagesASecond));
      if (room === 0) {
        this.#wakeNextSecond();
        return;
      }
      const batch = this.#next(room);
      const messages = batch.reduce((sum, part) => sum + part.messages, 0);
      this.#out.add(now, messages);
      this.backlog -= messages;
      this.batches += 1;
      this.#running += 1;
      this.mostConsumers = Math.max(this.mostConsumers, this.#running);
      this.#consume(batch, () => {
        this.#running -= 1;
        this.consumerMs += this.#agenda.now - now;
        if (this.backlog > 0) this.#allowed = Math.min(PLATFORM.consumers, this.#allowed + 1);
        else this.#allowed = Math.max(1, this.#running);
        this.#deliver();
      });
    }
  }

  #wakeNextSecond(): void {
    const next = (Math.floor(this.#agenda.now / SECOND) + 1) * SECOND;
    if (this.#woken === next) return;
    this.#woken = next;
    this.#agenda.at(next, () => this.#deliver());
  }

  #next(most: number): Part<Topic>[] {
    const batch: Part<Topic>[] = [];
    for (let room = most; room > 0 && this.#first < this.#waiting.length; ) {
      const group = this.#waiting[this.#first] as Group<Topic>;
      const messages = Math.min(room, group.messages);
      const rows = Math.min(group.rows, messages * group.itemsPerMessage);
      batch.push({ group, messages, rows });
      group.messages -= messages;
      group.rows -= rows;
      room -= messages;
      if (group.messages === 0) this.#first += 1;
    }
    if (this.#first > 1_000) {
      this.#waiting.splice(0, this.#first);
      this.#first = 0;
    }
    return batch;
  }
}
