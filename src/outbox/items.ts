import type { Path } from "./topic.ts";

/**
 * Every statement that writes `items`, `item_keys` or `backlog_bounds`. Nothing here runs one: callers put them in
 * their batch. No statement reads a clock.
 *
 * The fence. `(topic, lane, at, seq)` finds a row, `turn` proves that nobody has moved it since: it grows with each
 * move and never returns. A statement with an old fence changes no row, which is an answer, not an error.
 */

/** A row's place and turn, as whoever read it knows it. */
export interface Place {
  topic: string;
  lane: 0 | 1 | 2;
  at: number;
  seq: string;
  turn: number;
}

/** The place of a row that its reader holds the lease of. */
export interface Fence extends Place {
  lane: 1 | 2;
}

/** A row to be born. */
export interface Birth {
  seq: string;
  dueAt: number;
  key: string | null;
  payload: string;
}

/** How a row goes on. `release` gives it back unchanged. */
export interface Move {
  fence: Fence;
  kind: "nextAt" | "retryAt" | "release";
  dueAt: number;
  error: string | null;
  /** Due so soon that it is moved leased, to be sent at once, where the topic's path is open. */
  near: boolean;
  /**
   * The lead of a message that may still land: the move holds only while the lead has not begun, since whoever begins
   * it runs the others on the lease they have. Null: there is no such message.
   */
  lead: ClaimedRow | null;
}

/** A topic as the statements need it: its defaults from the code, under what an operator has set. */
export interface TopicLease {
  topic: string;
  leaseMs: number;
  defaultPath: Path;
}

/** A row that was claimed. */
export interface ClaimedRow {
  at: number;
  seq: string;
  turn: number;
  due_at: number;
  deliveries: number;
  lapses: number;
}

/** A row whose delivery may begin. `superseded` is 1 when its key has gone to a newer item. */
export interface LoadedRow extends ClaimedRow {
  topic: string;
  lane: 1 | 2;
  k: string | null;
  payload: string;
  attempts: number;
  born_at: number;
  superseded: 0 | 1;
}

/** A row of {@link loadLeased}: what it holds, and which of the fences asked for is its own. */
export interface LoadedContent extends Omit<LoadedRow, keyof Place> {
  n: number;
}

/** The newest tick's `now`: leases given outside a tick never count from an earlier instant. */
const LAST_TICK = "coalesce((SELECT at FROM ticks ORDER BY id DESC LIMIT 1), 0)";
export const SUPERSEDED = `(items.k IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM item_keys e WHERE e.topic = items.topic AND e.k = items.k AND e.seq = items.seq)) AS superseded`;
/** What an item is, and what its reader may know already: where its row is. D1's answer is JSON, and bytes of it cost. */
const CONTENT = `due_at, born_at, k, payload, attempts, deliveries, lapses, ${SUPERSEDED}`;
const LOADED = `topic, lane, at, seq, turn, ${CONTENT}`;

/** Characters of JSON in one statement's parameter: D1 takes 2 MB, and a character may count three times. */
const PARAMETER_CHARS = 600_000;

/** What goes into statements as JSON, in parts that each fit one, in order. */
export function inParts<T>(all: readonly T[], charsOf: (one: T) => number): T[][] {
  const parts: T[][] = [];
  let chars = Number.POSITIVE_INFINITY;
  for (const one of all) {
    const size = charsOf(one);
    const last = parts.at(-1);
    if (last === undefined || chars + size > PARAMETER_CHARS) {
      parts.push([one]);
      chars = size;
    } else {
      last.push(one);
      chars += size;
    }
  }
  return parts;
}

