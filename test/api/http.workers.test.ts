import { beforeEach, describe, expect, test, vi } from "vitest";
import * as v from "valibot";
import { createWorker, defineModule, done, topic } from "../../src/index.ts";
import { isoInstant, MINUTE } from "../../src/core/time.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

const TABLES = ["ticks", "items", "item_keys", "dead_letters", "topics", "topic_changes"];
beforeEach(() => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`))));

const SECRET = "the-token-of-ann";
const READER = "the-token-of-bob";
const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
const TOKENS = JSON.stringify([
  { subject: "ann", sha256: await sha256(SECRET), grants: { actions: "all" } },
  { subject: "bob", sha256: await sha256(READER), grants: { actions: ["topic:read"] } },
]);

const work = topic("shop.work", { schema: v.strictObject({ n: v.number() }), handle: () => done() });
const shop = defineModule("shop", { topics: [work] });

function serve(env: Record<string, unknown> = {}) {
  const worker = createWorker({ modules: [shop] });
  const bindings = { DB, ITEMS: new HeldQueue(), DUEWORK_TOKENS: TOKENS, ...env };
  const context = { waitUntil() {}, passThroughOnException() {} } as unknown as ExecutionContext;
  return async (path: string, init: RequestInit & { token?: string | null } = {}) => {
    const { token = SECRET, ...rest } = init;
    const headers = new Headers(rest.headers);
    if (token !== null) headers.set("authorization", `Bearer ${token}`);
    const request = new Request(`https://duework.test${path}`, { ...rest, headers });
    const response = await worker.fetch(request as never, bindings as never, context);
    const text = await response.text();
    return {
      status: response.status,
      type: response.headers.get("content-type"),
      allow: response.headers.get("allow"),
      text,
      json: JSON.parse(text),
    };
  };
}

