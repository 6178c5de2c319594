import * as v from "valibot";
import { DueworkError, type Refusal, refuse } from "../core/errors.ts";
import { parseJson } from "../core/payload.ts";
import { isConstraint } from "../db/client.ts";
import { type LetterRow, pageOfLetters } from "./find.ts";
import { bear, bearAgain, birthsJson, type ClaimedRow, type Fence, HELD, takeKeys } from "./items.ts";
import type { DeadLetter, DeadLettersAsked } from "./outbox.ts";
import { type Invocation, leaseOf } from "./runtime.ts";
import { createSeqs, itemId } from "./seq.ts";
import { nearBefore, sendOrRelease } from "./settle.ts";
import type { Topic } from "./topic.ts";

/** Every statement that writes `dead_letters`: items that are not tried again by themselves. */

export interface Corpse {
  fence: Fence;
  reason: string;
  error: string;
  /** True when the delivery that ended it counts as a failed attempt. */
  counted: boolean;
}

/** Writes the dead letters of rows whose lease is still held. Before the rows are finished, in the same batch. */
export function bury(db: D1Database, corpses: readonly Corpse[], now: number): D1PreparedStatement {
  const rows = corpses.map(({ fence: { topic, lane, at, seq, turn }, reason, error, counted }) => [
    topic,
    lane,
    at,
    seq,
    turn,
    reason,
    error,
    counted ? 1 : 0,
  ]);
  return db
    .prepare(
      `INSERT INTO dead_letters (id, topic, k, payload, reason, error, attempts, deliveries, born_at, died_at)
       SELECT i.topic || '~' || i.seq, i.topic, i.k, i.payload, j.value->>5, j.value->>6, i.attempts + (j.value->>7),
              i.deliveries, i.born_at, ?2
       FROM ${HELD}`,
    )
    .bind(JSON.stringify(rows), now);
}

const letterSchema = v.object({ id: v.string(), topic: v.string(), k: v.nullable(v.string()), payload: v.string() });

export type ReplayAnswer = { ok: true; id: string } | Refusal<"no_dead_letter" | "key_taken" | "unknown_topic">;

/**
 * Puts a dead letter back as a new item, due now, with its attempts at 0. Once: of two that ask at the same time, one
 * gets the item and the other `no_dead_letter`.
 */
export async function replayDeadLetter(invocation: Invocation, id: string): Promise<ReplayAnswer> {
  const { db, now, runtime } = invocation;
  const found = await db.prepare("SELECT id, topic, k, payload FROM dead_letters WHERE id = ?1").bind(id).first();
  const gone = () => refuse("no_dead_letter", "id", `there is no dead letter ${id}`);
  if (found === null) return gone();
  const letter = v.parse(letterSchema, found);
  const topic = runtime.topics.get(letter.topic);
  if (topic === undefined) return refuse("unknown_topic", "topic", `no module here has the topic ${letter.topic}`);

  const seq = createSeqs(runtime.ports.bytes)(now);
  const births = birthsJson([{ seq, dueAt: now, key: letter.k, payload: letter.payload }]);
  try {
    const keys = letter.k === null ? [] : takeKeys(db, topic.name, births, "refuse", now);
    const results = await db.batch([
      requireLetter(db, id),
      ...keys,
      bear(db, leaseOf(runtime, topic), births, { keyed: letter.k !== null, now, sendBefore: nearBefore(now) }),
      db.prepare("DELETE FROM dead_letters WHERE id = ?1").bind(id),
    ]);
    const born = (results[keys.length + 1] as D1Result<BornRow>).results;
    await sendOrRelease(
      invocation,
      topic,
      born.filter(({ lane }) => lane === 1),
    );
    return { ok: true, id: itemId(topic.name, seq) };
  } catch (error) {
    if (isConstraint(error, "item_keys.k")) {
      return refuse("key_taken", "key", `another item of ${topic.name} holds the key ${letter.k}`);
    }
    if (isConstraint(error, "dead_letter_has_a_reason")) return gone();
    throw error;
  }
}

interface BornRow extends ClaimedRow {
  lane: 0 | 1;
}

