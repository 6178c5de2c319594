import { beforeEach, describe, expect, test, vi } from "vitest";
import * as v from "valibot";
import { createWorker, defineModule, done, topic, type Module } from "../../src/index.ts";
import { MINUTE } from "../../src/core/time.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

beforeEach(() => DB.prepare("DELETE FROM ticks").run());

const context = { waitUntil() {}, passThroughOnException() {} } as unknown as ExecutionContext;
const work = (name: string, options: object = {}) =>
  topic(`${name}.work`, { schema: v.object({}), handle: () => done(), ...options });
const ticked: string[] = [];
const shop = defineModule("shop", { topics: [work("shop")], scheduled: async () => void ticked.push("shop") });

function deployed(modules: readonly Module[], env: Record<string, unknown>) {
  const worker = createWorker({ modules });
  return {
    health: async () => {
      const response = await worker.fetch(new Request("https://x.test/healthz") as never, env, context);
      return { status: response.status, json: (await response.json()) as Record<string, unknown> };
    },
    tick: () =>
      worker.scheduled(
        { scheduledTime: Date.now(), cron: "* * * * *", noRetry() {} } as ScheduledController,
        env,
        context,
      ),
    queue: async (name: string, bodies: unknown[]) => {
      const verdicts: unknown[] = [];
      const messages = bodies.map((body, id) => ({
        id: String(id),
        body,
        attempts: 1,
        timestamp: new Date(),
        ack: () => void verdicts.push("ack"),
        retry: () => void verdicts.push("retry"),
      }));
      const batch = { queue: name, messages, ackAll() {}, retryAll: (options: unknown) => void verdicts.push(options) };
      await worker.queue(batch as unknown as MessageBatch, env, context);
      return verdicts;
    },
  };
}

const good = () => ({ DB, ITEMS: new HeldQueue(), DUEWORK_TOKENS: "[]" });
const floored = (name: string, queries: number) => defineModule(name, { floor: { queries } });
const settled = defineModule("settled", {
  settings: v.object({ SHOP_LEVEL: v.picklist(["low", "high"], "low or high") }),
});

const mistakes: [string, string, string, readonly Module[], Record<string, unknown>][] = [
  ["an unknown setting of ours", "unknown_setting", "DUEWORK_TOKEN", [shop], { DUEWORK_TOKEN: "x" }],
  ["limits that are not JSON", "bad_limits", "SCHEDULED_LIMITS", [shop], { SCHEDULED_LIMITS: "lots" }],
  ["a limit below 0", "bad_limits", "SCHEDULED_LIMITS", [shop], { SCHEDULED_LIMITS: '{"queries":-1}' }],
  ["a limit of an unknown name", "bad_limits", "SCHEDULED_LIMITS", [shop], { SCHEDULED_LIMITS: '{"query":9}' }],
  ["floors that cannot fit together", "bad_floors", "queries", [floored("a", 5), floored("b", 5)], {}],
  [
    "a queue that is not bound",
    "queue_not_bound",
    "BULK",
    [defineModule("m", { topics: [work("m", { queue: "BULK" })] })],
    {},
  ],
  ["no database", "binding_missing", "DB", [shop], { DB: undefined }],
  ["two modules of one name", "module_twice", "shop", [shop, defineModule("shop", {})], {}],
  ["a module's setting that its schema refuses", "bad_setting", "SHOP_LEVEL", [settled], { SHOP_LEVEL: "middling" }],
  ["tokens that are malformed", "bad_tokens", "DUEWORK_TOKENS", [shop], { DUEWORK_TOKENS: "[{}]" }],
];

describe("a Worker refuses to start work on", () => {
  test.for(mistakes)("%s", async ([, code, setting, modules, env]) => {
    const logged = vi.spyOn(console, "error").mockImplementation(() => {});
    ticked.length = 0;
    const worker = deployed(modules, { ...good(), ...env });
    const { status, json } = await worker.health();
    expect(status).toBe(503);
    expect(json).toMatchObject({ status: "misconfigured", lastTickAt: null });
    expect(json.problems).toContainEqual({ code, setting, detail: expect.any(String) });

    await worker.tick();
    expect(await DB.prepare("SELECT count(*) AS n FROM ticks").first("n")).toBe(0);
    expect(ticked).toEqual([]);
    expect(await worker.queue("duework-items", [{}, {}])).toEqual([{ delaySeconds: 60 }]);
    expect(JSON.stringify(logged.mock.calls)).toContain(setting);
  });

  test("all of it at once, so that a person mends it in one go", async () => {
    const { json } = await deployed([shop], { DUEWORK_X: "1", SCHEDULED_LIMITS: "lots" }).health();
    expect((json.problems as { setting: string }[]).map(({ setting }) => setting).sort()).toEqual([
      "DB",
      "DUEWORK_TOKENS",
      "DUEWORK_X",
      "ITEMS",
      "SCHEDULED_LIMITS",
    ]);
  });

  test("a database without its tables", async () => {
    const db = { prepare: () => ({ first: async () => Promise.reject(new Error("no such table: ticks")) }) };
    const { status, json } = await deployed([shop], { ...good(), DB: db }).health();
    expect([status, json.status]).toEqual([503, "misconfigured"]);
    expect(json.problems).toMatchObject([{ setting: "DB" }]);
  });
});

describe("/healthz", () => {
  test("names tokens that are missing, without which nobody gets in, and the Worker works all the same", async () => {
    const worker = deployed([shop], { ...good(), DUEWORK_TOKENS: undefined });
    await worker.tick();
    expect(await worker.health()).toMatchObject({
      status: 200,
      json: { status: "ok", problems: [{ code: "no_tokens", setting: "DUEWORK_TOKENS" }] },
    });
  });

  test("says starting, ok after a tick, degraded three minutes later", async () => {
    const worker = deployed([shop], good());
    expect(await worker.health()).toMatchObject({ status: 200, json: { status: "starting", tickAgeSeconds: null } });
    await worker.tick();
    expect(await worker.health()).toMatchObject({ status: 200, json: { status: "ok", problems: [] } });
    const at = Date.now();
    vi.spyOn(Date, "now").mockReturnValue(at + 3 * MINUTE + 1_000);
    expect(await worker.health()).toMatchObject({ status: 200, json: { status: "degraded", tickAgeSeconds: 181 } });
    vi.restoreAllMocks();
  });
});

test("the bare address leads to the panel, and is the app's own where the Worker has a fetch", async () => {
  const get = (worker: Pick<ReturnType<typeof createWorker<Record<string, unknown>>>, "fetch">) =>
    worker.fetch(new Request("https://x.test/") as never, good(), context);
  const bare = await get(createWorker<Record<string, unknown>>({ modules: [shop] }));
  expect([bare.status, bare.headers.get("location")]).toEqual([302, "/panel"]);
  const own = createWorker<Record<string, unknown>>({ modules: [shop], fetch: () => new Response("the shop") });
  expect(await (await get(own)).text()).toBe("the shop");
});

test("the dead-letter consumer acks and logs each message, and touches nothing", async () => {
  const logged = vi.spyOn(console, "warn").mockImplementation(() => {});
  const verdicts = await deployed([shop], good()).queue("duework-items-dead", [
    { v: 1, topic: "shop.work", items: [[1, "0".repeat(18), 1]] },
    "rubbish",
  ]);
  expect(verdicts).toEqual(["ack", "ack"]);
  expect(logged.mock.calls.map(([line]) => JSON.parse(line as string))).toMatchObject([
    { event: "message_dead", topic: "shop.work" },
    { event: "message_dead", problem: expect.any(String) },
  ]);
});
