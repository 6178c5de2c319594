import * as v from "valibot";
import { type PageQuery, readPage } from "../api/page.ts";
import { listRuns, type RunRow, type RunStatus } from "../commands/runs.ts";
import { listThreads, type MessageRow, type ThreadRow } from "../commands/threads.ts";
import { LEDGER_BOUND } from "../jobs/obligations.ts";
import { type FiringRow, listFirings } from "../schedules/firings.ts";
import { listTicks, parseTick, type TickRow } from "../tick/record.ts";

/** What the panel reads and the API does not. Nothing here writes, and each read is bounded. */

/** Rows of a page of a list. */
export const PAGE_ROWS = 50;
/** The latest ticks that the overview draws: an hour. */
export const TICKS_DRAWN = 60;
/** The latest slots of a job that its strip shows. */
export const STRIP_SLOTS = 60;
/** Changes of a topic that are shown at most. */
const SHOWN_MOST = 20;
/** Of a dead letter's payload, a list reads this much, characters. */
const PAYLOAD_START = 300;

const pageQuery = v.object({
  limit: v.optional(v.literal(PAGE_ROWS), PAGE_ROWS),
  cursor: v.optional(v.pipe(v.string(), v.nonEmpty(), v.maxLength(1_000))),
});

/** The page that an address asks for. */
export function pageOf(url: URL): PageQuery {
  const cursor = url.searchParams.get("cursor");
  const parsed = v.safeParse(pageQuery, cursor === null ? {} : { cursor });
  return parsed.success ? parsed.output : { limit: PAGE_ROWS };
}

/** The latest ticks, the newest first. */
export async function readLatestTicks(db: D1Database): Promise<TickRow[]> {
  const { results } = await listTicks(db, null, TICKS_DRAWN).all();
  return results.flatMap((row) => parseTick(row) ?? []);
}

/** One tick by its id. */
export async function readTick(db: D1Database, id: number): Promise<TickRow | null> {
  const { results } = await listTicks(db, id + 1, 1).all();
  const row = parseTick(results[0]);
  return row?.id === id ? row : null;
}

export interface Ledger {
  job: string;
  owed: number;
  quarantined: number;
  /** Of {@link LEDGER_BOUND}. */
  held: number;
  /** When the batch that is open was opened, ms; null = none. */
  openSince: number | null;
}

/** How full each job's ledger is: at most its bound is read of each. */
export async function readLedgers(db: D1Database, ids: readonly string[]): Promise<Ledger[]> {
  const count = (state: string) =>
    `(SELECT count(*) FROM (SELECT 1 FROM obligations WHERE job = j.value AND state = '${state}' LIMIT ${LEDGER_BOUND}))`;
  const { results } = await db
    .prepare(
      `SELECT j.value AS job, ${count("owed")} AS owed, ${count("quarantined")} AS quarantined,
         (SELECT opened_at FROM expiry_batches WHERE job = j.value AND closed_at IS NULL) AS openSince
       FROM json_each(?1) j`,
    )
    .bind(JSON.stringify(ids))
    .all<Omit<Ledger, "held">>();
  return results.map((row) => ({ ...row, held: row.owed + row.quarantined }));
}

export interface ChangeRow {
  topic: string;
  version: number;
  path: string;
  paused: 0 | 1;
  changed_at: number;
  changed_by: string;
}

/** The latest changes of each of these topics, the newest first. */
export async function readChanges(db: D1Database, topics: readonly string[]): Promise<ChangeRow[]> {
  const { results } = await db
    .prepare(
      `SELECT c.topic, c.version, c.path, c.paused, c.changed_at, c.changed_by FROM json_each(?1) j
       CROSS JOIN topic_changes c ON c.topic = j.value AND c.version IN (
         SELECT version FROM topic_changes WHERE topic = j.value ORDER BY version DESC LIMIT ${SHOWN_MOST})
       ORDER BY c.topic, c.version DESC`,
    )
    .bind(JSON.stringify(topics))
    .all<ChangeRow>();
  return results;
}

