import { rotate } from "../core/split.ts";
import { errorText } from "../core/text.ts";
import { MINUTE } from "../core/time.ts";
import { type ClaimedRow, claim } from "../outbox/items.ts";
import { MESSAGE_BATCH } from "../outbox/message.ts";
import { AHEAD_MS, sendPump, startChains } from "../outbox/pump.ts";
import { type Invocation, leaseOf } from "../outbox/runtime.ts";
import { sendAll } from "../outbox/settle.ts";
import type { Topic } from "../outbox/topic.ts";
import type { DueTopic } from "./due.ts";
import { type TopicReport, topicReport } from "./record.ts";

/** Topics that one tick claims for the queue: a statement each, and a chain to go on with. */
export const TOPICS_A_TICK = 8;
/** Sends of one tick, shared by its topics; a larger backlog is pumped. */
export const SENDS_A_TICK = 8;

export interface Sends {
  claimed: number;
  sent: number;
  failed: number;
  /** Topics whose send was refused or hung: the tick drains them this once. */
  refused: Topic[];
  /** What each topic's claim and sends used. */
  topics: TopicReport[];
}

/** Claims what is due on queue topics, in one call, and sends it. A topic with more than its page gets a pump chain. */
export async function sendDue(invocation: Invocation, due: readonly DueTopic[], chain: string): Promise<Sends> {
  const { db, now, runtime } = invocation;
  const none: Sends = { claimed: 0, sent: 0, failed: 0, refused: [], topics: [] };
  const topics = chooseTopics([...runtime.topics.keys()], due, now);
  if (topics.length === 0) return none;
  const page = tickPage(topics.length);

  let claims: D1Result<ClaimedRow>[];
  try {
    claims = await db.batch<ClaimedRow>(
      topics.map((topic) =>
        claim(db, leaseOf(runtime, topic), { now, ahead: now + AHEAD_MS, limit: page, path: "queue", load: false }),
      ),
    );
  } catch (error) {
    runtime.ports.log({ event: "claim_failed", level: "error", error: errorText(error) });
    return { ...none, failed: 1 };
  }

  const outgoing = topics
    .map((topic, index) => ({ topic, rows: claims[index]?.results ?? [], meta: claims[index]?.meta }))
    .filter(({ rows }) => rows.length > 0);
  const outcomes = await sendAll(invocation, outgoing);
  const accepted = outgoing.filter((_, index) => outcomes[index]?.unsent.length === 0);
  const refused = outgoing.filter((one) => !accepted.includes(one)).map(({ topic }) => topic);
  await pumpOn(
    invocation,
    accepted.filter(({ rows }) => rows.length >= page).map(({ topic }) => topic),
    chain,
  );
  return {
    claimed: outgoing.reduce((sum, { rows }) => sum + rows.length, 0),
    sent: outcomes.reduce((sum, { sent }) => sum + sent.length, 0),
    failed: refused.length,
    refused,
    topics: outgoing.map(({ topic, rows, meta }, index) =>
      topicReport(topic.name, {
        claimed: rows.length,
        sent: outcomes[index]?.sent.length ?? 0,
        messages: outcomes[index]?.messages ?? 0,
        queries: 1,
        rowsRead: meta?.rows_read ?? 0,
        rowsWritten: meta?.rows_written ?? 0,
        subrequests: outcomes[index]?.calls ?? 0,
      }),
    ),
  };
}

/** Rows that a tick claims of each of so many topics. Rows, not messages: each may have to travel alone. Pure. */
export function tickPage(topics: number): number {
  return Math.max(1, Math.floor(SENDS_A_TICK / topics)) * MESSAGE_BATCH;
}

/**
 * The topics of this tick: those whose oldest item has waited longest, and the last place goes round among the others,
 * a topic a minute in the code's order, so that none is starved by as many others as there are places, however far
 * behind those are. Pure.
 * @param names all topics, in the code's order
 */
export function chooseTopics(names: readonly string[], due: readonly DueTopic[], now: number): Topic[] {
  const waiting = due
    .filter(({ path, paused, oldest }) => path === "queue" && !paused && oldest !== null)
    .map(({ topic }) => topic);
  if (waiting.length <= TOPICS_A_TICK) return waiting;
  const oldest = waiting.slice(0, TOPICS_A_TICK - 1);
  const circle = rotate(names, names[Math.floor(now / MINUTE) % names.length] ?? null);
  const turn = circle.find(
    (name) => waiting.some((one) => one.name === name) && !oldest.some((one) => one.name === name),
  );
  return [...oldest, ...waiting.filter(({ name }) => name === turn)];
}

async function pumpOn(invocation: Invocation, topics: readonly Topic[], chain: string): Promise<void> {
  try {
    const started = await startChains(invocation, topics, chain);
    await Promise.all(started.map((topic) => sendPump(invocation, topic, { chain, step: 0, claimed: 0 })));
  } catch (error) {
    invocation.runtime.ports.log({ event: "pump_failed", level: "warn", error: errorText(error) });
  }
}
