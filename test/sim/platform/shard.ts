import { createBudget, DEFAULT_LIMITS } from "../../../src/core/budget.ts";
import { MINUTE, SECOND } from "../../../src/core/time.ts";
import { retryAfter } from "../../../src/outbox/consume.ts";
import { AHEAD_MS, CHAIN_ITEMS, CHAIN_MS, goesOn, pageRows, pumpRetryAfter } from "../../../src/outbox/pump.ts";
import type { Topic } from "../../../src/outbox/topic.ts";
import { dueTopics } from "../../../src/tick/due.ts";
import { chooseTopics, tickPage } from "../../../src/tick/sends.ts";
import type { Random } from "../random.ts";
import type { Agenda } from "./agenda.ts";
import { Backlog, type Claimed } from "./backlog.ts";
import type { Database } from "./database.ts";
import { ASSUMED, PLATFORM, serviceMs } from "./limits.ts";
import { calls, type Piece } from "./packing.ts";
import type { Group, Pump, SimQueue } from "./queue.ts";
import { settled, type Tally } from "./tally.ts";

export interface SimTopic {
  shard: Shard;
  topic: Topic;
  backlog: Backlog;
  queue: SimQueue<SimTopic>;
  /** The row of `pumps`. */
  chain: { until: number; claimed: number } | null;
}

/** Rows of one statement that enqueues. */
const BIRTHS_A_STATEMENT = 1_000;
/** Sends under way at once, as `src/outbox/send.ts` has it. */
const CONCURRENT_SENDS = 5;

/** One database with its topics, its ticks and its consumers: the real decisions over counted rows. */
export class Shard {
  readonly database: Database;
  readonly topics: SimTopic[] = [];
  readonly #agenda: Agenda;
  readonly #random: Random;
  readonly #tally: Tally;

  constructor(of: { agenda: Agenda; random: Random; tally: Tally; database: Database }) {
    this.database = of.database;
    this.#agenda = of.agenda;
    this.#random = of.random;
    this.#tally = of.tally;
  }

  add(topic: Topic, queue: SimQueue<SimTopic>): void {
    this.topics.push({ shard: this, topic, backlog: new Backlog(topic), queue, chain: null });
  }

  /** Rows that are enqueued second by second, dealt out to the topics in turn, each due so long after its birth. */
  rowsBorn(aSecond: number, until: number, ahead: number): void {
    let owed = 0;
    let turn = 0;
    const second = (at: number) => {
      owed += aSecond;
      const each = Math.floor(owed / this.topics.length);
      owed -= each * this.topics.length;
      for (let nth = 0; nth < this.topics.length; nth += 1) {
        const one = this.topics[turn++ % this.topics.length] as SimTopic;
        if (each > 0) this.#bear(one, at + ahead, each);
      }
      if (at + SECOND < until) this.#agenda.at(at + SECOND, () => second(at + SECOND));
    };
    this.#agenda.at(0, () => second(0));
  }

