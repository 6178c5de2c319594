import { randomUUID } from "node:crypto";
import pg from "pg";
import { expireOverRpc } from "../../src/checkout/rpc.ts";
import { type Rest, startRest } from "./postgrest.node.ts";
import { loadSql, type Postgres } from "./server.node.ts";

/** What all tests here call now, ms. */
export const NOW = Date.UTC(2026, 10, 30, 12, 0, 0);
export const SERVICE_KEY = "the-service-key";
const MINUTE = 60_000;

/** A shop's database with the SQL that ships, and the door that the runtime goes through. */
export interface Shop {
  pool: pg.Pool;
  rest: Rest;
  database: pg.PoolConfig;
  /** Reserved sessions with a reservation each, due `minutes` before {@link NOW}, the first the longest. */
  reserve(count: number, minutes?: number): Promise<string[]>;
  statuses(ids: readonly string[]): Promise<string[]>;
  /** Ids that one keyed batch expired, in the answer's order. */
  expire(key: string, limit?: number): Promise<string[]>;
  /** Likewise, as whoever was there before: a plain statement without a key. */
  expireWithoutKey(limit?: number): Promise<string[]>;
  close(): Promise<void>;
}

export async function openShop(postgres: Postgres, name: string): Promise<Shop> {
  const database = await postgres.createDatabase(name);
  await loadSql(database);
  const pool = new pg.Pool({ ...database, max: 10 });
  const rest = await startRest(database, { [SERVICE_KEY]: "service_role" });
  return {
    pool,
    rest,
    database,
    reserve: async (count, minutes = 60) => {
      const ids = Array.from({ length: count }, () => randomUUID());
      await pool.query(
        `insert into inventory_checkout_sessions (id, ws_id, expires_at)
         select id, gen_random_uuid(), $2::timestamptz + place * interval '1 ms'
         from unnest($1::uuid[]) with ordinality as s (id, place)`,
        [ids, new Date(NOW - minutes * MINUTE)],
      );
      await pool.query(
        `insert into inventory_checkout_reservations (checkout_id, ws_id)
         select s.id, s.ws_id from inventory_checkout_sessions s where s.id = any ($1)`,
        [ids],
      );
      return ids;
    },
    statuses: async (ids) => {
      const { rows } = await pool.query<{ id: string; status: string }>(
        "select id, status from inventory_checkout_sessions where id = any ($1)",
        [ids],
      );
      return ids.map((id) => rows.find((row) => row.id === id)?.status ?? "gone");
    },
    expire: async (key, limit = 1_000) => {
      const answer = await expireOverRpc(
        fetch,
        { url: rest.url, serviceKey: SERVICE_KEY },
        { now: NOW, limit, key },
        20_000,
      );
      if (!answer.ok) throw new Error(`${answer.kind}: ${answer.detail}`);
      return answer.rows.map(({ checkoutId }) => checkoutId);
    },
    expireWithoutKey: async (limit = 1_000) => {
      const { rows } = await pool.query<{ checkout_id: string }>(
        "select checkout_id from expire_inventory_checkout_sessions($1, $2)",
        [new Date(NOW), limit],
      );
      return rows.map((row) => row.checkout_id);
    },
    close: async () => {
      await rest.close();
      await pool.end();
    },
  };
}

/** A transaction left open, with what it holds. */
export async function begin(
  pool: pg.Pool,
  sql: string,
  values: unknown[],
): Promise<{ changed: number; end(how: "commit" | "rollback"): Promise<void> }> {
  const client = await pool.connect();
  await client.query("begin");
  const { rowCount } = await client.query(sql, values);
  return {
    changed: rowCount ?? 0,
    end: async (how) => {
      await client.query(how);
      client.release();
    },
  };
}
