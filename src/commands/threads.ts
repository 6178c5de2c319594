import { safeText } from "../core/text.ts";
import { DAY } from "../core/time.ts";

/**
 * Every statement that writes `threads` and `messages`. A thread is rows first, whatever its channel: what goes outside
 * is carried there from them.
 */

/** Longest text of one message, UTF-16 units: a result is cut, and is whole in its run. */
export const MESSAGE_CHARS = 8_000;
/** How long messages, and threads that have none left, are kept, ms; and how many go when something new is said. */
export const KEEP_THREADS_MS = 90 * DAY;
const FORGET_MESSAGES = 50;
const FORGET_THREADS = 20;

/** What must be there for a row to be written: asked inside the batch, after what it names was written or was not. */
export type Only = { run: string } | { firing: string; outcome?: string } | { schedule: string };

export interface NewThread {
  id: string;
  channel: string;
  title: string;
  openedBy: string;
  external?: string;
  only?: Only;
}

export type MessageKind = "lead" | "text" | "receipt" | "result" | "refusal" | "offer";

export interface NewMessage {
  id: string;
  thread: string;
  /** ms; behind the thread's latest message all the same, so that what was said in one ms keeps its order. */
  at: number;
  author: string;
  kind: MessageKind;
  text: string;
  data?: MessageData;
  /** When it was said outside, if it comes from there: it is not posted again. */
  postedAt?: number;
  only?: Only;
}

/** What a message is about. */
export interface MessageData {
  /** A command that a person may run in its stead. */
  command?: string;
  args?: Record<string, unknown>;
  scope?: string | null;
  /** A refusal's code. */
  code?: string;
  run?: string;
  status?: string;
  firing?: string;
  confirmation?: string;
}

const GUARD = `CASE j.value->>'only'
    WHEN 'run' THEN EXISTS (SELECT 1 FROM runs WHERE id = j.value->>'ref')
    WHEN 'schedule' THEN EXISTS (SELECT 1 FROM schedules WHERE id = j.value->>'ref')
    WHEN 'firing' THEN EXISTS (SELECT 1 FROM firings WHERE id = j.value->>'ref'
      AND (j.value->>'outcome' IS NULL OR outcome = j.value->>'outcome'))
    ELSE 1 END`;

function guardOf(only: Only | undefined): { only: string | null; ref: string | null; outcome: string | null } {
  if (only === undefined) return { only: null, ref: null, outcome: null };
  if ("run" in only) return { only: "run", ref: only.run, outcome: null };
  if ("schedule" in only) return { only: "schedule", ref: only.schedule, outcome: null };
  return { only: "firing", ref: only.firing, outcome: only.outcome ?? null };
}

/** Opens threads; one that is there already stays as it is. */
export function openThreads(db: D1Database, threads: readonly NewThread[], now: number): D1PreparedStatement {
  const rows = threads.map(({ only, external = null, ...thread }) => ({ ...thread, external, ...guardOf(only) }));
  return db
    .prepare(
      `INSERT INTO threads (id, channel, title, opened_at, opened_by, latest_at, external)
       SELECT j.value->>'id', j.value->>'channel', j.value->>'title', ?2, j.value->>'openedBy', ?2, j.value->>'external'
       FROM json_each(?1) j WHERE ${GUARD} ON CONFLICT DO NOTHING`,
    )
    .bind(JSON.stringify(rows), now);
}

/** Says messages, and brings their threads up; what was said already, by its id, is not said again. */
export function say(db: D1Database, messages: readonly NewMessage[]): D1PreparedStatement[] {
  const rows = messages.map(({ only, data = {}, text, postedAt = null, ...message }) => ({
    ...message,
    postedAt,
    text: safeText(text, MESSAGE_CHARS),
    data: JSON.stringify(data),
    ...guardOf(only),
  }));
  const json = JSON.stringify(rows);
  return [
    db
      .prepare(
        `INSERT INTO messages (id, thread, at, author, kind, text, data, posted_at)
         SELECT j.value->>'id', j.value->>'thread',
           max(j.value->>'at', 1 + j.key
             + coalesce((SELECT max(at) FROM messages WHERE thread = j.value->>'thread'), -1)),
           j.value->>'author', j.value->>'kind', j.value->>'text', j.value->>'data', j.value->>'postedAt'
         FROM json_each(?1) j WHERE ${GUARD} ON CONFLICT DO NOTHING RETURNING id`,
      )
      .bind(json),
    db
      .prepare(
        `UPDATE threads SET latest_at = max(latest_at, m.at) FROM messages m
         WHERE m.id IN (SELECT value->>'id' FROM json_each(?1)) AND threads.id = m.thread`,
      )
      .bind(json),
  ];
}

