import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { expireOverRpc } from "../../src/checkout/rpc.ts";
import { startRest } from "./postgrest.node.ts";
import { loadSql, once, type Postgres, startPostgres } from "./server.node.ts";

let postgres: Postgres;

beforeAll(async () => {
  postgres = await startPostgres();
});
afterAll(() => postgres?.stop());

const CALL = "select * from public.expire_inventory_checkout_sessions(now())";

/** Runs statements in a role; what PostgreSQL made of it. */
async function as(database: pg.PoolConfig, role: string, sql: string): Promise<string> {
  return once(database, `set role ${role}; ${sql}`).then(
    () => "done",
    (error: pg.DatabaseError) => error.code ?? String(error),
  );
}

describe("on a bare server", () => {
  test("the role is made, it may expire, and nobody else may", async () => {
    const database = await postgres.createDatabase("bare");
    await loadSql(database);
    await once(database, "create role passer_by");
    expect(await as(database, "service_role", CALL)).toBe("done");
    expect(await as(database, "passer_by", CALL)).toBe("42501");
  });

  test("the role reaches the tables by the function only", async () => {
    const database = await postgres.createDatabase("tables");
    await loadSql(database);
    for (const table of ["sessions", "reservations", "batches"]) {
      expect(await as(database, "service_role", `select from public.inventory_checkout_${table}`)).toBe("42501");
    }
  });
});

describe("on a server whose schema hands everything to everybody", () => {
  test("the function and the tables are closed all the same", async () => {
    const database = await postgres.createDatabase("hosted");
    await once(
      database,
      `create role anon; create role authenticated;
       alter default privileges in schema public grant all on functions to anon, authenticated;
       alter default privileges in schema public grant all on tables to anon, authenticated`,
    );
    await loadSql(database);
    await once(
      database,
      `insert into inventory_checkout_sessions (ws_id, expires_at) values (gen_random_uuid(), now());
       do $$ begin
         if not has_table_privilege('anon', 'inventory_checkout_sessions', 'select') then raise 'not handed out'; end if;
       end $$`,
    );
    for (const role of ["anon", "authenticated"]) {
      expect(await as(database, role, CALL)).toBe("42501");
      const rows = "if exists (select from public.inventory_checkout_sessions) then raise 'seen'; end if;";
      expect(await as(database, role, `do $$ begin ${rows} end $$`)).toBe("done");
    }
    expect(await as(database, "service_role", CALL)).toBe("done");
  });

  test("over HTTP another key is refused, and the refusal says which code and no key", async () => {
    const database = await postgres.createDatabase("http");
    await loadSql(database);
    await once(database, "create role visitor");
    const rest = await startRest(database, { "visitors-key": "visitor" });
    const batch = { now: Date.now(), limit: 10, key: "a" };
    const ask = (serviceKey: string) => expireOverRpc(fetch, { url: rest.url, serviceKey }, batch, 20_000);
    expect(await ask("visitors-key")).toEqual({ ok: false, kind: "refused", detail: "answered 403 (42501)" });
    expect(await ask("wrong-key")).toEqual({ ok: false, kind: "refused", detail: "answered 401 (PGRST301)" });
    await rest.close();
  });
});

describe("the function", () => {
  test("looks nothing up in a caller's schema", async () => {
    const database = await postgres.createDatabase("pinned");
    await loadSql(database);
    await once(database, "create schema trap; create table trap.inventory_checkout_sessions (id uuid)");
    await once(database, "grant usage on schema trap to service_role");
    expect(await as(database, "service_role", `set search_path = trap, public; ${CALL}`)).toBe("done");
  });

  test("is not put beside another of its name: its file says so and changes nothing", async () => {
    const database = await postgres.createDatabase("taken");
    await once(
      database,
      "create function public.expire_inventory_checkout_sessions(timestamptz, integer, uuid) returns void language sql as ''",
    );
    await expect(loadSql(database)).rejects.toThrow("exists with other parameters");
    const functions = "select from pg_proc where proname = 'expire_inventory_checkout_sessions'";
    expect(await once(database, functions)).toBe(1);
    expect(await once(database, "select from pg_tables where tablename = 'inventory_checkout_batches'")).toBe(0);
  });
});
