import { errorText } from "../core/text.ts";
import { MINUTE, SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import { type ClaimedRow, claim } from "./items.ts";
import { MESSAGE_BATCH, type PumpMessage, pumpMessage } from "./message.ts";
import { type Invocation, instantOf, leaseOf } from "./runtime.ts";
import { SEND_DEADLINE_MS } from "./send.ts";
import { sendOrRelease } from "./settle.ts";
import type { Topic } from "./topic.ts";

/**
 * The pump: while a topic has more due rows than one page, a message claims the next page, sends it, and sends itself
 * on. It is in the topic's own queue, behind the page it has sent, so that a slow consumer slows it down.
 *
 * Every statement that writes `pumps`. One chain a topic: a chain is a row, and each step moves the row's `step`, so a
 * pump message that comes twice finds its step taken and does nothing.
 */

/**
 * How far ahead the tick and the pump claim, ms: what is due within the coming minute is sent with its delay and starts
 * in its second. A quarter of a minute more, so that a late next tick is no gap.
 */
export const AHEAD_MS = MINUTE + 15 * SECOND;
/** A chain ends before the next tick may start another. */
export const CHAIN_MS = 55 * SECOND;
/** Most items of one chain. */
export const CHAIN_ITEMS = 250_000;
/** Messages a page makes, at most: ten sends. */
const PAGE_MESSAGES = 10 * MESSAGE_BATCH;
/** Most rows a page claims, however many go in a message: one statement's work. */
const PAGE_ROWS = 5_000;
/** A queue that holds more messages than this gets no more pages until the next tick, messages. */
const BACKLOG_MESSAGES = 100_000;

/** Rows in one page of a topic. Pure. */
export function pageRows(topic: Topic): number {
  return Math.min(PAGE_MESSAGES * topic.options.itemsPerMessage, PAGE_ROWS);
}

/** What a step of a chain came to. */
export interface Stepped {
  /** Rows in a full page, and those that this step claimed. */
  page: number;
  claimed: number;
  sent: number;
  unsent: number;
  /** Messages waiting in the queue, when it says so. */
  backlog: number | null;
  /** Rows of the chain, with this step's. */
  total: number;
}

/** Whether a chain goes on: there is more, the queue takes it and is not full, and the chain has room. Pure. */
export function goesOn({ page, claimed, sent, unsent, backlog, total }: Stepped): boolean {
  return claimed >= page && sent > 0 && unsent === 0 && total < CHAIN_ITEMS && (backlog ?? 0) < BACKLOG_MESSAGES;
}

/** Starts a chain for each topic that has none living. Answers the topics whose chain is ours to send. */
export async function startChains(invocation: Invocation, topics: readonly Topic[], chain: string): Promise<Topic[]> {
  if (topics.length === 0) return [];
  const names = JSON.stringify(topics.map(({ name }) => name));
  const { results } = await invocation.db
    .prepare(
      `INSERT INTO pumps (topic, chain, step, claimed, until) SELECT value, ?2, 0, 0, ?3 + ?4 FROM json_each(?1) WHERE true
       ON CONFLICT (topic) DO UPDATE SET chain = excluded.chain, step = 0, claimed = 0, until = excluded.until
       WHERE pumps.until <= ?3
       RETURNING topic`,
    )
    .bind(names, chain, invocation.now, CHAIN_MS)
    .all<{ topic: string }>();
  const started = new Set(results.map(({ topic }) => topic));
  return topics.filter(({ name }) => started.has(name));
}

/** Sends a chain's next message. A send that fails ends the chain: the next tick starts another. */
export async function sendPump(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<boolean> {
  const queue = invocation.runtime.queue(topic);
  if (queue === null) return false;
  invocation.meter.subrequests += 1;
  try {
    await withDeadline(queue.send(pumpMessage(topic.name, pump)), SEND_DEADLINE_MS, "the queue");
    return true;
  } catch (error) {
    invocation.runtime.ports.log({ event: "pump_ended", level: "warn", topic: topic.name, why: errorText(error) });
    return false;
  }
}

/**
 * One step of a chain: takes the step, claims a page, sends it, and sends the chain on. Ended by a pause, a flip, a
 * page that is not full, the chain's bounds, a queue that is full or refuses.
 */
export async function stepPump(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<void> {
  const { db, runtime } = invocation;
  const now = instantOf(invocation);
  const page = pageRows(topic);
  const step = pump.step + 1;
  // The claim first: it asks for the step that this message is about to take, so that a second one claims nothing.
  const [claimed, taken] = (await db.batch([
    claim(db, leaseOf(runtime, topic), {
      now,
      ahead: now + AHEAD_MS,
      limit: page,
      path: "queue",
      load: false,
      pump: { chain: pump.chain, step: pump.step },
    }),
    db
      .prepare(
        `UPDATE pumps SET step = ?4, claimed = ?5 WHERE topic = ?1 AND chain = ?2 AND step = ?3 AND until > ?6
         RETURNING until`,
      )
      .bind(topic.name, pump.chain, pump.step, step, pump.claimed, now),
  ])) as [D1Result<ClaimedRow>, D1Result<{ until: number }>];
  if (taken.results.length === 0) return;

  const { sent, unsent, backlog } = await sendOrRelease(invocation, topic, claimed.results);
  const total = pump.claimed + claimed.results.length;
  const onward = goesOn({
    page,
    claimed: claimed.results.length,
    sent: sent.length,
    unsent: unsent.length,
    backlog,
    total,
  });
  const next = { chain: pump.chain, step, claimed: total };
  if (onward && (await sendPump(invocation, topic, next))) return;
  if (!onward) runtime.ports.log({ event: "pump_ended", level: "info", topic: topic.name, claimed: total });
  await endChain(invocation, topic, next);
}

/** Makes room for the next tick's chain, however soon that tick comes, and leaves it what this one claimed. */
async function endChain(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<void> {
  const { chain, step, claimed } = pump;
  await invocation.db
    .prepare("UPDATE pumps SET until = ?4, claimed = ?5 WHERE topic = ?1 AND chain = ?2 AND step = ?3 AND until > ?4")
    .bind(topic.name, chain, step, instantOf(invocation), claimed)
    .run();
}