export interface StripRow {
  job: string;
  slot: number;
  result: string | null;
  missed: number;
}

/** The latest slots of each job, the oldest first. */
export async function readStrips(db: D1Database, ids: readonly string[]): Promise<StripRow[]> {
  if (ids.length === 0) return [];
  const results = await db.batch<StripRow>(
    ids.map((id) =>
      db
        .prepare(
          `SELECT job, slot, result, missed FROM (SELECT job, slot, result, missed FROM slots
             WHERE job = ?1 ORDER BY slot DESC LIMIT ${STRIP_SLOTS}) ORDER BY slot`,
        )
        .bind(id),
    ),
  );
  return results.flatMap(({ results }) => results);
}

export interface LetterStart {
  id: string;
  start: string;
  length: number;
}

/** How the payloads of these dead letters begin: a page of them whole would be megabytes. */
export async function readPayloadStarts(db: D1Database, ids: readonly string[]): Promise<Map<string, LetterStart>> {
  const { results } = await db
    .prepare(
      `SELECT l.id, substr(l.payload, 1, ${PAYLOAD_START}) AS start, length(l.payload) AS length
       FROM json_each(?1) j CROSS JOIN dead_letters l ON l.id = j.value`,
    )
    .bind(JSON.stringify(ids))
    .all<LetterStart>();
  return new Map(results.map((row) => [row.id, row]));
}

/** One dead letter, whole. */
export function findLetter(db: D1Database, id: string) {
  return db.prepare("SELECT * FROM dead_letters WHERE id = ?1").bind(id).first<{
    id: string;
    topic: string;
    k: string | null;
    payload: string;
    reason: string;
    error: string;
    attempts: number;
    deliveries: number;
    born_at: number;
    died_at: number;
  }>();
}

/** A page of threads, the latest first. */
export function pageOfThreads(db: D1Database, query: PageQuery) {
  const mark = (row: ThreadRow) => ({ at: row.latest_at, tail: row.id });
  return readPage(query, { list: "threads" }, (from, limit) => listThreads(db, from, limit), mark, same<ThreadRow>);
}

/** A page of a thread's messages, the newest first: a standing thread is long, and its end is what is looked for. */
export function pageOfMessages(db: D1Database, thread: string, query: PageQuery) {
  const mark = (row: MessageRow) => ({ at: row.at, tail: row.id });
  const select = (from: { at: number; id: string } | null, limit: number) =>
    db
      .prepare("SELECT * FROM messages WHERE thread = ?1 AND (at, id) < (?2, ?3) ORDER BY at DESC, id DESC LIMIT ?4")
      .bind(thread, from?.at ?? Number.MAX_SAFE_INTEGER, from?.id ?? "", limit);
  return readPage(query, { list: "latest", of: thread }, select, mark, same<MessageRow>);
}

/** A page of runs, the newest first. */
export function pageOfRuns(db: D1Database, query: PageQuery) {
  const mark = (row: RunRow) => ({ at: row.admitted_at, tail: row.id });
  return readPage(query, { list: "runs" }, (from, limit) => listRuns(db, from, limit), mark, same<RunRow>);
}

/** How the runs of these ids stand. */
export async function readRunStates(db: D1Database, ids: readonly string[]): Promise<Map<string, RunStatus>> {
  const { results } = await db
    .prepare("SELECT r.id, r.status FROM json_each(?1) j CROSS JOIN runs r ON r.id = j.value")
    .bind(JSON.stringify(ids))
    .all<{ id: string; status: RunStatus }>();
  return new Map(results.map(({ id, status }) => [id, status]));
}

/** A page of a schedule's firings, the newest first. */
export function pageOfFirings(db: D1Database, schedule: string, query: PageQuery) {
  const mark = (row: FiringRow) => ({ at: row.claimed_at, tail: row.id });
  const select = (from: { at: number; id: string } | null, limit: number) => listFirings(db, schedule, from, limit);
  return readPage(query, { list: "firings", of: schedule }, select, mark, same<FiringRow>);
}

const same = <Row>(row: Row): Row => row;
