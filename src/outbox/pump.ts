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
/** A queue counts what it takes by the second: what it refuses in this one may go in the next, s. */
export const PUMP_RETRY_SECONDS = 1;
/** A queue that holds more messages than this gets no more pages until the next tick, messages. */
const BACKLOG_MESSAGES = 100_000;

/** Rows in one page of a topic. Pure. */
export function pageRows(topic: Topic): number {
  return Math.min(PAGE_MESSAGES * topic.options.itemsPerMessage, PAGE_ROWS);
}

/** What a step of a chain came to. */
export interface Stepped {
  /** Rows in a full page, those that this step claimed, and those of them that the queue refused. */
  page: number;
  claimed: number;
  unsent: number;
  /** Messages waiting in the queue, when it says so. */
  backlog: number | null;
  /** Rows of the chain, with this step's. */
  total: number;
}

/**
 * How a chain goes on: at once while there is more, the queue is not full and the chain has room; later when the queue
 * refused some of a page, since what it refuses in one second it takes in another. Pure.
 */
export function goesOn({ page, claimed, unsent, backlog, total }: Stepped): "now" | "later" | "ended" {
  if (unsent > 0) return "later";
  const more = claimed >= page && total < CHAIN_ITEMS && (backlog ?? 0) < BACKLOG_MESSAGES;
  return more ? "now" : "ended";
}

/**
 * How long a pump message whose page was refused stays in the queue before it is tried again, s: a second more each
 * time, so that the queue's own retries last as long as a chain. Pure.
 * @param attempts how often the queue has delivered it, from 1
 */
export function pumpRetryAfter(attempts: number): number {
  return attempts * PUMP_RETRY_SECONDS;
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

/** Sends a chain's next message. Answers whether the queue took it. */
export async function sendPump(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<boolean> {
  const queue = invocation.runtime.queue(topic);
  if (queue === null) return false;
  invocation.meter.subrequests += 1;
  try {
    await withDeadline(queue.send(pumpMessage(topic.name, pump)), SEND_DEADLINE_MS, "the queue");
    return true;
  } catch (error) {
    invocation.runtime.ports.log({ event: "pump_refused", level: "warn", topic: topic.name, error: errorText(error) });
    return false;
  }
}

/**
 * One step of a chain: takes the step, claims a page, sends it, and sends the chain on. Ended by a pause, a flip, a
 * page that is not full, the chain's bounds, or a queue that is full. When the queue refuses, the step is put back and
 * `later` answered: the same message, tried again, takes it.
 * @throws what D1 throws when the step cannot be taken. Tried again, the message finds whether it was.
 */
export async function stepPump(
  invocation: Invocation,
  topic: Topic,
  pump: PumpMessage["pump"],
): Promise<"stepped" | "later"> {
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
    // A step that was put back has counted what was sent of it.
    db
      .prepare(
        `UPDATE pumps SET step = ?4, claimed = max(claimed, ?5) WHERE topic = ?1 AND chain = ?2 AND step = ?3 AND until > ?6
         RETURNING claimed`,
      )
      .bind(topic.name, pump.chain, pump.step, step, pump.claimed, now),
  ])) as [D1Result<ClaimedRow>, D1Result<{ claimed: number }>];
  const [before] = taken.results;
  if (before === undefined) return "stepped";

  const { sent, unsent, backlog } = await sendOrRelease(invocation, topic, claimed.results);
  const next = { chain: pump.chain, step, claimed: before.claimed + sent.length };
  const goes = goesOn({
    page,
    claimed: claimed.results.length,
    unsent: unsent.length,
    backlog,
    total: next.claimed,
  });
  if (goes === "ended") {
    runtime.ports.log({ event: "pump_ended", level: "info", topic: topic.name, claimed: next.claimed });
    await endChain(invocation, topic, next);
    return "stepped";
  }
  if (goes === "now" && (await sendPump(invocation, topic, next))) return "stepped";
  await putBack(invocation, topic, next);
  return "later";
}

/** Makes room for the next tick's chain, however soon that tick comes, and leaves it what this one claimed. */
async function endChain(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<void> {
  const { chain, step, claimed } = pump;
  await invocation.db
    .prepare("UPDATE pumps SET until = ?4, claimed = ?5 WHERE topic = ?1 AND chain = ?2 AND step = ?3 AND until > ?4")
    .bind(topic.name, chain, step, instantOf(invocation), claimed)
    .run();
}

/** Gives the step back to the message that took it. A send that was refused and landed all the same has gone on. */
async function putBack(invocation: Invocation, topic: Topic, pump: PumpMessage["pump"]): Promise<void> {
  const { chain, step, claimed } = pump;
  await invocation.db
    .prepare("UPDATE pumps SET step = ?3 - 1, claimed = ?4 WHERE topic = ?1 AND chain = ?2 AND step = ?3")
    .bind(topic.name, chain, step, claimed)
    .run();
}
