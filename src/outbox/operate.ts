import { type Refusal, refuse } from "../core/errors.ts";
import { findItem, type FoundRow } from "./find.ts";
import { type ClaimedRow, finish, freeKeys, hasten } from "./items.ts";
import { type Invocation, leaseOf } from "./runtime.ts";
import { itemId } from "./seq.ts";
import { sendOrRelease } from "./settle.ts";

/** What a person does to one item that is ready. Its place and turn are the fence: a claim at the same time wins or loses whole. */

type Code = "no_item" | "item_moved" | "item_in_flight" | "item_dead";

export type RetryItemAnswer = { ok: true; id: string; sent: boolean } | Refusal<Code | "unknown_topic">;

/**
 * Makes a ready item due now, and sends it where its topic's path is an open queue; elsewhere it is claimed as soon as
 * its topic's path allows. Counts nothing.
 */
export async function retryItem(invocation: Invocation, text: string): Promise<RetryItemAnswer> {
  const { db, now, runtime } = invocation;
  return withReady(invocation, text, async (row) => {
    const topic = runtime.topics.get(row.topic);
    if (topic === undefined) return refuse("unknown_topic", "id", `no module here has the topic ${row.topic}`);
    const { results } = await hasten(db, leaseOf(runtime, topic), row, now).all<ClaimedRow & { lane: 0 | 1 }>();
    if (results.length === 0) return null;
    const leased = results.filter(({ lane }) => lane === 1);
    const { sent } = await sendOrRelease(invocation, topic, leased);
    return { ok: true, id: itemId(row.topic, row.seq), sent: sent.length > 0 };
  });
}

export type DiscardItemAnswer = { ok: true; id: string } | Refusal<Code>;

/** Throws a ready item away, and frees its key. */
export async function discardItem(invocation: Invocation, text: string): Promise<DiscardItemAnswer> {
  const { db } = invocation;
  return withReady(invocation, text, async (row) => {
    const results = await db.batch([...freeKeys(db, [[row, null]]), finish(db, [row])]);
    return results.at(-1)?.meta.changes === 1 ? { ok: true, id: itemId(row.topic, row.seq) } : null;
  });
}

/** Finds a ready item and does something to it, which answers null when somebody has moved it since: then once more. */
async function withReady<Answer>(
  { db, runtime }: Invocation,
  text: string,
  act: (row: FoundRow) => Promise<Answer | null>,
): Promise<Answer | Refusal<Code>> {
  for (let turn = 0; turn < 2; turn += 1) {
    const found = await findItem(db, runtime, text);
    if (!found.ok) return found;
    if ("letter" in found) {
      return refuse("item_dead", "id", `${found.letter.id} is dead: replay it, or discard it as a dead letter`);
    }
    const { row } = found;
    if (row.lane > 0) {
      const state = row.lane === 1 ? "claimed" : "running";
      return refuse(
        "item_in_flight",
        "id",
        `${itemId(row.topic, row.seq)} is ${state}: only a ready item can be moved`,
      );
    }
    const answer = await act(row);
    if (answer !== null) return answer;
  }
  return refuse("item_moved", "id", `${text} was moved at the same time: look at it again`);
}
