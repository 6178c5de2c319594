import * as v from "valibot";
import { DAY, MINUTE, SECOND } from "../../../src/core/time.ts";
import { topic } from "../../../src/outbox/topic.ts";
import { Random } from "../random.ts";
import { Agenda } from "./agenda.ts";
import { Consumer } from "./consumer.ts";
import { Database } from "./database.ts";
import { SimQueue } from "./queue.ts";
import { type Report, reportOf } from "./report.ts";
import { Shard, type SimTopic } from "./shard.ts";
import { createTally } from "./tally.ts";

/** What is simulated. */
export interface Plan {
  /** Rows that fall due in each minute, over all topics. */
  rowsAMinute: number;
  /** How long they keep coming, minutes. */
  minutes: number;
  topics: number;
  queues: number;
  databases: number;
  itemsPerMessage: number;
  /** A handler's time, ms, a fifth more or less. */
  handlerMs: number;
  /** The part of the items that fail once. */
  failing: number;
  /** Stalls of each database, a minute each, at random. */
  stalls: number;
  /** How many times as long as measured a statement takes. */
  slower: number;
  seed: number;
}

export const USUAL_PLAN: Plan = {
  rowsAMinute: 1_000_000,
  minutes: 24 * 60,
  topics: 8,
  queues: 1,
  databases: 1,
  itemsPerMessage: 10,
  handlerMs: 50,
  failing: 0.01,
  stalls: 4,
  slower: 1,
  seed: 1,
};

/** Items are enqueued so long before they are due: they wait in the table, and the tick claims them. */
const AHEAD = 2 * MINUTE;
/** How long the rest is worked after the last came, at most. */
const AFTER = DAY;

/** Plays a plan from its first row to the last that is settled, or to a day after the last came. */
export function simulate(plan: Plan): Report {
  const agenda = new Agenda();
  const random = new Random(plan.seed);
  const tally = createTally();
  const consumer = new Consumer({ agenda, random, tally, plan });
  const shards = Array.from({ length: plan.databases }, () => {
    const stalls = Array.from({ length: plan.stalls }, () => {
      const from = AHEAD + Math.floor(random.next() * plan.minutes) * MINUTE + random.whole(0, 59) * SECOND;
      return { from, until: from + MINUTE };
    }).sort((a, b) => a.from - b.from);
    return new Shard({ agenda, random, tally, database: new Database(agenda, stalls, plan.slower) });
  });
  const queues = Array.from({ length: plan.queues }, () => {
    const queue: SimQueue<SimTopic> = new SimQueue(agenda, (batch, end) => {
      // A batch is of one queue, which carries topics of one database.
      const shard = batch[0]?.group.topic.shard as Shard;
      consumer.consume(shard, queue, batch, end);
    });
    return queue;
  });
  for (let nth = 0; nth < plan.topics; nth += 1) {
    const shard = shards[nth % shards.length] as Shard;
    // The queues of a database are its own.
    const own = queues.filter((_, index) => index % shards.length === nth % shards.length);
    const queue = own[Math.floor(nth / shards.length) % Math.max(1, own.length)];
    if (queue === undefined) throw new RangeError("each database has a queue of its own, at least");
    shard.add(
      topic(`sim.topic-${nth}`, {
        schema: v.object({}),
        itemsPerMessage: plan.itemsPerMessage,
        handle: () => {},
      }),
      queue,
    );
  }
  const last = plan.minutes * MINUTE;
  const end = last + AHEAD + AFTER;
  for (const shard of shards) {
    shard.rowsBorn(plan.rowsAMinute / 60 / shards.length, last, AHEAD);
    shard.tickEachMinute(end, last + AHEAD);
  }
  agenda.run(end);
  return reportOf({ plan, tally, shards, queues, lastDue: last + AHEAD });
}
