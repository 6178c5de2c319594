/** Every statement that writes `webhook_endpoints` or `webhook_deliveries`. No statement reads a clock. */

/** The log's unit of age, ms. */
const DAY_MS = 86_400_000;

export function insertEndpoint(
  db: D1Database,
  endpoint: { id: string; url: string; events: readonly string[]; subject: string | null; secret: string; now: number },
): D1PreparedStatement {
  const { id, url, events, subject, secret, now } = endpoint;
  return db
    .prepare(
      `INSERT INTO webhook_endpoints (id, url, events, subject, secret, state, created_at)
       VALUES (?1, ?2, ?3, ?4, ?5, 'active', ?6)`,
    )
    .bind(id, url, JSON.stringify(events), subject, secret, now);
}

/** Takes an endpoint away, once or again. False: no such endpoint. */
export async function removeEndpoint(db: D1Database, id: string, now: number): Promise<boolean> {
  const { meta } = await db
    .prepare(
      `UPDATE webhook_endpoints SET state = 'removed', ended_at = coalesce(ended_at, ?2),
         secret = NULL, old_secret = NULL, old_secret_until = NULL
       WHERE id = ?1`,
    )
    .bind(id, now)
    .run();
  return meta.changes > 0;
}

/** Gives an endpoint a new secret; the present one stays valid until `oldUntil` (null: not at all). False: not active. */
export async function rotateSecret(
  db: D1Database,
  id: string,
  secret: string,
  oldUntil: number | null,
): Promise<boolean> {
  const { meta } = await db
    .prepare(
      `UPDATE webhook_endpoints SET secret = ?2, old_secret = iif(?3 IS NULL, NULL, secret), old_secret_until = ?3
       WHERE id = ?1 AND state = 'active'`,
    )
    .bind(id, secret, oldUntil)
    .run();
  return meta.changes > 0;
}

/** Ends the endpoints that answered 410. */
export function markGone(db: D1Database, ids: readonly string[], now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE webhook_endpoints SET state = 'gone', ended_at = ?2,
         secret = NULL, old_secret = NULL, old_secret_until = NULL
       WHERE id IN (SELECT value FROM json_each(?1)) AND state = 'active'`,
    )
    .bind(JSON.stringify(ids), now);
}

/** What a delivery came to: `retried` will be tried again, `dropped` had no endpoint any more. */
export type DeliveryOutcome = "delivered" | "retried" | "dead" | "dropped";

export interface DeliveryRow {
  eventId: string;
  /** ms */
  at: number;
  item: string;
  endpointId: string;
  attempt: number;
  outcome: DeliveryOutcome;
  /** Null: no answer, or not called. */
  status: number | null;
  ms: number;
  error: string | null;
  response: string | null;
}

/** One statement however many rows. A row that is there already is left as it is. */
export function logDeliveries(db: D1Database, rows: readonly DeliveryRow[]): D1PreparedStatement {
  const values = rows.map((row) => [
    dayOf(row.at),
    row.eventId,
    row.at,
    row.item,
    row.endpointId,
    row.attempt,
    row.outcome,
    row.status,
    row.ms,
    row.error,
    row.response,
  ]);
  return db
    .prepare(
      `INSERT INTO webhook_deliveries
         (day, event_id, at, item, endpoint_id, attempt, outcome, status, ms, error, response)
       SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8,
              value->>9, value->>10
       FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING`,
    )
    .bind(JSON.stringify(values));
}

/** Deletes up to `most` rows of days before `day`. Answers how many. */
export async function expireDeliveries(db: D1Database, day: number, most: number): Promise<number> {
  const { meta } = await db
    .prepare(
      `DELETE FROM webhook_deliveries WHERE (day, event_id, at, item) IN
         (SELECT day, event_id, at, item FROM webhook_deliveries WHERE day < ?1 LIMIT ?2)`,
    )
    .bind(day, most)
    .run();
  return meta.changes;
}

/** The UTC day of an instant, counted from 1970. */
export function dayOf(ms: number): number {
  return Math.floor(ms / DAY_MS);
}
