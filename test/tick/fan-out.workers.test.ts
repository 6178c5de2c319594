import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { defineModule, done, fanOut, testContext, topic } from "../../src/index.ts";
import { createBudget } from "../../src/core/budget.ts";
import { DB } from "../outbox/world.ts";

const ran: number[] = [];
const work = topic("off.work", {
  schema: v.object({ n: v.number() }),
  handle({ payload: { n } }) {
    ran.push(n);
    return done();
  },
});
const settings = v.object({ LEVEL: v.optional(v.picklist(["low", "high"]), "low") });
const called: unknown[] = [];
const off = defineModule<{ LEVEL: "low" | "high" }>("off", {
  topics: [work],
  settings,
  scheduled: async ({ settings }) => void called.push(settings),
});
const ports = { log: () => {} };

describe("fanOut", () => {
  test("runs the same modules over a D1 with no queue and no limits: every topic goes by the drain", async () => {
    const ctx = testContext({ db: DB, module: off });
    await ctx.db.batch(
      ctx.outbox.enqueue(
        work,
        [1, 2, 3].map((n) => ({ payload: { n } })),
      ),
    );
    const report = await fanOut({ modules: [off], db: DB, env: { LEVEL: "high" }, ports });
    expect(report).toMatchObject({ drained: 3, sent: 0, subrequests: 0, failed: 0 });
    expect(report.modules).toMatchObject([
      { share: { subrequests: null, queries: null, wallMs: null }, warning: null },
    ]);
    expect([ran, called]).toEqual([[1, 2, 3], [{ LEVEL: "high" }]]);
    expect(await DB.prepare("SELECT count(*) AS n FROM ticks").first("n")).toBe(1);
  });

  test("drains a topic that was flipped to the queue while it was on the platform", async () => {
    const ctx = testContext({ db: DB, module: off });
    const set =
      "INSERT INTO topics (topic, path, paused, version, changed_at, changed_by) VALUES (?1, 'queue', 0, 1, 1, 'me')";
    await ctx.db.batch([ctx.db.prepare(set).bind(work.name), ...ctx.outbox.enqueue(work, [{ payload: { n: 4 } }])]);
    expect(await fanOut({ modules: [off], db: DB, ports })).toMatchObject({ drained: 1 });
  });

  test("keeps to limits that it is given", async () => {
    const { modules } = await fanOut({
      modules: [off],
      db: DB,
      limits: { wallMs: null, subrequests: 7, queries: null },
      ports,
    });
    expect(modules).toMatchObject([{ share: { subrequests: 7, queries: null } }]);
  });

  test("names the setting that is wrong", async () => {
    await expect(fanOut({ modules: [off], db: DB, env: { LEVEL: "middle" }, ports })).rejects.toMatchObject({
      name: "DueworkError",
      code: "misconfigured",
      field: "LEVEL",
    });
    await expect(fanOut({ modules: [off], db: undefined as never, ports })).rejects.toMatchObject({ field: "DB" });
    await expect(fanOut({ modules: [off, off], db: DB, ports })).rejects.toMatchObject({ field: "off" });
  });
});

describe("testContext", () => {
  test("is unbounded, holds the settings, and collects what is logged", async () => {
    const ctx = testContext({ db: DB, module: off, now: 5 });
    ctx.log("seen", { n: 1 });
    expect(ctx).toMatchObject({ module: "off", now: 5, settings: { LEVEL: "low" } });
    expect(ctx.budget.remaining).toEqual({ subrequests: null, queries: null });
    expect(ctx.logs).toMatchObject([{ event: "seen", n: 1, module: "off" }]);
    expect(await ctx.outbox.enqueueNow(work, [{ payload: { n: 4 }, dueAt: Date.now() }])).toMatchObject({
      ok: true,
      sent: 0,
    });
  });

  test("carries the budget it is given", () => {
    const budget = createBudget({ deadline: null, subrequests: 2, queries: null });
    expect(testContext({ db: DB, module: off, budget }).budget).toBe(budget);
  });

  test("names what is wrong", () => {
    expect(() => testContext({ db: DB, module: off, env: { LEVEL: "middle" } })).toThrow(
      expect.objectContaining({ name: "DueworkError", code: "misconfigured", field: "LEVEL" }),
    );
    expect(() => testContext({ db: undefined as never, module: off })).toThrow(
      expect.objectContaining({ field: "DB" }),
    );
  });
});
