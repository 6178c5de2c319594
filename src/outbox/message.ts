import * as v from "valibot";
import { isTopicName } from "../core/names.ts";
import type { ClaimedRow } from "./items.ts";

/**
 * What travels in the queue: references to rows, never the truth. A message that is lost loses nothing; one that comes
 * twice, or late, finds that its first row has moved.
 */

/** Messages in one send, and in one batch that the consumer gets (platform limit). */
export const MESSAGE_BATCH = 100;
/** Bytes in one send: the platform's 256 KB, less about 100 bytes of metadata a message. */
export const MESSAGE_BATCH_BYTES = 240_000;
/** The form below. A message of another version is logged and dropped: its rows' lease lapses and they are sent anew. */
const VERSION = 1;

const count = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
const topicName = v.pipe(v.string(), v.check(isTopicName, "not a topic name"));

const messageSchema = v.union([
  v.strictObject({
    v: v.literal(VERSION),
    topic: topicName,
    /** `[at, seq, turn]` of each row, all in lane 1; the first is the lead. */
    items: v.pipe(
      v.array(v.strictTuple([count, v.pipe(v.string(), v.length(18)), count])),
      v.minLength(1),
      v.maxLength(100),
    ),
    /** 1 when the row has lapsed before: it runs with nothing beside it. */
    alone: v.optional(v.literal(1)),
  }),
  v.strictObject({
    v: v.literal(VERSION),
    topic: topicName,
    /** The chain that this message belongs to, and its next step. */
    pump: v.strictObject({ chain: v.string(), step: count, claimed: count }),
  }),
]);

export type Message = v.InferOutput<typeof messageSchema>;
export type ItemMessage = Extract<Message, { items: unknown }>;
export type PumpMessage = Extract<Message, { pump: unknown }>;

/** Reads a queue body. The problem names the field. */
export function parseMessage(body: unknown): { ok: true; message: Message } | { ok: false; problem: string } {
  const parsed = v.safeParse(messageSchema, body);
  if (parsed.success) return { ok: true, message: parsed.output };
  const [issue] = parsed.issues;
  return { ok: false, problem: `${v.getDotPath(issue) ?? "body"}: ${issue.message}` };
}

export function itemMessage(topic: string, rows: readonly ClaimedRow[]): ItemMessage {
  const items = rows.map(({ at, seq, turn }): [number, string, number] => [at, seq, turn]);
  return rows[0]?.lapses ? { v: VERSION, topic, items, alone: 1 } : { v: VERSION, topic, items };
}

export function pumpMessage(topic: string, pump: PumpMessage["pump"]): PumpMessage {
  return { v: VERSION, topic, pump };
}
