import { type Refusal, refuse } from "../core/errors.ts";
import { readCursor, writeCursor } from "./cursor.ts";
import { type Place, SUPERSEDED } from "./items.ts";
import { leaseOf, type Runtime } from "./runtime.ts";
import { parseItemId } from "./seq.ts";
import type { Path, Topic } from "./topic.ts";

/**
 * What an operator reads of the outbox. Nothing here writes. Each read is bounded, however many rows there are.
 *
 * `items` has no index besides its key, and an id holds no place: it holds the topic and when the item was first due.
 * So an item is looked for where it was born, then in the first rows of each lane.
 */

/** Rows of each lane that are looked through for an id. */
export const LOOK_THROUGH = 20_000;
/** Dead letters that one page of a filtered list reads. */
export const LETTERS_READ = 2_000;

/** Where a living row stands, in words: its lane. */
export const laneOf = { ready: 0, leased: 1, running: 2 } as const;
export type Living = keyof typeof laneOf;

/** A row of `items`, without its payload. */
export interface FoundRow extends Place {
  due_at: number;
  k: string | null;
  attempts: number;
  deliveries: number;
  lapses: number;
  error: string | null;
  /** 1: a newer item has taken its key. */
  superseded: 0 | 1;
}

/** A row of `dead_letters`. */
export interface LetterRow {
  id: string;
  topic: string;
  k: string | null;
  payload: string;
  reason: string;
  error: string;
  attempts: number;
  deliveries: number;
  died_at: number;
}

/** How a topic goes, and when the last tick began: what explains a row. */
export interface Going {
  path: Path;
  paused: boolean;
  lastTickAt: number | null;
}

export type Found = { row: FoundRow } | { letter: LetterRow };
export type FindAnswer = ({ ok: true } & Found) | Refusal<"no_item" | "item_moved">;

const COLUMNS = `items.topic, items.lane, items.at, items.seq, items.turn, items.due_at, items.k, items.attempts,
  items.deliveries, items.lapses, items.error, ${SUPERSEDED}`;

export type RowsAnswer = { ok: true; rows: FoundRow[]; nextCursor: string | null } | Refusal<"bad_arguments">;

/** A page of a topic's items in one state, by their instant: when they are due, or when their lease ends. */
export async function pageOfRows(
  db: D1Database,
  topic: string,
  state: Living,
  { limit, cursor }: { limit: number; cursor?: string | undefined },
): Promise<RowsAnswer> {
  const after = cursor === undefined ? { at: -1, tail: "" } : readCursor(state, topic, cursor);
  if (after === null) return refuse("bad_arguments", "cursor", "not a cursor of this list");
  const { results } = await db
    .prepare(
      `SELECT ${COLUMNS} FROM items WHERE topic = ?1 AND lane = ?2 AND (at, seq) > (?3, ?4) ORDER BY at, seq LIMIT ?5`,
    )
    .bind(topic, laneOf[state], after.at, after.tail, limit + 1)
    .all<FoundRow>();
  const rows = results.slice(0, limit);
  const last = results.length > limit ? rows.at(-1) : undefined;
  const nextCursor = last === undefined ? null : writeCursor(state, topic, { at: last.at, tail: last.seq });
  return { ok: true, rows, nextCursor };
}

/** Who holds a key: the seq of a living item, or of one whose key is only held for its window. */
export async function readKeyHolder(db: D1Database, topic: string, key: string): Promise<string | null> {
  const row = await db
    .prepare("SELECT seq FROM item_keys WHERE topic = ?1 AND k = ?2 AND held_until IS NULL")
    .bind(topic, key)
    .first<{ seq: string }>();
  return row?.seq ?? null;
}

/**
 * Finds an item by its id, or by its `place` of a list: alive or dead. One that has moved since it was born is looked
 * for in the first {@link LOOK_THROUGH} rows of each lane; beyond them `item_moved` says so.
 */
export async function findItem(db: D1Database, runtime: Runtime, text: string): Promise<FindAnswer> {
  const none = () => refuse("no_item", "id", `there is no item ${text}: it is done, or there never was one`);
  const parsed = parseItemId(text);
  // A dead letter may have been put there by hand, under an id of any form.
  const id = parsed?.id ?? text;
  const { topic = "", seq = "" } = parsed ?? {};
  const known = runtime.topics.get(topic);
  const born = parsed?.dueAt ?? 0;
  const leaseMs = known === undefined ? 0 : leaseOf(runtime, known).leaseMs;
  const probes = [
    [laneOf.ready, born],
    [laneOf.leased, born + leaseMs],
    ...(parsed?.hint ? [[parsed.hint.lane, parsed.hint.at]] : []),
  ];
  const [near, letter] = await db.batch<never>([rowsAt(db, topic, seq, probes), letterById(db, id)]);
  const found = foundIn(near, letter);
  if (found !== null) return { ok: true, ...found };
  if (parsed === null) return none();

  // It may move between the two calls: then it is looked for once more.
  for (let turn = 0; turn < 2; turn += 1) {
    const [lanes, dead] = await db.batch<never>([lookThrough(db, topic, seq), letterById(db, id)]);
    const buried = foundIn(undefined, dead);
    if (buried !== null) return { ok: true, ...buried };
    const seen = (lanes?.results ?? []) as { lane: number; read: number; at: number | null }[];
    const place = seen.find(({ at }) => at !== null);
    if (place === undefined) {
      const all = seen.every(({ read }) => read < LOOK_THROUGH);
      return all ? none() : moved(text);
    }
    const row = foundIn(await rowsAt(db, topic, seq, [[place.lane, place.at ?? 0]]).all<never>(), undefined);
    if (row !== null) return { ok: true, ...row };
  }
  return moved(text);
}