/** Deletes old messages, and threads that have none left: a bounded number of each. */
export function forgetThreads(db: D1Database, now: number): D1PreparedStatement[] {
  const before = now - KEEP_THREADS_MS;
  return [
    db
      .prepare("DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE at < ?1 ORDER BY at, id LIMIT ?2)")
      .bind(before, FORGET_MESSAGES),
    db
      .prepare(
        // The standing ones are few, and would otherwise hold up those behind them.
        `DELETE FROM threads WHERE id IN (SELECT id FROM threads WHERE latest_at < ?1
             AND id NOT IN (SELECT standing_thread FROM schedules WHERE standing_thread IS NOT NULL)
             ORDER BY latest_at, id LIMIT ?2)
           AND NOT EXISTS (SELECT 1 FROM messages WHERE thread = threads.id)`,
      )
      .bind(before, FORGET_THREADS),
  ];
}

/** A thread by its id, or by where it is outside. */
export function findThread(db: D1Database, which: { id: string } | { external: string }): D1PreparedStatement {
  return "id" in which
    ? db.prepare("SELECT * FROM threads WHERE id = ?1").bind(which.id)
    : db.prepare("SELECT * FROM threads WHERE external = ?1").bind(which.external);
}

export interface ThreadRow {
  id: string;
  channel: string;
  title: string;
  opened_at: number;
  opened_by: string;
  latest_at: number;
  external: string | null;
  posting_until: number | null;
}

export interface MessageRow {
  id: string;
  thread: string;
  at: number;
  author: string;
  kind: MessageKind;
  text: string;
  data: string;
  posted_at: number | null;
}

/** One message. */
export function findMessage(db: D1Database, id: string): D1PreparedStatement {
  return db.prepare("SELECT * FROM messages WHERE id = ?1").bind(id);
}

/** A page of threads, latest first, before the given one. */
export function listThreads(
  db: D1Database,
  before: { at: number; id: string } | null,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare("SELECT * FROM threads WHERE (latest_at, id) < (?1, ?2) ORDER BY latest_at DESC, id DESC LIMIT ?3")
    .bind(before?.at ?? Number.MAX_SAFE_INTEGER, before?.id ?? "", limit);
}

/** A page of a thread's messages, oldest first, after the given one. */
export function listMessages(
  db: D1Database,
  thread: string,
  after: { at: number; id: string } | null,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare("SELECT * FROM messages WHERE thread = ?1 AND (at, id) > (?2, ?3) ORDER BY at, id LIMIT ?4")
    .bind(thread, after?.at ?? -1, after?.id ?? "", limit);
}

// Posting outside: one at a time in a thread, and each message once.

/**
 * Takes the right to post a thread's messages outside, until an instant. Nothing while another has it. The instant is
 * the fence: each holder has another.
 */
export function takePosting(db: D1Database, thread: string, now: number, until: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE threads SET posting_until = ?3
       WHERE id = ?1 AND (posting_until IS NULL OR posting_until <= ?2) RETURNING id`,
    )
    .bind(thread, now, until);
}

/** Gives the right back, unless another has it by now. */
export function endPosting(db: D1Database, thread: string, until: number): D1PreparedStatement {
  return db.prepare("UPDATE threads SET posting_until = NULL WHERE id = ?1 AND posting_until = ?2").bind(thread, until);
}

/** Says that a message is outside. */
export function markPosted(db: D1Database, message: string, at: number): D1PreparedStatement {
  return db.prepare("UPDATE messages SET posted_at = ?2 WHERE id = ?1 AND posted_at IS NULL").bind(message, at);
}

/** Says where a thread is outside. The first such place stays, and no two threads have one. */
export function setExternal(db: D1Database, thread: string, external: string): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE threads SET external = ?2
       WHERE id = ?1 AND external IS NULL AND NOT EXISTS (SELECT 1 FROM threads WHERE external = ?2)`,
    )
    .bind(thread, external);
}

/**
 * What is to be posted up to a message, oldest first: itself, and what stands before it back to the last that was
 * posted. Reads no more than that, however long the thread is.
 */
export function unpostedUpTo(
  db: D1Database,
  { thread, at, id }: Pick<MessageRow, "thread" | "at" | "id">,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare(
      `WITH last AS (SELECT at, id FROM messages
         WHERE thread = ?1 AND posted_at IS NOT NULL AND (at, id) < (?2, ?3) ORDER BY at DESC, id DESC LIMIT 1)
       SELECT m.* FROM messages m
       WHERE m.thread = ?1 AND m.posted_at IS NULL AND (m.at, m.id) <= (?2, ?3)
         AND m.at >= coalesce((SELECT at FROM last), -1)
         AND (m.at, m.id) > (coalesce((SELECT at FROM last), -1), coalesce((SELECT id FROM last), ''))
       ORDER BY m.at, m.id LIMIT ?4`,
    )
    .bind(thread, at, id, limit);
}
