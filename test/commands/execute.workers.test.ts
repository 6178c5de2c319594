import * as v from "valibot";
import { beforeAll, describe, expect, test } from "vitest";
import type { Actor } from "../../src/commands/actor.ts";
import type { Registered } from "../../src/commands/define.ts";
import { execute } from "../../src/commands/execute.ts";
import { createRegistry } from "../../src/commands/registry.ts";
import { createMeter } from "../../src/db/meter.ts";
import { meterDb } from "../../src/db/client.ts";
import { readOnlyDb } from "../../src/db/read-only.ts";
import { command, type Context, defineModule, done, topic } from "../../src/index.ts";
import { createWorld, DB } from "../outbox/world.ts";

describe("a database that only reads", () => {
  beforeAll(async () => {
    await DB.exec("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)");
    await DB.exec("DELETE FROM notes");
    await DB.exec("INSERT INTO notes VALUES (1, 'one')");
  });

  const reads = [
    "SELECT * FROM notes",
    "  select text from notes -- DELETE FROM notes\n WHERE id = ?1",
    "/* INSERT INTO */ SELECT 'DELETE; DROP TABLE notes', \"text\" FROM [notes]; ",
    "VALUES (1), (2)",
    "WITH few AS (SELECT * FROM notes LIMIT 1) SELECT * FROM few",
    'WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 3), "delete" AS (SELECT 1) SELECT * FROM n',
    "SELECT replace(text, 'o', '0') FROM notes",
    "SELECT 1; SELECT 2",
  ];
  test.each(reads)("prepares %s", (sql) => {
    expect(() => readOnlyDb(DB).prepare(sql)).not.toThrow();
  });

  const writes: [string, string][] = [
    ["INSERT INTO notes VALUES (2, 'two')", "INSERT"],
    ["-- SELECT\n/* SELECT */ update notes SET text = 'x'", "UPDATE"],
    ["DELETE FROM notes", "DELETE"],
    ["REPLACE INTO notes VALUES (1, 'x')", "REPLACE"],
    ["WITH a AS (SELECT 1) INSERT INTO notes SELECT 5, 'x'", "INSERT"],
    [
      "WITH a(x) AS (SELECT ')'), b AS MATERIALIZED (SELECT 2) DELETE FROM notes WHERE id IN (SELECT x FROM a)",
      "DELETE",
    ],
    ["WITH \"SELECT\" AS (SELECT 1) UPDATE notes SET text = 'x'", "UPDATE"],
    ["WITH [SELECT] AS (SELECT 1), éSELECT AS (SELECT 1) UPDATE notes SET text = 'x'", "UPDATE"],
    ["PRAGMA user_version = 5", "PRAGMA"],
    ["DROP TABLE notes", "DROP"],
    ["CREATE TABLE other AS SELECT 1", "CREATE"],
    ["EXPLAIN DELETE FROM notes", "EXPLAIN"],
    ["BEGIN; DELETE FROM notes; COMMIT", "BEGIN"],
    ["SELECT 1; DELETE FROM notes", "DELETE"],
    ["SELECT ';'; /* ; */ DELETE FROM notes", "DELETE"],
    ["SELECT 'it''s'; DELETE FROM notes", "DELETE"],
    ["SELECT $a('); DELETE FROM notes; --'", "DELETE"],
    ["WITH a AS (SELECT 1)", "WITH"],
    ["", "nothing"],
    ["-- nothing", "nothing"],
  ];
  test.each(writes)("refuses %s, naming %s", async (sql, word) => {
    expect(() => readOnlyDb(DB).prepare(sql)).toThrow(
      expect.objectContaining({ code: "read_command_writes", field: word, message: expect.stringContaining(word) }),
    );
    expect(() => readOnlyDb(DB).withSession("first-primary").prepare(sql)).toThrow(/writes/);
    expect(() => readOnlyDb(DB).exec(sql)).toThrow(/writes/);
    expect(await DB.prepare("SELECT count(*) AS n FROM notes").first("n")).toBe(1);
  });

  test("refuses exec even of what reads", () => {
    expect(() => readOnlyDb(DB).exec("SELECT 1")).toThrow(/writes/);
  });

  test("prepares real statements: they stand in a batch, and are metered", async () => {
    const meter = createMeter();
    const db = readOnlyDb(meterDb(DB, meter));
    const [first, second] = await db.batch<{ n: number }>([
      db.prepare("SELECT count(*) AS n FROM notes"),
      DB.prepare("SELECT ?1 AS n").bind(7),
    ]);
    expect([first?.results, second?.results]).toEqual([[{ n: 1 }], [{ n: 7 }]]);
    expect(await db.prepare("SELECT text FROM notes WHERE id = ?1").bind(1).first("text")).toBe("one");
    expect(meter).toMatchObject({ calls: 2, queries: 3 });
    expect(await db.withSession().prepare("SELECT 1 AS n").first("n")).toBe(1);
  });
});

