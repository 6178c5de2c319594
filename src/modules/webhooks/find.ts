import * as v from "valibot";
import type { Context, Topic } from "../../index.ts";
import type { DeliveryOutcome, DeliveryRow } from "./store.ts";

/** What is read of the module's tables. */

const endpointRow = v.pipe(
  v.object({
    id: v.string(),
    url: v.string(),
    state: v.picklist(["active", "gone", "removed"]),
    secret: v.nullable(v.string()),
    old_secret: v.nullable(v.string()),
    old_secret_until: v.nullable(v.number()),
  }),
  v.transform(({ old_secret, old_secret_until, ...row }) => ({
    ...row,
    /** The one before, while receivers may still hold it. `until` in ms. */
    old: old_secret === null ? null : { secret: old_secret, until: old_secret_until ?? 0 },
  })),
);

/** An endpoint as a delivery needs it. */
export type Endpoint = v.InferOutput<typeof endpointRow>;

/** Null: no such endpoint, and there never was. */
export async function readEndpoint(db: D1Database, id: string): Promise<Endpoint | null> {
  const row = await db
    .prepare("SELECT id, url, state, secret, old_secret, old_secret_until FROM webhook_endpoints WHERE id = ?1")
    .bind(id)
    .first();
  return row === null ? null : v.parse(endpointRow, row);
}

/** The active endpoints that hear of such an event. */
export async function endpointsFor(db: D1Database, type: string, subject: string | null): Promise<string[]> {
  const hears = "state = 'active' AND EXISTS (SELECT 1 FROM json_each(events) WHERE value IN ('*', ?1))";
  const { results } = await db
    .prepare(
      `SELECT id FROM webhook_endpoints WHERE subject IS NULL AND ${hears}
       UNION ALL SELECT id FROM webhook_endpoints WHERE subject = ?2 AND ${hears}`,
    )
    .bind(type, subject)
    .all<{ id: string }>();
  return results.map(({ id }) => id);
}

export interface EndpointView {
  id: string;
  url: string;
  events: unknown;
  subject: string | null;
  state: string;
  createdAt: string;
  endedAt: string | null;
}

/** Endpoints by id, from after `cursor`. Never a secret. */
export async function listEndpoints(db: D1Database, cursor: string, limit: number): Promise<EndpointView[]> {
  const { results } = await db
    .prepare(
      `SELECT id, url, events, subject, state, created_at, ended_at FROM webhook_endpoints
       WHERE id > ?1 ORDER BY id LIMIT ?2`,
    )
    .bind(cursor, limit)
    .all<{
      id: string;
      url: string;
      events: string;
      subject: string | null;
      state: string;
      created_at: number;
      ended_at: number | null;
    }>();
  return results.map(({ created_at, ended_at, events, ...row }) => ({
    ...row,
    events: JSON.parse(events) as unknown,
    createdAt: iso(created_at),
    endedAt: ended_at === null ? null : iso(ended_at),
  }));
}

/** An event's deliveries, oldest first, from after `cursor`. A seek for each day that is kept. */
export async function listDeliveries(
  db: D1Database,
  eventId: string,
  days: { from: number; to: number },
  cursor: { at: number; item: string },
  limit: number,
): Promise<Omit<DeliveryRow, "eventId">[]> {
  const each = Array.from({ length: days.to - days.from + 1 }, (_, index) => days.from + index);
  const { results } = await db
    .prepare(
      `SELECT w.at, w.item, w.endpoint_id AS endpointId, w.attempt, w.outcome, w.status, w.ms, w.error, w.response
       FROM json_each(?1) AS d CROSS JOIN webhook_deliveries AS w ON w.day = d.value AND w.event_id = ?2
       WHERE (w.at, w.item) > (?3, ?4) ORDER BY w.at, w.item LIMIT ?5`,
    )
    .bind(JSON.stringify(each), eventId, cursor.at, cursor.item, limit)
    .all<Omit<DeliveryRow, "eventId">>();
  return results;
}

export interface Summary {
  counts: Record<DeliveryOutcome, number>;
  /** Rows that were read: as many as may be means that there may be more. */
  read: number;
  /** Endpoints by how many of their deliveries failed, most first. `lastError` is of the latest. */
  worst: {
    endpointId: string;
    url: string | null;
    failed: number;
    dead: number;
    lastAt: string;
    lastStatus: number | null;
    lastError: string | null;
  }[];
}

