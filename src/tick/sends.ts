import { errorText } from "../core/text.ts";
import { type ClaimedRow, claim } from "../outbox/items.ts";
import { MESSAGE_BATCH } from "../outbox/message.ts";
import { pageRows, sendPump, startChains } from "../outbox/pump.ts";
import { type Invocation, leaseOf } from "../outbox/runtime.ts";
import { sendOrRelease } from "../outbox/settle.ts";
import type { Topic } from "../outbox/topic.ts";
import { AHEAD_MS, type DueTopic } from "./due.ts";

/** Topics that one tick claims for the queue: a statement each. The others are older at the next tick and come first. */
export const TOPICS_A_TICK = 8;
/** Sends of one tick, shared by its topics; a larger backlog is pumped. */
export const SENDS_A_TICK = 8;

export interface Sends {
  claimed: number;
  sent: number;
  failed: number;
  /** Topics whose send was refused or hung: the tick drains them this once. */
  refused: Topic[];
}

/** Claims what is due on queue topics, in one call, and sends it. A topic with more than its page gets a pump chain. */
export async function sendDue(invocation: Invocation, due: readonly DueTopic[], chain: string): Promise<Sends> {
  const { db, now, runtime } = invocation;
  const sends: Sends = { claimed: 0, sent: 0, failed: 0, refused: [] };
  const topics = due
    .filter(({ path, paused, oldest }) => path === "queue" && !paused && oldest !== null)
    .slice(0, TOPICS_A_TICK)
    .map(({ topic }) => topic);
  if (topics.length === 0) return sends;
  const messages = Math.max(1, Math.floor(SENDS_A_TICK / topics.length)) * MESSAGE_BATCH;

  let claims: D1Result<ClaimedRow>[];
  try {
    claims = await db.batch<ClaimedRow>(
      topics.map((topic) =>
        claim(db, leaseOf(runtime, topic), {
          now,
          ahead: now + AHEAD_MS,
          limit: pageRows(topic, messages),
          path: "queue",
          load: false,
        }),
      ),
    );
  } catch (error) {
    runtime.ports.log({ event: "claim_failed", level: "error", error: errorText(error) });
    return { ...sends, failed: 1 };
  }

  const more: Topic[] = [];
  for (const [index, topic] of topics.entries()) {
    const rows = claims[index]?.results ?? [];
    sends.claimed += rows.length;
    if (rows.length === 0) continue;
    const { sent, unsent } = await sendOrRelease(invocation, topic, rows);
    sends.sent += sent.length;
    if (unsent.length > 0) {
      sends.refused.push(topic);
      sends.failed += 1;
    } else if (rows.length >= pageRows(topic, messages)) more.push(topic);
  }
  await pumpOn(invocation, more, chain);
  return sends;
}

async function pumpOn(invocation: Invocation, topics: readonly Topic[], chain: string): Promise<void> {
  try {
    for (const topic of await startChains(invocation, topics, chain)) {
      await sendPump(invocation, topic, { chain, step: 0, claimed: 0 });
    }
  } catch (error) {
    invocation.runtime.ports.log({ event: "pump_ended", level: "warn", why: errorText(error) });
  }
}