/** Refuses the whole batch (CHECK `backlog_full`) when `count` more items would go over the topic's bound. */
export function boundBacklog(db: D1Database, topic: string, count: number, most: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO backlog_bounds (topic, room) SELECT ?1, 0
       WHERE (SELECT count(*) FROM (SELECT 1 FROM items WHERE topic = ?1 LIMIT ?2)) > ?2 - ?3`,
    )
    .bind(topic, most, count);
}

/**
 * Takes the births' keys. `keep` leaves a taken key with its holder, `replace` takes it away (the holder's row is then
 * superseded and never runs again), `refuse` fails the batch (UNIQUE `item_keys.k`).
 */
export function takeKeys(
  db: D1Database,
  topic: string,
  births: string,
  onKey: "keep" | "replace" | "refuse",
  now: number,
): D1PreparedStatement[] {
  const taken = "SELECT ?1, value->>2, value->>0 FROM json_each(?2) WHERE value->>2 IS NOT NULL";
  if (onKey === "refuse") {
    return [
      db
        .prepare(
          `DELETE FROM item_keys WHERE topic = ?1 AND held_until <= ?3
             AND k IN (SELECT value->>2 FROM json_each(?2))`,
        )
        .bind(topic, births, now),
      db.prepare(`INSERT INTO item_keys (topic, k, seq) ${taken}`).bind(topic, births),
    ];
  }
  const free = onKey === "keep" ? "WHERE item_keys.held_until <= ?3" : "";
  const statement = db.prepare(
    `INSERT INTO item_keys (topic, k, seq) ${taken}
     ON CONFLICT (topic, k) DO UPDATE SET seq = excluded.seq, held_until = NULL ${free}`,
  );
  return [onKey === "keep" ? statement.bind(topic, births, now) : statement.bind(topic, births)];
}

/**
 * Rows for the births whose key is theirs. With `sendBefore`, those due before it are born leased and to be sent
 * (lane 1) where the topic's path is an open queue, else ready (lane 0). Answers the rows that were born.
 */
export function bear(
  db: D1Database,
  lease: TopicLease,
  births: string,
  options: { keyed: boolean; now: number; sendBefore: number | null },
): D1PreparedStatement {
  const mine = options.keyed
    ? "LEFT JOIN item_keys e ON e.topic = ?1 AND e.k = j.value->>2 WHERE (j.value->>2 IS NULL OR e.seq = j.value->>0)"
    : "WHERE true";
  if (options.sendBefore === null) {
    return db
      .prepare(
        `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, k, payload)
         SELECT ?1, 0, j.value->>1, j.value->>0, 0, j.value->>1, max(j.value->>1, ?3), j.value->>2, j.value->>3
         FROM json_each(?2) j ${mine}`,
      )
      .bind(lease.topic, births, options.now);
  }
  return db
    .prepare(
      `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, k, payload)
       SELECT ?1, sent, iif(sent, max(due, ?3, ${LAST_TICK}) + ?5, due), seq, sent, due, max(due, ?3), k, payload FROM (
         SELECT j.value->>0 AS seq, j.value->>1 AS due, j.value->>2 AS k, j.value->>3 AS payload,
                (j.value->>1 < ?4 AND coalesce((SELECT path = 'queue' AND paused = 0 FROM topics WHERE topic = ?1), ?6)) AS sent
         FROM json_each(?2) j ${mine})
       WHERE true RETURNING lane, at, seq, turn, due_at, deliveries, lapses`,
    )
    .bind(lease.topic, births, options.now, options.sendBefore, lease.leaseMs, lease.defaultPath === "queue" ? 1 : 0);
}

/** The births as the statements above take them. */
export function birthsJson(births: readonly Birth[]): string {
  return JSON.stringify(births.map(({ seq, dueAt, key, payload }) => [seq, dueAt, key, payload]));
}

/** Who holds each birth's key: read in the same batch, after {@link takeKeys}. */
export function keyHolders(db: D1Database, topic: string, births: string): D1PreparedStatement {
  return db
    .prepare(
      `SELECT j.value->>0 AS asked, e.seq AS holder FROM json_each(?2) j
       CROSS JOIN item_keys e ON e.topic = ?1 AND e.k = j.value->>2`,
    )
    .bind(topic, births);
}

/**
 * Claims up to `limit` rows of a topic in one statement: ready ones due by `ahead`, and leased or running ones whose
 * lease had lapsed by `now`, oldest first. Claims nothing while the topic is paused, goes the other way than `path`
 * (`any` = either), or the pump chain given is not the living one.
 */
export function claim(
  db: D1Database,
  lease: TopicLease,
  options: {
    now: number;
    ahead: number;
    limit: number;
    path: Path | "any";
    load: boolean;
    pump?: { chain: string; step: number };
  },
): D1PreparedStatement {
  const lapsed = (lane: 1 | 2) => `SELECT * FROM (SELECT topic, lane, at, seq FROM items
     WHERE topic = ?1 AND lane = ${lane} AND at <= ?2 ORDER BY at, seq LIMIT ?4)`;
  const { pump } = options;
  const living =
    pump === undefined
      ? ""
      : "AND EXISTS (SELECT 1 FROM pumps WHERE topic = ?1 AND chain = ?8 AND step = ?9 AND until > ?2)";
  const statement = db.prepare(
    `UPDATE items SET lane = 1, at = max(?2, due_at) + ?5, turn = turn + 1, lapses = lapses + (lane > 0)
     WHERE (topic, lane, at, seq) IN (
       SELECT topic, lane, at, seq FROM (
         SELECT * FROM (SELECT topic, lane, at, seq FROM items
           WHERE topic = ?1 AND lane = 0 AND at <= ?3 ORDER BY at, seq LIMIT ?4)
         UNION ALL ${lapsed(1)} UNION ALL ${lapsed(2)})
       ORDER BY at, seq LIMIT ?4)
     AND EXISTS (SELECT 1 FROM (SELECT 1) LEFT JOIN topics t ON t.topic = ?1
       WHERE coalesce(t.paused, 0) = 0 AND (?6 = 'any' OR coalesce(t.path, ?7) = ?6)) ${living}
     RETURNING at, seq, turn, ${options.load ? CONTENT : "due_at, deliveries, lapses"}`,
  );
  const values = [
    lease.topic,
    options.now,
    options.ahead,
    options.limit,
    lease.leaseMs,
    options.path,
    lease.defaultPath,
  ];
  return pump === undefined ? statement.bind(...values) : statement.bind(...values, pump.chain, pump.step);
}

/**
 * Begins messages by moving each one's lead row to lane 2. A message whose lead answers no row is a duplicate or stale.
 * Deliveries are counted here and nowhere else, from an item's first lapse on.
 * @param leads `[fence, running lease in ms]`
 */
export function begin(db: D1Database, leads: readonly [Fence, number][], now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE items SET lane = 2, at = max(?2, ${LAST_TICK}) + (j.value->>4), turn = turn + 1,
         deliveries = deliveries + (lapses > 0)
       FROM json_each(?1) j
       WHERE items.topic = j.value->>0 AND items.lane = 1 AND items.at = j.value->>1
         AND items.seq = j.value->>2 AND items.turn = j.value->>3
       RETURNING ${LOADED}`,
    )
    .bind(JSON.stringify(leads.map(([{ topic, at, seq, turn }, runMs]) => [topic, at, seq, turn, runMs])), now);
}

