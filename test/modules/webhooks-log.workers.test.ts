import { describe, expect, test } from "vitest";
import { deliver } from "../../src/modules/webhooks/deliver.ts";
import { webhooks } from "../../src/modules/webhooks/index.ts";
import { add, okRig } from "./receivers.ts";
import type { Rig } from "./rig.ts";

const SECOND = 1_000;
const HOUR = 3_600 * SECOND;
const DAY = 24 * HOUR;

describe("the delivery log", () => {
  const seed = (rig: Rig, count: number, at: number) =>
    rig.db
      .prepare(
        `INSERT INTO webhook_deliveries (day, event_id, at, item, endpoint_id, attempt, outcome, ms)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
         SELECT ?3, 'evt_' || (i % 50), ?2 + i, 'item' || i, 'ep', 1, 'dropped', 0 FROM n`,
      )
      .bind(count, at, Math.floor(at / DAY))
      .run();
  const rows = (rig: Rig) => rig.db.prepare("SELECT count(*) AS n FROM webhook_deliveries").first<number>("n");
  const scheduled = async (rig: Rig) => {
    const ctx = rig.context();
    await webhooks.scheduled?.(ctx);
  };

  test("is kept for 30 whole days, then deleted by at most 500 rows a tick", async () => {
    const rig = await okRig();
    await seed(rig, 1_200, rig.now() - 31 * DAY);
    await seed(rig, 300, rig.now() - 30 * DAY);
    for (const left of [1_000, 500, 300, 300]) {
      await scheduled(rig);
      expect(await rows(rig)).toBe(left);
    }
    rig.wait(DAY);
    await scheduled(rig);
    expect(await rows(rig)).toBe(0);
  });

  test("costs a tick one statement and next to no rows read when nothing is old", async () => {
    const rig = await okRig();
    await seed(rig, 3_000, rig.now());
    await scheduled(rig);
    expect(rig.used()).toMatchObject({ calls: 1, queries: 1, rowsWritten: 0 });
    expect(rig.used().rowsRead).toBeLessThan(10);
  });

  test("is left alone when the tick's share has no statement left", async () => {
    const rig = await okRig();
    await seed(rig, 10, rig.now() - 40 * DAY);
    const ctx = rig.context();
    const none = { ...ctx.budget, trySpend: () => false };
    await webhooks.scheduled?.({ ...ctx, budget: none });
    expect(rig.used().queries).toBe(0);
  });

  test("of one event is paged through whole, oldest first, reading no other event's rows", async () => {
    const rig = await okRig();
    await seed(rig, 3_000, rig.now() - 20 * DAY);
    await seed(rig, 3_000, rig.now() - 3 * SECOND);
    const found: { at: string }[] = [];
    let cursor: string | undefined;
    do {
      const page = await rig.result("webhooks.deliveries", {
        eventId: "evt_7",
        limit: 50,
        ...(cursor ? { cursor } : {}),
      });
      found.push(...page.items);
      expect(rig.used().rowsRead).toBeLessThan(400);
      cursor = page.nextCursor ?? undefined;
    } while (cursor !== undefined);
    expect(found).toHaveLength(120);
    expect(found.map(({ at }) => at)).toEqual(found.map(({ at }) => at).toSorted());
  });

  test("is counted since an instant, a day ago by default, by what deliveries came to", async () => {
    const rig = await okRig();
    await add(rig, "a.example", ["*"]);
    await rig.result("webhooks.publish", { type: "a", data: 1 });
    await rig.drain(deliver);
    await seed(rig, 3, rig.now() - 23 * HOUR);
    await seed(rig, 5, rig.now() - DAY - HOUR);
    const rest = { delivered: 1, retried: 0, dead: 0, capped: false, worst: [] };
    // The day that the instant is in is read as a whole, and counted from the instant on.
    expect(await rig.result("webhooks.report", {})).toEqual({
      ...rest,
      since: new Date(rig.now() - DAY).toISOString(),
      dropped: 3,
      read: 9,
    });
    const since = new Date(rig.now() - 2 * DAY).toISOString();
    expect(await rig.result("webhooks.report", { since })).toEqual({ ...rest, since, dropped: 8, read: 9 });
    const now = new Date(rig.now()).toISOString();
    expect(await rig.result("webhooks.report", { since: now })).toMatchObject({ delivered: 1, dropped: 0, read: 1 });
    expect(await rig.run("webhooks.report", { since: "yesterday" })).toMatchObject({ code: "bad_arguments" });
  });

  test("names the ten endpoints that failed most, each with its latest error", async () => {
    const rig = await okRig();
    await rig.db
      .prepare(
        `INSERT INTO webhook_endpoints (id, url, events, secret, state, created_at)
         VALUES ('ep_11', 'https://bad.example/', '["*"]', 'whsec_', 'active', 0)`,
      )
      .run();
    // Endpoint n fails n times: once dead, before that tried again, the latest with the largest number.
    await rig.db
      .prepare(
        `INSERT INTO webhook_deliveries (day, event_id, at, item, endpoint_id, attempt, outcome, status, ms, error)
         WITH RECURSIVE n(i, j) AS (SELECT 1, 1 UNION ALL
           SELECT iif(j < i, i, i + 1), iif(j < i, j + 1, 1) FROM n WHERE i < 11 OR j < 11)
         SELECT CAST(?1 + j AS INTEGER) / 86400000, 'evt_' || (100 - j), ?1 + j, 'item' || i, 'ep_' || i, j,
           iif(j = i, 'dead', 'retried'), 500, 1, 'failure ' || j
         FROM n`,
      )
      .bind(rig.now() - HOUR)
      .run();
    const { worst, retried, dead } = await rig.result("webhooks.report", {});
    expect({ retried, dead }).toEqual({ retried: 55, dead: 11 });
    expect(worst).toHaveLength(10);
    expect(worst[0]).toEqual({
      endpointId: "ep_11",
      url: "https://bad.example/",
      failed: 11,
      dead: 1,
      lastAt: new Date(rig.now() - HOUR + 11).toISOString(),
      lastStatus: 500,
      lastError: "failure 11",
    });
    expect(worst.map(({ failed }: { failed: number }) => failed)).toEqual([11, 10, 9, 8, 7, 6, 5, 4, 3, 2]);
    expect(worst[9]).toMatchObject({ endpointId: "ep_2", url: null });
  });

  test("is read to a bound, and says so", async () => {
    const rig = await okRig();
    await seed(rig, 10_100, rig.now() - 2 * HOUR);
    expect(await rig.result("webhooks.report", {})).toMatchObject({ dropped: 10_000, read: 10_000, capped: true });
    expect(rig.used().rowsRead).toBeLessThan(20_200);
  });
});