type Call = ReturnType<typeof serve>;
const command = (call: Call, name: string, args: unknown, init: RequestInit & { token?: string | null } = {}) =>
  call(`/api/commands/${name}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: typeof args === "string" ? args : JSON.stringify(args),
    ...init,
  });

const flip = { module: "shop", topic: "work", path: "drain" };

/** How it is provoked, its status, its code. */
type Refused = [string, (call: Call) => ReturnType<Call>, number, string, Record<string, unknown>?];
const LISTS = [
  "/api/topics",
  "/api/ticks",
  "/api/jobs",
  "/api/items?module=shop&topic=work",
  "/api/items?module=shop&topic=work&state=dead",
  "/api/dead-letters?module=shop&topic=work",
  "/api/workflows",
];
const refusals: Refused[] = [
  ["no token", (call) => call("/api/topics", { token: null }), 401, "unauthorized"],
  ["a bad token", (call) => call("/api/topics", { token: "guess" }), 401, "unauthorized"],
  ["a digest for a token", async (call) => call("/api/topics", { token: await sha256(SECRET) }), 401, "unauthorized"],
  [
    "a read that is not granted",
    (call) => call("/api/ticks", { token: READER }),
    403,
    "not_granted",
    { grant: "tick:read" },
  ],
  [
    "a command that is not granted",
    (call) => command(call, "topic.path", flip, { token: READER }),
    403,
    "not_granted",
    { grant: "topic:write" },
  ],
  [
    "a body that is not declared JSON",
    (call) => command(call, "topic.path", flip, { headers: { "content-type": "text/plain" } }),
    415,
    "unsupported_media_type",
  ],
  [
    "a body without a type",
    (call) => command(call, "topic.path", flip, { headers: {} }),
    415,
    "unsupported_media_type",
  ],
  [
    "a body over 256 KiB",
    (call) => command(call, "item.enqueue", { pad: "x".repeat(256 * 1024) }),
    413,
    "body_too_large",
  ],
  ["a body that is not JSON", (call) => command(call, "topic.path", "{"), 400, "bad_arguments", { field: "body" }],
  ["no body", (call) => command(call, "topic.path", ""), 400, "bad_arguments", { field: "body" }],
  ["a body that is no object", (call) => command(call, "topic.path", "[]"), 400, "bad_arguments"],
  [
    "an unknown field",
    (call) => command(call, "topic.path", { ...flip, force: true }),
    400,
    "bad_arguments",
    { field: "force" },
  ],
  [
    "a missing field",
    (call) => command(call, "topic.path", { module: "shop", topic: "work" }),
    400,
    "bad_arguments",
    { field: "path" },
  ],
  [
    "an unknown path",
    (call) => command(call, "topic.path", { ...flip, path: "queues" }),
    400,
    "bad_arguments",
    { field: "path" },
  ],
  ["an unknown topic", (call) => command(call, "topic.path", { ...flip, topic: "play" }), 404, "unknown_topic"],
  ["an unknown command", (call) => command(call, "topic.paths", flip), 404, "unknown_command"],
  ["a name of every object", (call) => command(call, "constructor", {}), 404, "unknown_command"],
  ["an unknown page", (call) => call("/api/nothing"), 404, "not_found"],
  ["a command by GET", (call) => call("/api/commands/topic.path"), 405, "method_not_allowed", { allow: ["POST"] }],
  [
    "a list by POST",
    (call) => call("/api/topics", { method: "POST" }),
    405,
    "method_not_allowed",
    { allow: ["GET", "HEAD"] },
  ],
  ["a page by DELETE", (call) => call("/healthz", { method: "DELETE" }), 405, "method_not_allowed"],
  ["a path that ends early", (call) => call("/api/jobs/"), 404, "not_found"],
  ...(
    [
      ["limit 0", "limit=0", "limit"],
      ["limit -1", "limit=-1", "limit"],
      ["limit 1e9", "limit=1e9", "limit"],
      ["limit 201", "limit=201", "limit"],
      ["an empty limit", "limit=", "limit"],
      ["a cursor of another list", "cursor=ready.9.shop.play~x", "cursor"],
      ["an unknown parameter", "offset=3", "offset"],
      ["a parameter twice", "limit=1&limit=2", "limit"],
    ] as const
  ).flatMap(([what, query, field]) =>
    LISTS.map(
      (list): Refused => [
        `${what} of ${list}`,
        (call) => call(`${list}${list.includes("?") ? "&" : "?"}${query}`),
        400,
        "bad_arguments",
        { field },
      ],
    ),
  ),
  ["a parameter of one job", (call) => call("/api/jobs/x?limit=1"), 400, "bad_arguments", { field: "limit" }],
  [
    "a parameter of a command",
    (call) => command(call, "topic.path?force=1", flip),
    400,
    "bad_arguments",
    { field: "force" },
  ],
  ["a page outside /api", (call) => call("/nothing"), 404, "not_found"],
  [
    "a wrong payload",
    (call) =>
      command(call, "item.enqueue", {
        module: "shop",
        topic: "work",
        items: [{ payload: { n: 1 } }, { payload: { n: "two" } }],
      }),
    400,
    "payload_refused",
    { field: "items[1].payload.n" },
  ],
  [
    "no items",
    (call) => command(call, "item.enqueue", { module: "shop", topic: "work", items: [] }),
    400,
    "bad_arguments",
  ],
  [
    "a due time that is none",
    (call) =>
      command(call, "item.enqueue", { module: "shop", topic: "work", items: [{ payload: { n: 1 }, dueAt: "soon" }] }),
    400,
    "bad_arguments",
    { field: "items[0].dueAt" },
  ],
  ["a foreign cursor", (call) => call("/api/ticks?cursor=shop.work~x"), 400, "bad_arguments", { field: "cursor" }],
];

describe("a refusal is problem+json with a stable code", () => {
  test.for(refusals)("%s", async ([, provoke, status, code, more = {}]) => {
    const logged = vi.spyOn(console, "error");
    const answer = await provoke(serve());
    expect(answer).toMatchObject({ status, json: { code, status, ...more } });
    expect(answer.type).toMatch(/^application\/problem\+json/);
    expect(answer.allow).toBe(status === 405 ? answer.json.allow.join(", ") : null);
    expect(answer.json.detail).toEqual(expect.any(String));
    expect(answer.text).not.toContain(SECRET);
    expect(JSON.stringify(logged.mock.calls)).not.toContain(SECRET);
  });

  test.for([
    ["missing", undefined],
    ["empty", ""],
    ["not JSON", "hunter2-not-json"],
    ["not a list", '{"subject":"hunter2"}'],
    ["with a wrong digest", '[{"subject":"ann","sha256":"hunter2","grants":{}}]'],
  ] as const)("DUEWORK_TOKENS %s: 503, nobody gets in, and the secret is not told", async ([, value]) => {
    const logged = vi.spyOn(console, "error");
    const call = serve({ DUEWORK_TOKENS: value });
    for (const token of [null, SECRET]) {
      const answer = await call("/api/topics", { token });
      expect(answer).toMatchObject({ status: 503, json: { code: "misconfigured" } });
      expect(answer.type).toMatch(/^application\/problem\+json/);
      expect(answer.text).not.toContain("hunter2");
    }
    expect((await call("/healthz")).text).not.toContain("hunter2");
    expect(JSON.stringify(logged.mock.calls)).not.toContain("hunter2");
  });
});

describe("topics", () => {
  test("are listed, flipped, and read back; the loser of two that flip at once gets 409", async () => {
    const call = serve();
    const before = await call("/api/topics", { token: READER });
    expect(before.json.items).toMatchObject([
      { module: "shop", topic: "work", path: "queue", pathVersion: 0, paused: false, oldestDueAt: null },
    ]);
    const both = await Promise.all([1, 2].map(() => command(call, "topic.path", { ...flip, expectedVersion: 0 })));
    expect(both.map(({ status }) => status).sort()).toEqual([200, 409]);
    expect(both.find(({ status }) => status === 409)?.json).toMatchObject({ code: "version_conflict" });
    expect((await command(call, "topic.path", { ...flip, path: "queue", expectedVersion: 0 })).status).toBe(409);
    expect((await call("/api/topics")).json.items).toMatchObject([{ path: "drain", pathVersion: 1 }]);
    const { results } = await DB.prepare("SELECT path, changed_by FROM topic_changes").all();
    expect(results).toEqual([{ path: "drain", changed_by: "http:ann" }]);
  });

  test("are paused and resumed", async () => {
    const call = serve();
    const args = { module: "shop", topic: "work" };
    expect((await command(call, "topic.pause", args)).json).toMatchObject({ ok: true, result: { paused: true } });
    expect((await call("/api/topics")).json.items).toMatchObject([{ paused: true }]);
    expect((await command(call, "topic.resume", args)).json).toMatchObject({
      result: { paused: false, pathVersion: 2 },
    });
  });

  test("count at most 10,000 rows of a kind, and say so", async () => {
    await DB.prepare(
      `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, payload)
       WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10005)
       SELECT 'shop.work', 0, 1000 + i, printf('%018d', i), 0, 1000 + i, 0, '{"n":1}' FROM n`,
    ).run();
    const { json } = await serve()("/api/topics");
    expect(json.items[0]).toMatchObject({
      ready: { value: 10_000, capped: true },
      leased: { value: 0, capped: false },
      oldestDueAt: isoInstant(1001),
    });
  });
});

describe("item.enqueue", () => {
  test("puts items on a topic, once a key", async () => {
    const queue = new HeldQueue();
    const call = serve({ ITEMS: queue });
    const args = { module: "shop", topic: "work", items: [{ payload: { n: 1 }, key: "a" }] };
    const first = await command(call, "item.enqueue", args);
    expect(first.json).toMatchObject({ ok: true, result: { sent: 1, items: [{ deduped: false }] } });
    const second = await command(call, "item.enqueue", args);
    expect(second.json.result.items).toEqual([{ id: first.json.result.items[0].id, deduped: true }]);
    expect(await command(call, "item.enqueue", { ...args, onKey: "refuse" })).toMatchObject({
      status: 409,
      json: { code: "key_taken" },
    });
    expect(queue.take()).toHaveLength(1);
  });

  test("with a due time waits for it", async () => {
    const dueAt = isoInstant(Date.now() + 10 * MINUTE);
    const call = serve();
    const args = { module: "shop", topic: "work", items: [{ payload: { n: 1 }, dueAt }] };
    expect((await command(call, "item.enqueue", args)).json).toMatchObject({ result: { sent: 0 } });
    expect((await call("/api/topics")).json.items[0]).toMatchObject({ ready: { value: 1 }, oldestDueAt: dueAt });
  });
});

describe("ticks", () => {
  const insert = (id: number, report = "{}") =>
    DB.prepare(
      "INSERT INTO ticks (id, at, started_at, wall_until, modules, ended_at, report) VALUES (?1, ?1, ?1, ?1, '[]', ?1, ?2)",
    ).bind(id, report);

  test("are paged newest first, to the last one, with no row twice", async () => {
    await DB.batch(Array.from({ length: 7 }, (_, i) => insert(i + 1)));
    const call = serve();
    const seen: string[] = [];
    let cursor: string | null = "";
    for (let pages = 0; cursor !== null && pages < 9; pages += 1) {
      const { json }: { json: { items: { at: string }[]; nextCursor: string | null } } = await call(
        `/api/ticks?limit=3${cursor === "" ? "" : `&cursor=${cursor}`}`,
      );
      seen.push(...json.items.map(({ at }) => at));
      cursor = json.nextCursor;
    }
    expect(seen).toEqual([7, 6, 5, 4, 3, 2, 1].map(isoInstant));
  });

  test("that are none of ours are left out, and the pages go on behind them", async () => {
    await DB.batch([insert(1), insert(2, "not JSON"), insert(3, "not JSON")]);
    const call = serve();
    const first = await call("/api/ticks?limit=1");
    expect(first.json).toEqual({ items: [], nextCursor: "3" });
    expect((await call("/api/ticks?limit=2&cursor=3")).json).toMatchObject({
      items: [{ state: "closed" }],
      nextCursor: null,
    });
  });

  test("that died say where", async () => {
    await DB.prepare(
      `INSERT INTO ticks (at, started_at, wall_until, modules, running) VALUES (1, 1, 2, '["a","b","c"]', 'b')`,
    ).run();
    const { json } = await serve()("/api/ticks");
    expect(json.items).toMatchObject([{ state: "died", diedIn: "b", notReached: ["c"] }]);
  });
});

test("a failure of the database is 500 without a word of it", async () => {
  const db = { prepare: () => ({ bind: () => ({ all: async () => Promise.reject(new Error("secret of D1")) }) }) };
  const answer = await serve({ DB: db })("/api/ticks");
  expect(answer).toMatchObject({ status: 500, json: { code: "broken" } });
  expect(answer.text).not.toContain("secret of D1");
});