/** Reads the other rows of begun messages: they keep their key, and with it their fence, so neither is read again. */
export function loadLeased(db: D1Database, fences: readonly Fence[]): D1PreparedStatement {
  return db
    .prepare(
      `SELECT j.key AS n, ${CONTENT}
       FROM json_each(?1) j CROSS JOIN items ON items.topic = j.value->>0 AND items.lane = 1
         AND items.at = j.value->>1 AND items.seq = j.value->>2 AND items.turn = j.value->>3`,
    )
    .bind(JSON.stringify(fences.map(({ topic, at, seq, turn }) => [topic, at, seq, turn])));
}

const fenceJson = ({ topic, lane, at, seq, turn }: Place) => [topic, lane, at, seq, turn];
/** The rows of `items` that the fences in `json_each(?1) j` still hold, as `i`. */
export const HELD = `json_each(?1) j CROSS JOIN items i ON i.topic = j.value->>0 AND i.lane = j.value->>1
  AND i.at = j.value->>2 AND i.seq = j.value->>3 AND i.turn = j.value->>4`;

/** Frees the finished rows' keys, or holds them until the instant given with each. Before {@link finish}, same batch. */
export function freeKeys(db: D1Database, finished: readonly [Place, number | null][]): D1PreparedStatement[] {
  const holders = `(topic, k, seq) IN (SELECT i.topic, i.k, i.seq FROM ${HELD} WHERE i.k IS NOT NULL)`;
  return [...Map.groupBy(finished, ([, heldUntil]) => heldUntil)].map(([heldUntil, some]) => {
    const fences = JSON.stringify(some.map(([fence]) => fenceJson(fence)));
    return heldUntil === null
      ? db.prepare(`DELETE FROM item_keys WHERE ${holders}`).bind(fences)
      : db.prepare(`UPDATE item_keys SET held_until = ?2 WHERE ${holders}`).bind(fences, heldUntil);
  });
}