  #bear(one: SimTopic, due: number, count: number): void {
    const statements = Math.ceil(count / BIRTHS_A_STATEMENT);
    const retry = () => this.#agenda.at(this.#agenda.now + SECOND, () => this.#bear(one, due, count));
    const done = () => {
      this.#tally.born += count;
      this.#tally.rowsWritten += count;
      one.backlog.born(due, count);
    };
    this.database.call(statements * serviceMs("insert", count / statements), done, retry);
  }

  tickEachMinute(end: number, lastDue: number): void {
    const minute = (at: number) => {
      const waiting = this.topics.reduce((sum, { backlog }) => sum + backlog.waiting, 0);
      if (at >= lastDue && at < lastDue + MINUTE)
        this.#tally.waitingAtLast = (this.#tally.waitingAtLast ?? 0) + waiting;
      if (at > lastDue && this.#tally.settled === this.#tally.born) return;
      // The platform's cron comes within its minute, not at its first instant.
      this.#agenda.at(at + this.#random.whole(0, 2_000), () => this.#tick());
      if (at + MINUTE < end) this.#agenda.at(at + MINUTE, () => minute(at + MINUTE));
    };
    this.#agenda.at(0, () => minute(0));
  }

  #tick(): void {
    const { now } = this.#agenda;
    this.#tally.ticks += 1;
    this.#tally.rowsWritten += 3;
    const failed = () => {
      this.#tally.ticksFailed += 1;
    };
    for (const { backlog } of this.topics) {
      const oldest = backlog.oldest();
      if (oldest !== null) this.#tally.oldestMs = Math.max(this.#tally.oldestMs, now - oldest);
    }
    const opened = () => {
      const names = new Map(this.topics.map((one) => [one.topic.name, one]));
      const runtime = {
        topics: new Map(this.topics.map(({ topic }) => [topic.name, topic])),
        queue: () => ({}) as unknown as Queue,
      };
      const rows = this.topics.map(({ topic, backlog, chain }) => ({
        topic: topic.name,
        path: "queue",
        paused: 0,
        ...backlog.firsts(),
        until: chain?.until ?? null,
        pumped: chain?.claimed ?? null,
      }));
      const chosen = chooseTopics([...names.keys()], dueTopics(runtime, rows, now), now);
      if (chosen.length > 0)
        this.#claimDue(
          chosen.map(({ name }) => names.get(name) as SimTopic),
          now,
        );
    };
    this.database.call(ASSUMED.tickMs, opened, failed);
  }

  #claimDue(topics: readonly SimTopic[], now: number): void {
    const page = tickPage(topics.length);
    const claims = topics.map((one) => one.backlog.claim(now, now + AHEAD_MS, page));
    const counts = claims.map(rowsOf);
    const done = () => {
      const accepted = topics.map((one, index) => {
        const claimed = claims[index] ?? [];
        if (claimed.length === 0) return true;
        this.#tally.rowsWritten += counts[index] ?? 0;
        const { unsent } = this.send(one, claimed, now);
        if (unsent.length > 0) this.#drainOnce(one, unsent);
        return unsent.length === 0;
      });
      const full = topics.filter((_, index) => accepted[index] === true && (counts[index] ?? 0) >= page);
      this.#agenda.at(this.#agenda.now + ASSUMED.sendMs, () => this.#startChains(full, now));
    };
    const failed = () => {
      for (const [index, one] of topics.entries()) this.#giveBack(one, claims[index] ?? []);
    };
    this.database.call(
      counts.reduce((sum, count) => sum + serviceMs("claim", count), 0),
      done,
      failed,
    );
  }

  /** What the queue refused of a tick: some of it is drained this once, as the default limits let it. */
  #drainOnce(one: SimTopic, unsent: readonly Claimed[]): void {
    const budget = createBudget({ deadline: null, ...DEFAULT_LIMITS });
    budget.trySpend({ queries: 12, subrequests: 8 });
    const most = budget.affords(one.topic.options.cost) ?? 0;
    const rows = one.backlog.claim(this.#agenda.now, this.#agenda.now, Math.min(most, rowsOf(unsent)));
    for (const { due, count } of rows) settled(this.#tally, due, count, this.#agenda.now);
    this.#tally.rowsWritten += 2 * rowsOf(rows);
  }

  #startChains(topics: readonly SimTopic[], now: number): void {
    const free = topics.filter(({ chain }) => chain === null || chain.until <= now);
    if (free.length === 0) return;
    const done = () => {
      for (const one of free) {
        one.chain = { until: now + CHAIN_MS, claimed: 0 };
        if (!this.#sendPump(one, 0)) this.#endChain(one, "the queue refused");
      }
    };
    this.database.call(serviceMs("insert", free.length), done, () => {});
  }

  #sendPump(one: SimTopic, total: number): boolean {
    if (!one.queue.take(1)) return false;
    this.#putPump(one, { total, attempts: 1 }, 0);
    return true;
  }

  #putPump(one: SimTopic, pump: Pump, delayMs: number): void {
    const group = { topic: one, pump, itemsPerMessage: 1, alone: false, due: 0, leaseUntil: 0, messages: 1, rows: 0 };
    one.queue.put(group, delayMs);
  }

  /** One step of a chain, as `stepPump` takes it. */
  step(one: SimTopic, pump: Pump, end: () => void): void {
    const { now } = this.#agenda;
    const page = pageRows(one.topic);
    const living = one.chain !== null && one.chain.until > now;
    const claimed = living ? one.backlog.claim(now, now + AHEAD_MS, page) : [];
    const count = rowsOf(claimed);
    const done = () => {
      if (!living) {
        this.ended("its time was up");
        end();
        return;
      }
      this.#tally.steps += 1;
      this.#tally.rowsWritten += count + 1;
      const { unsent, calls } = this.send(one, claimed, now);
      const refused = rowsOf(unsent);
      const total = pump.total + count - refused;
      if (one.chain !== null) one.chain.claimed = total;
      const sending = Math.ceil(calls / CONCURRENT_SENDS) * ASSUMED.sendMs;
      this.#agenda.at(this.#agenda.now + sending, () => {
        const { backlog } = one.queue;
        const goes = goesOn({ page, claimed: count, unsent: refused, total, backlog });
        if (goes === "ended") this.#endChain(one, whyEnded(count < page, total));
        else if (goes === "later" || !this.#sendPump(one, total)) this.#putBack(one, { ...pump, total });
        end();
      });
    };
    const failed = () => {
      this.#giveBack(one, claimed);
      this.#retry(one, pump, retryAfter(this.#random.next()));
      end();
    };
    this.database.call(serviceMs("claim", count) + serviceMs("insert", 1), done, failed);
  }

  #putBack(one: SimTopic, pump: Pump): void {
    this.#tally.rowsWritten += 1;
    const again = () => this.#retry(one, pump, pumpRetryAfter(pump.attempts));
    this.database.call(serviceMs("insert", 1), again, () => this.ended("D1 did not answer"));
  }

  /** The queue's own retry, which it does not refuse, as often as it delivers a message. */
  #retry(one: SimTopic, pump: Pump, seconds: number): void {
    if (pump.attempts >= PLATFORM.deliveries) this.ended("its message was given up");
    else this.#putPump(one, { ...pump, attempts: pump.attempts + 1 }, seconds * SECOND);
  }

  #endChain(one: SimTopic, why: string): void {
    this.ended(why);
    if (one.chain !== null) one.chain.until = Math.min(one.chain.until, this.#agenda.now);
  }

  ended(why: string): void {
    this.#tally.ended.set(why, (this.#tally.ended.get(why) ?? 0) + 1);
  }

  /** Sends claimed rows, in calls that the real code makes. After a refusal nothing more is sent, and it is given back. */
  send(one: SimTopic, claimed: readonly Claimed[], now: number): { unsent: Claimed[]; calls: number } {
    const made = calls(one.topic, claimed);
    const unsent: Claimed[] = [];
    let refused = false;
    for (const batch of made) {
      const messages = batch.reduce((sum, piece) => sum + piece.messages, 0);
      refused ||= !one.queue.take(messages);
      if (refused) unsent.push(...batch.map(({ due, rows, alone }) => ({ due, count: rows, lapsed: alone })));
      else for (const piece of batch) this.#sent(one, piece, now);
    }
    if (unsent.length > 0) {
      const count = rowsOf(unsent);
      this.#tally.rowsWritten += count;
      this.database.call(
        serviceMs("move", count),
        () => this.#giveBack(one, unsent),
        () => this.#giveBack(one, unsent),
      );
    }
    return { unsent, calls: made.length };
  }

  #sent(one: SimTopic, { due, alone, messages, rows }: Piece, now: number): void {
    const group: Group<SimTopic> = {
      topic: one,
      pump: null,
      itemsPerMessage: alone ? 1 : one.topic.options.itemsPerMessage,
      alone,
      due,
      leaseUntil: Math.max(now, due) + one.topic.options.leaseMs,
      messages,
      rows,
    };
    one.backlog.leased(group);
    one.queue.put(group, Math.max(0, Math.ceil((due - now) / SECOND)) * SECOND);
  }

  #giveBack(one: SimTopic, claimed: readonly Claimed[]): void {
    for (const { due, count } of claimed) one.backlog.born(due, count);
  }
}

function rowsOf(claimed: readonly Claimed[]): number {
  return claimed.reduce((sum, { count }) => sum + count, 0);
}

function whyEnded(short: boolean, total: number): string {
  if (short) return "no full page was left";
  return total >= CHAIN_ITEMS ? "its rows were reached" : "the queue was full";
}
