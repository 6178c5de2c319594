import * as v from "valibot";
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

/** How many deliveries of a day ended how, among its first `most` rows by key. */
export async function countDeliveries(
  db: D1Database,
  day: number,
  most: number,
): Promise<{ outcome: DeliveryOutcome; count: number }[]> {
  const { results } = await db
    .prepare(
      `SELECT outcome, count(*) AS count FROM (SELECT outcome FROM webhook_deliveries WHERE day = ?1 LIMIT ?2)
       GROUP BY outcome`,
    )
    .bind(day, most)
    .all<{ outcome: DeliveryOutcome; count: number }>();
  return results;
}

/** Dead letters of a topic whose endpoint would be called again, oldest first. */
export async function deadLettersToReplay(db: D1Database, topic: string, limit: number): Promise<string[]> {
  const { results } = await db
    .prepare(
      `SELECT l.id FROM dead_letters AS l
         JOIN webhook_endpoints AS e ON e.id = l.payload->>'endpointId' AND e.state = 'active'
       WHERE l.topic = ?1 AND l.reason <> 'malformed' ORDER BY l.died_at, l.id LIMIT ?2`,
    )
    .bind(topic, limit)
    .all<{ id: string }>();
  return results.map(({ id }) => id);
}

function iso(ms: number): string {
  return new Date(ms).toISOString();
}