/** Ends rows: they are done, or their dead letter is written in the same batch. `meta.changes` says how many held. */
export function finish(db: D1Database, fences: readonly Place[]): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM items WHERE (topic, lane, at, seq, turn) IN
         (SELECT value->>0, value->>1, value->>2, value->>3, value->>4 FROM json_each(?1))`,
    )
    .bind(JSON.stringify(fences.map(fenceJson)));
}

/**
 * Moves rows on. Those that are near go straight to lane 1, to be sent, where their topic's path is an open queue;
 * the rest are ready at their due time. Answers the rows that held.
 */
export function move(
  db: D1Database,
  moves: readonly { move: Move; lease: TopicLease }[],
  now: number,
): D1PreparedStatement {
  const rows = moves.map(({ move, lease }) => [
    ...fenceJson(move.fence),
    move.kind,
    move.dueAt,
    move.error,
    move.near ? 1 : 0,
    lease.leaseMs,
    lease.defaultPath === "queue" ? 1 : 0,
    ...(move.lead === null ? [] : [move.lead.at, move.lead.seq, move.lead.turn]),
  ]);
  return db
    .prepare(
      `UPDATE items SET
         lane = m.sent,
         at = iif(m.sent, max(m.due, ?2, ${LAST_TICK}) + m.lease, m.due),
         due_at = m.due,
         turn = items.turn + 1,
         born_at = iif(m.kind = 'nextAt', max(m.due, ?2), items.born_at),
         attempts = CASE m.kind WHEN 'nextAt' THEN 0 WHEN 'retryAt' THEN items.attempts + 1 ELSE items.attempts END,
         deliveries = iif(m.kind = 'release', items.deliveries - (items.lane = 2 AND items.lapses > 0), 0),
         lapses = iif(m.kind = 'release', items.lapses, 0),
         error = CASE m.kind WHEN 'nextAt' THEN NULL WHEN 'retryAt' THEN m.error ELSE items.error END
       FROM (
         SELECT j.value->>0 AS topic, j.value->>1 AS lane, j.value->>2 AS at, j.value->>3 AS seq, j.value->>4 AS turn,
                j.value->>5 AS kind, j.value->>6 AS due, j.value->>7 AS error, j.value->>9 AS lease,
                j.value->>11 AS lead_at, j.value->>12 AS lead_seq, j.value->>13 AS lead_turn,
                (j.value->>8 AND coalesce(t.path = 'queue' AND t.paused = 0, j.value->>10)) AS sent
         FROM json_each(?1) j LEFT JOIN topics t ON t.topic = j.value->>0) m
       WHERE items.topic = m.topic AND items.lane = m.lane AND items.at = m.at AND items.seq = m.seq AND items.turn = m.turn
         AND (m.lead_at IS NULL OR EXISTS (SELECT 1 FROM items l
           WHERE l.topic = m.topic AND l.lane = 1 AND l.at = m.lead_at AND l.seq = m.lead_seq AND l.turn = m.lead_turn))
       RETURNING items.topic, items.lane, items.at, items.seq, items.turn, items.due_at, items.deliveries, items.lapses`,
    )
    .bind(JSON.stringify(rows), now);
}

/** Whether a row of topic ?1 that is due now is sent at once: 1 where the path is an open queue. ?4 is the code's path. */
const SENT_NOW = "coalesce((SELECT path = 'queue' AND paused = 0 FROM topics WHERE topic = ?1), ?4)";
const sentNow = ({ topic, leaseMs, defaultPath }: TopicLease, now: number) =>
  [topic, now, leaseMs, defaultPath === "queue" ? 1 : 0] as const;

/**
 * Makes a ready row due now, and leased, to be sent, where its topic's path is an open queue. One that is due already
 * keeps its instant, and with it its turn. Counts nothing. Answers the row, if it was still where it was read.
 */
export function hasten(db: D1Database, lease: TopicLease, { at, seq, turn }: Place, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE items SET
         lane = m.sent,
         at = iif(m.sent, max(?2, ${LAST_TICK}) + ?3, min(due_at, ?2)),
         due_at = min(due_at, ?2),
         born_at = min(born_at, ?2),
         turn = turn + 1
       FROM (SELECT ${SENT_NOW} AS sent) m
       WHERE topic = ?1 AND items.lane = 0 AND at = ?5 AND seq = ?6 AND turn = ?7
       RETURNING lane, at, seq, turn, due_at, deliveries, lapses`,
    )
    .bind(...sentNow(lease, now), at, seq, turn);
}

