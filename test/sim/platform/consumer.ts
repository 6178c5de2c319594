import { backoffDelay } from "../../../src/core/backoff.ts";
import { SECOND } from "../../../src/core/time.ts";
import { retryAfter } from "../../../src/outbox/consume.ts";
import { runningLeaseMs, SETTLE_MARGIN_MS, SHARED_CONCURRENCY, START_WINDOW_MS } from "../../../src/outbox/topic.ts";
import type { Random } from "../random.ts";
import type { Agenda } from "./agenda.ts";
import { ASSUMED, serviceMs } from "./limits.ts";
import type { Part, SimQueue } from "./queue.ts";
import type { Shard, SimTopic } from "./shard.ts";
import type { Plan } from "./simulate.ts";
import { settled, type Tally } from "./tally.ts";

/** The consumer of a queue: what it does with a batch, by the real bounds, over counted rows. */
export class Consumer {
  readonly #agenda: Agenda;
  readonly #random: Random;
  readonly #tally: Tally;
  readonly #plan: Plan;

  constructor(of: { agenda: Agenda; random: Random; tally: Tally; plan: Plan }) {
    this.#agenda = of.agenda;
    this.#random = of.random;
    this.#tally = of.tally;
    this.#plan = of.plan;
  }

  /** A batch: its pump messages; then its items, begun together, run, settled together; then those that run alone. */
  consume(shard: Shard, queue: SimQueue<SimTopic>, batch: readonly Part<SimTopic>[], end: () => void): void {
    const items = batch.filter(({ group }) => group.pump === null && !group.alone);
    const alone = batch.filter(({ group }) => group.alone);
    const pumps = batch.filter(({ group }) => group.pump !== null);
    const runAlone = () => this.#together(shard, queue, alone, true, end);
    const runPumps = (nth: number, then: () => void): void => {
      const { group } = pumps[nth] ?? {};
      if (group === undefined || group.pump === null) {
        then();
        return;
      }
      shard.step(group.topic, group.pump, () => runPumps(nth + 1, then));
    };
    runPumps(0, () => this.#together(shard, queue, items, false, runAlone));
  }

  #together(
    shard: Shard,
    queue: SimQueue<SimTopic>,
    parts: readonly Part<SimTopic>[],
    alone: boolean,
    end: () => void,
  ): void {
    const rows = parts.reduce((sum, part) => sum + part.rows, 0);
    const messages = parts.reduce((sum, part) => sum + part.messages, 0);
    if (messages === 0) {
      end();
      return;
    }
    // Those that run alone make two calls each, one after another: here all of them at once, and as long.
    const single = serviceMs("begin", 1) + serviceMs("finish", 1) + 2 * ASSUMED.roundTripMs;
    const beginMs = alone
      ? messages * serviceMs("begin", 1)
      : serviceMs("begin", messages) + serviceMs("load", rows - messages);
    const failed = () => {
      const delay = retryAfter(this.#random.next()) * SECOND;
      for (const { group, messages, rows } of parts) {
        const again = { ...group, messages, rows };
        group.topic.backlog.leased(again);
        queue.put(again, delay);
      }
      end();
    };
    const begun = () => {
      const { now } = this.#agenda;
      this.#tally.rowsWritten += Math.min(messages, rows);
      const handlerMs = this.#plan.handlerMs * (0.8 + 0.4 * this.#random.next());
      const rounds = alone ? rows : Math.ceil(rows / SHARED_CONCURRENCY);
      const room = START_WINDOW_MS / Math.max(1, handlerMs);
      const runMs = Math.min(rounds, alone ? rounds : Math.floor(room)) * handlerMs + (alone ? messages * single : 0);
      const ran = alone ? rows : Math.min(rows, Math.floor(room) * SHARED_CONCURRENCY);
      this.#agenda.at(now + runMs, () => this.#settle(shard, parts, { rows, ran, begunAt: now }, end));
    };
    shard.database.call(beginMs, begun, failed);
  }

  #settle(
    shard: Shard,
    parts: readonly Part<SimTopic>[],
    { rows, ran, begunAt }: { rows: number; ran: number; begunAt: number },
    end: () => void,
  ): void {
    const { failing } = this.#plan;
    const failures = Math.min(ran, Math.floor(ran * failing + this.#random.next()));
    const done = () => {
      let [left, bad] = [ran, failures];
      for (const { group, rows } of parts) {
        const own = Math.min(rows, left);
        left -= own;
        const failed = Math.min(bad, own);
        bad -= failed;
        settled(this.#tally, group.due, own - failed, this.#agenda.now);
        const delay = backoffDelay(group.topic.topic.options.backoff, 1, this.#random.next());
        if (failed > 0) this.#again(shard, group.topic, failed, this.#agenda.now + delay);
        if (rows > own) this.#again(shard, group.topic, rows - own, this.#agenda.now);
      }
      this.#tally.failures += failures;
      this.#tally.rowsWritten += rows;
      end();
    };
    const failed = () => {
      for (const { group, messages, rows } of parts) {
        const { topic, backlog } = group.topic;
        const leads = Math.min(messages, rows);
        this.#tally.repeated += rows;
        backlog.unsettled(begunAt + runningLeaseMs(topic), group.due, leads);
        backlog.unsettled(Math.max(group.leaseUntil, begunAt + SETTLE_MARGIN_MS), group.due, rows - leads);
      }
      end();
    };
    const moved = failures + (rows - ran);
    shard.database.call(serviceMs("finish", ran - failures) + serviceMs("move", moved), done, failed);
  }

  /** Items that are due again so soon that they are sent at once, with their delay. */
  #again(shard: Shard, one: SimTopic, count: number, due: number): void {
    const { unsent } = shard.send(one, [{ due, count, lapsed: false }], this.#agenda.now);
    if (unsent.length > 0) shard.ended("a retry was refused by the queue");
  }
}