function moved(id: string): Refusal<"item_moved"> {
  return refuse(
    "item_moved",
    "id",
    `${id} is not where it was born, and there are too many rows to look for it: list the topic by state, and give the place that the list shows`,
  );
}

function foundIn(rows: D1Result<never> | undefined, letters: D1Result<never> | undefined): Found | null {
  const row = rows?.results[0] as FoundRow | undefined;
  if (row !== undefined) return { row };
  const letter = letters?.results[0] as LetterRow | undefined;
  return letter === undefined ? null : { letter };
}

/** @param places `[lane, at]` */
function rowsAt(db: D1Database, topic: string, seq: string, places: readonly (readonly number[])[]) {
  return db
    .prepare(
      `SELECT ${COLUMNS} FROM json_each(?3) j CROSS JOIN items
         ON items.topic = ?1 AND items.lane = j.value->>0 AND items.at = j.value->>1 AND items.seq = ?2 LIMIT 1`,
    )
    .bind(topic, seq, JSON.stringify(places));
}

/** Of each lane: how many rows were read, and where the row with that seq is. Reads no more than the key. */
function lookThrough(db: D1Database, topic: string, seq: string): D1PreparedStatement {
  const lane = (lane: number) =>
    `SELECT ${lane} AS lane, count(*) AS read, max(iif(seq = ?2, at, NULL)) AS at FROM
       (SELECT at, seq FROM items WHERE topic = ?1 AND lane = ${lane} ORDER BY at, seq LIMIT ?3)`;
  return db.prepare([2, 1, 0].map(lane).join(" UNION ALL ")).bind(topic, seq, LOOK_THROUGH);
}

function letterById(db: D1Database, id: string): D1PreparedStatement {
  return db
    .prepare(
      "SELECT id, topic, k, payload, reason, error, attempts, deliveries, died_at FROM dead_letters WHERE id = ?1",
    )
    .bind(id);
}

/** What a page of dead letters is asked for. */
export interface LettersAsked {
  limit: number;
  /** The `nextCursor` of the page before. */
  cursor?: string | undefined;
  reason?: string | undefined;
  key?: string | undefined;
  /** Payloads are not read: they are answered empty. */
  bare?: boolean;
}

export type LettersAnswer = { ok: true; letters: LetterRow[]; nextCursor: string | null } | Refusal<"bad_arguments">;

/**
 * A page of a topic's dead letters, the newest first. With a filter it reads at most {@link LETTERS_READ} of them and
 * then answers what it has, which may be nothing, with a cursor.
 */
export async function pageOfLetters(db: D1Database, topic: string, asked: LettersAsked): Promise<LettersAnswer> {
  const { limit, cursor, reason = null, key = null, bare = false } = asked;
  const after = cursor === undefined ? { at: Number.MAX_SAFE_INTEGER, tail: "" } : readCursor("dead", topic, cursor);
  if (after === null) return refuse("bad_arguments", "cursor", "not a cursor of this list");
  const filtered = reason !== null || key !== null;
  const most = filtered ? LETTERS_READ : limit + 1;
  const from = [topic, after.at, after.tail, most] as const;
  const read = `SELECT id, died_at FROM dead_letters WHERE topic = ?1 AND (died_at, id) < (?2, ?3)
    ORDER BY died_at DESC, id DESC LIMIT ?4`;
  const page = db
    .prepare(
      `SELECT l.id, l.topic, l.k, iif(?8, '', l.payload) AS payload, l.reason, l.error, l.attempts,
         l.deliveries, l.died_at FROM (
         SELECT r.id FROM (${read}) r CROSS JOIN dead_letters m ON m.id = r.id
         WHERE (?5 IS NULL OR m.reason = ?5) AND (?6 IS NULL OR m.k = ?6)
         ORDER BY r.died_at DESC, r.id DESC LIMIT ?7) p
       CROSS JOIN dead_letters l ON l.id = p.id ORDER BY l.died_at DESC, l.id DESC`,
    )
    .bind(...from, reason, key, limit + 1, bare ? 1 : 0);
  // The last row that it reads, when there are as many: in the same transaction, so that both speak of the same rows.
  const end = db.prepare(`SELECT id, died_at FROM (${read}) LIMIT 1 OFFSET ?4 - 1`).bind(...from);
  const [letters, ended] = await db.batch<never>(filtered ? [page, end] : [page]);
  const rows = (letters?.results ?? []) as LetterRow[];
  const shown = rows.slice(0, limit);
  const stop = ended?.results[0] as Pick<LetterRow, "id" | "died_at"> | undefined;
  const last = rows.length > limit ? shown.at(-1) : stop;
  const nextCursor = last === undefined ? null : writeCursor("dead", topic, { at: last.died_at, tail: last.id });
  return { ok: true, letters: shown, nextCursor };
}

/** How a topic goes, for explanations. */
export async function readGoing(db: D1Database, runtime: Runtime, name: string): Promise<Going> {
  const topic: Topic | undefined = runtime.topics.get(name);
  const row = await db
    .prepare(
      `SELECT t.path, coalesce(t.paused, 0) AS paused, (SELECT started_at FROM ticks ORDER BY id DESC LIMIT 1) AS ticked
       FROM (SELECT 1) LEFT JOIN topics t ON t.topic = ?1`,
    )
    .bind(name)
    .first<{ path: Path | null; paused: 0 | 1; ticked: number | null }>();
  const stored = row?.path ?? topic?.options.path ?? "queue";
  // Where there is no queue everything is drained, whatever is stored.
  const path = topic !== undefined && runtime.queue(topic) === null ? "drain" : stored;
  return { path, paused: row?.paused === 1, lastTickAt: row?.ticked ?? null };
}