/** Of the `[id, seq]` in a JSON parameter, the dead letters of topic ?1 that are still there: as `j` and `l`. */
const buried = (json: string) =>
  `json_each(${json}) j CROSS JOIN dead_letters l ON l.id = j.value->>0 AND l.topic = ?1`;

/**
 * Items out of dead letters, due now: two statements, before the letters are deleted, in the same batch. A letter that
 * is gone, or whose key another item holds, brings no item. The second answers the rows that were born.
 * @param letters `[the letter's id, the new row's seq]`
 */
export function bearAgain(
  db: D1Database,
  lease: TopicLease,
  letters: readonly (readonly [string, string])[],
  now: number,
): D1PreparedStatement[] {
  const json = JSON.stringify(letters);
  const { topic } = lease;
  return [
    db
      .prepare(
        `INSERT INTO item_keys (topic, k, seq)
         SELECT ?1, l.k, j.value->>1 FROM ${buried("?2")} WHERE l.k IS NOT NULL
         ON CONFLICT (topic, k) DO UPDATE SET seq = excluded.seq, held_until = NULL WHERE item_keys.held_until <= ?3`,
      )
      .bind(topic, json, now),
    db
      .prepare(
        `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, k, payload)
         SELECT ?1, m.sent, iif(m.sent, max(?2, ${LAST_TICK}) + ?3, ?2), j.value->>1, m.sent, ?2, ?2, l.k, l.payload
         FROM (SELECT ${SENT_NOW} AS sent) m CROSS JOIN ${buried("?5")}
         WHERE l.k IS NULL OR EXISTS (
           SELECT 1 FROM item_keys e WHERE e.topic = ?1 AND e.k = l.k AND e.seq = j.value->>1)
         RETURNING lane, at, seq, turn, due_at, deliveries, lapses`,
      )
      .bind(...sentNow(lease, now), json),
  ];
}

/** Frees keys whose window has passed, a bounded number a call. */
export function forgetHeldKeys(db: D1Database, now: number, limit: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM item_keys WHERE (topic, k) IN
         (SELECT topic, k FROM item_keys INDEXED BY item_keys_held WHERE held_until <= ?1 LIMIT ?2)`,
    )
    .bind(now, limit);
}