/** Refuses the whole batch where the letter is already gone, by asking for a row that the table does not allow. */
function requireLetter(db: D1Database, id: string): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
       SELECT ?1, '', '', '', '', 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM dead_letters WHERE id = ?1)`,
    )
    .bind(id);
}

/** The form that a module's code gets: null when there is nothing to replay. @throws DueworkError for the other refusals. */
export async function replay(invocation: Invocation, id: string): Promise<{ id: string } | null> {
  const answer = await replayDeadLetter(invocation, id);
  if (answer.ok) return { id: answer.id };
  if (answer.code === "no_dead_letter") return null;
  throw new DueworkError(answer.code, answer.field, answer.message);
}

/** Throws a dead letter away. False: there was none. */
export async function discardDeadLetter({ db }: Invocation, id: string): Promise<boolean> {
  const result = await db.prepare("DELETE FROM dead_letters WHERE id = ?1").bind(id).run();
  return result.meta.changes > 0;
}

/** Dead letters of one page that a module reads. */
const LETTERS_A_PAGE = 200;

/** See `Outbox.deadLetters`. */
export async function deadLetters({ db, runtime }: Invocation, topic: Topic, asked: DeadLettersAsked) {
  const { limit } = asked;
  if (runtime.topics.get(topic.name) !== topic) {
    throw new DueworkError("unknown_topic", "topic", `no module of this Worker has the topic ${topic.name}`);
  }
  if (!Number.isSafeInteger(limit) || limit < 1 || limit > LETTERS_A_PAGE) {
    throw new RangeError(`a limit is a whole number from 1 to ${LETTERS_A_PAGE}, not ${String(limit)}`);
  }
  const page = await pageOfLetters(db, topic.name, asked);
  if (!page.ok) throw new DueworkError(page.code, page.field, page.message);
  return { items: page.letters.map(letterOf), nextCursor: page.nextCursor };
}

function letterOf({ id, k, payload, reason, error, attempts, died_at }: LetterRow): DeadLetter {
  const json = parseJson(payload);
  return { id, key: k, payload: json.ok ? json.value : payload, reason, error, attempts, diedAt: died_at };
}

/** Dead letters that one {@link replayAll} puts back. */
const REPLAY_LETTERS = 200;

export type ReplayAllAnswer =
  | {
      ok: true;
      /** Letters that became items. */
      replayed: number;
      /** Letters that were read and stayed: another item holds their key, or somebody was quicker. */
      kept: number;
      /** Where to go on; null = that was all. */
      nextCursor: string | null;
    }
  | Refusal<"bad_arguments">;

/**
 * Puts a page of a topic's dead letters back as new items, due now, the newest first: what dies again meanwhile is not
 * met again by the cursor. However many ask at the same time, a letter becomes one item.
 */
export async function replayAll(
  invocation: Invocation,
  topic: Topic,
  asked: { reason?: string | undefined; cursor?: string | undefined },
): Promise<ReplayAllAnswer> {
  const { db, now, runtime } = invocation;
  const page = await pageOfLetters(db, topic.name, { ...asked, limit: REPLAY_LETTERS, bare: true });
  if (!page.ok) return page;
  const { letters, nextCursor } = page;
  if (letters.length === 0) return { ok: true, replayed: 0, kept: 0, nextCursor };
  const seqOf = createSeqs(runtime.ports.bytes);
  const again = letters.map(({ id }) => [id, seqOf(now)] as const);
  const results = await db.batch<BornRow>([
    ...bearAgain(db, leaseOf(runtime, topic), again, now),
    // By the condition under which they became items.
    db
      .prepare(
        `DELETE FROM dead_letters WHERE id IN (
           SELECT l.id FROM json_each(?2) j CROSS JOIN dead_letters l ON l.id = j.value->>0 AND l.topic = ?1
           WHERE l.k IS NULL OR EXISTS (
             SELECT 1 FROM item_keys e WHERE e.topic = ?1 AND e.k = l.k AND e.seq = j.value->>1))`,
      )
      .bind(topic.name, JSON.stringify(again)),
  ]);
  const born = results[1]?.results ?? [];
  await sendOrRelease(
    invocation,
    topic,
    born.filter(({ lane }) => lane === 1),
  );
  return { ok: true, replayed: born.length, kept: letters.length - born.length, nextCursor };
}