describe("a command", () => {
  const work = topic("shop.work", { schema: v.object({ n: v.number() }), handle: async () => done() });
  const handlers: Record<string, (ctx: Context, n: number) => Promise<unknown>> = {
    look: async (ctx) => (await ctx.db.prepare("SELECT 1 AS one").all()).results,
    enqueue: (ctx, n) => ctx.db.batch(ctx.outbox.enqueue(work, [{ payload: { n } }])),
    "enqueue-now": (ctx, n) => ctx.outbox.enqueueNow(work, [{ payload: { n } }]),
    drain: (ctx) => ctx.outbox.drainWithin(work, ctx.budget, { limit: 5 }),
    replay: (ctx) => ctx.outbox.replay("letter"),
    swallow: (ctx) =>
      ctx.db
        .prepare("DELETE FROM items")
        .run()
        .catch(() => "nothing happened"),
    "swallow-at-once": async (ctx) => {
      try {
        return ctx.db.prepare("DELETE FROM items").run();
      } catch {
        return "nothing happened";
      }
    },
    break: async () => {
      throw new Error("broken inside");
    },
  };
  const shop = defineModule("shop", {
    topics: [work],
    commands: (["read", "exec"] as const).flatMap((effect) =>
      Object.entries(handlers).map(([name, handle]) =>
        command({
          name: `shop.${effect}-${name}`,
          effect,
          grant: "shop:run",
          help: "",
          args: v.strictObject({
            n: v.optional(v.pipe(v.number(), v.minValue(0)), 1),
            deep: v.optional(v.array(v.number())),
          }),
          handle: async ({ n }, ctx) => ({ ok: true, result: await handle(ctx as Context, n) }),
        }),
      ),
    ),
  });
  const world = createWorld([shop]);
  const registry = createRegistry([shop], [], { active: [], queue: null } as never, new Map());
  const ann: Actor = { kind: "user", id: "http:ann", grants: { actions: "all", channels: [], scopes: [] } };
  const run = (name: string, input: unknown = {}) =>
    execute(registry.get(name) as Registered, input, world.invocation(), ann, null);

  test("that reads is given a database and an outbox that write nothing, and fails loudly where it tries", async () => {
    await DB.exec(
      "INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at) VALUES ('letter', 'shop.work', '{\"n\":1}', 'failed', 'x', 1, 1, 0, 0)",
    );
    for (const name of ["enqueue", "enqueue-now", "drain", "replay", "swallow", "swallow-at-once"]) {
      expect(await run(`shop.read-${name}`), name).toMatchObject({ ok: false, code: "read_command_writes" });
    }
    expect(await world.rows("shop.work")).toEqual([]);
    expect(world.queue.messages).toEqual([]);
    expect(await run("shop.read-look")).toEqual({ ok: true, result: [{ one: 1 }] });
  });

  test("of another effect writes", async () => {
    expect(await run("shop.exec-enqueue-now")).toMatchObject({ ok: true });
    expect(await run("shop.exec-drain")).toMatchObject({ ok: true });
    expect(await world.rows("shop.work")).toHaveLength(1);
  });

  test("is refused by its schema with the field's path, before it runs", async () => {
    expect(await run("shop.exec-break", { n: -1 })).toMatchObject({ ok: false, code: "bad_arguments", field: "n" });
    expect(await run("shop.exec-break", { deep: [1, "2"] })).toMatchObject({ code: "bad_arguments", field: "deep[1]" });
    expect(await run("shop.exec-break", [])).toMatchObject({ ok: false, code: "bad_arguments" });
  });

  test("about a topic takes its full name alone, or its module and its own", async () => {
    for (const input of [{ topic: "shop.work" }, { module: "shop", topic: "work" }]) {
      expect(await run("topic.pause", input)).toMatchObject({ ok: true, result: { module: "shop", topic: "work" } });
    }
    for (const input of [{ topic: "work" }, { module: "shop", topic: "shop.work" }]) {
      expect(await run("topic.pause", input)).toMatchObject({ ok: false, code: "unknown_topic" });
    }
    await run("topic.resume", { topic: "shop.work" });
  });

  test("passes on what it throws", async () => {
    await expect(run("shop.read-break")).rejects.toThrow("broken inside");
    await expect(run("shop.exec-break")).rejects.toThrow("broken inside");
  });

  test("is held to a schema that answers later", async () => {
    const later: Registered = {
      ...(registry.get("shop.read-look") as Registered),
      args: {
        "~standard": {
          version: 1,
          vendor: "test",
          validate: async () => ({ issues: [{ message: "not today", path: ["day"] }] }),
        },
      },
    };
    expect(await execute(later, {}, world.invocation(), ann, null)).toEqual({
      ok: false,
      code: "bad_arguments",
      field: "day",
      message: "day: not today",
    });
  });
});