describe("commands refuse", () => {
  test.each([
    ["webhooks.endpoint-add", { url: "http://a.example/", events: ["*"] }, "destination_refused"],
    ["webhooks.endpoint-add", { url: "https://169.254.169.254/", events: ["*"] }, "destination_refused"],
    ["webhooks.endpoint-add", { url: "https://a.example/", events: [] }, "bad_arguments"],
    ["webhooks.endpoint-add", { url: "https://a.example/", events: ["a b"] }, "bad_arguments"],
    ["webhooks.endpoint-add", { url: "https://a.example/", events: ["*"], subjet: "acme" }, "bad_arguments"],
    ["webhooks.endpoint-remove", { id: "ep_none" }, "not_found"],
    ["webhooks.endpoint-rotate", { id: "ep_none" }, "not_found"],
    ["webhooks.endpoint-rotate", { id: "ep_none", keepOldSeconds: 700_000 }, "bad_arguments"],
    ["webhooks.publish", { type: "a/b", data: 0 }, "bad_arguments"],
    ["webhooks.publish", { type: "a" }, "bad_arguments"],
    ["webhooks.deliveries", { eventId: "evt_1", cursor: "x" }, "bad_arguments"],
  ])("%s %j: %s", async (name, args, code) => {
    const rig = await okRig();
    expect(await rig.run(name, args)).toMatchObject({ ok: false, code });
    expect(await rig.db.prepare("SELECT count(*) AS n FROM webhook_endpoints").first("n")).toBe(0);
  });

  test("a removed endpoint can be removed again, and no longer rotated", async () => {
    const rig = await okRig();
    const { id } = await add(rig, "a.example", ["*"]);
    for (let times = 0; times < 2; times += 1) {
      expect(await rig.result("webhooks.endpoint-remove", { id })).toEqual({ id });
    }
    expect(await rig.run("webhooks.endpoint-rotate", { id })).toMatchObject({ ok: false, code: "not_found" });
  });

  test("private destinations only where the setting is not exactly true", async () => {
    const rig = await okRig({ env: { WEBHOOKS_ALLOW_PRIVATE: "true", OTHER: "x" } });
    const { id } = await rig.result("webhooks.endpoint-add", { url: "http://127.0.0.1:9/", events: ["*"] });
    expect(id).toMatch(/^ep_/);
    await expect(okRig({ env: { WEBHOOKS_ALLOW_PRIVATE: "yes" } })).rejects.toThrow();
  });
});