/**
 * What deliveries came to since `since` (ms), and the `top` endpoints that failed most, among the `most` rows of the
 * latest days.
 */
export async function summarizeDeliveries(
  db: D1Database,
  since: number,
  days: { from: number; to: number },
  most: number,
  top: number,
): Promise<Summary> {
  // The order is the key's own, from its end: no row is sorted, and the newest days are read first.
  const seen = `WITH seen AS (SELECT endpoint_id, at, outcome, status, error FROM webhook_deliveries
    WHERE day BETWEEN ?1 AND ?2 ORDER BY day DESC, event_id DESC, at DESC, item DESC LIMIT ?3)`;
  const outcomes = ["delivered", "retried", "dead", "dropped"] as const;
  const counts = outcomes.map((outcome) => `count(*) FILTER (WHERE at >= ?4 AND outcome = '${outcome}') AS ${outcome}`);
  const [counted, failing] = await db.batch([
    db.prepare(`${seen} SELECT count(*) AS read, ${counts.join(", ")} FROM seen`).bind(days.from, days.to, most, since),
    // Beside the one max(), the bare columns are those of its row: the latest failure.
    db
      .prepare(
        `${seen}, failing AS (SELECT endpoint_id, count(*) AS failed, count(*) FILTER (WHERE outcome = 'dead') AS dead,
             max(at) AS last_at, status, error
           FROM seen WHERE at >= ?4 AND outcome IN ('retried', 'dead')
           GROUP BY endpoint_id ORDER BY failed DESC, endpoint_id LIMIT ?5)
         SELECT f.endpoint_id AS endpointId, e.url, f.failed, f.dead, f.last_at AS lastAt, f.status AS lastStatus,
           f.error AS lastError
         FROM failing AS f LEFT JOIN webhook_endpoints AS e ON e.id = f.endpoint_id
         ORDER BY f.failed DESC, f.endpoint_id`,
      )
      .bind(days.from, days.to, most, since, top),
  ]);
  const row = v.parse(countsRow, counted?.results[0]);
  const worst = v.parse(v.array(failingRow), failing?.results);
  const { read, ...byOutcome } = row;
  return { counts: byOutcome, read, worst };
}

const countsRow = v.object({
  read: v.number(),
  delivered: v.number(),
  retried: v.number(),
  dead: v.number(),
  dropped: v.number(),
});

const failingRow = v.object({
  endpointId: v.string(),
  url: v.nullable(v.string()),
  failed: v.number(),
  dead: v.number(),
  lastAt: v.pipe(v.number(), v.transform(iso)),
  lastStatus: v.nullable(v.number()),
  lastError: v.nullable(v.string()),
});

/** Pages of dead letters that one replay looks through. */
const REPLAY_PAGES = 10;
const REPLAY_PAGE = 200;

/** Dead letters of a topic whose endpoint would be called again, the newest first. Reads a bounded number of them. */
export async function deadLettersToReplay(
  { db, outbox }: Pick<Context, "db" | "outbox">,
  topic: Topic,
  limit: number,
): Promise<string[]> {
  const found: string[] = [];
  let cursor: string | null = null;
  for (let pages = 0; pages < REPLAY_PAGES && found.length < limit; pages += 1) {
    const page = await outbox.deadLetters(topic, { limit: REPLAY_PAGE, ...(cursor !== null && { cursor }) });
    const letters = page.items
      .filter(({ reason }) => reason !== "malformed")
      .map(({ id, payload }) => ({ id, endpoint: (payload as { endpointId: string }).endpointId }));
    const active = await activeOf(
      db,
      letters.map(({ endpoint }) => endpoint),
    );
    found.push(...letters.filter(({ endpoint }) => active.has(endpoint)).map(({ id }) => id));
    cursor = page.nextCursor;
    if (cursor === null) break;
  }
  return found.slice(0, limit);
}

async function activeOf(db: D1Database, endpoints: readonly string[]): Promise<Set<string>> {
  const { results } = await db
    .prepare("SELECT id FROM webhook_endpoints WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'active'")
    .bind(JSON.stringify(endpoints))
    .all<{ id: string }>();
  return new Set(results.map(({ id }) => id));
}

function iso(ms: number): string {
  return new Date(ms).toISOString();
}
