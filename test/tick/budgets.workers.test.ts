import { beforeEach, describe, expect, test } from "vitest";
import type { Limits } from "../../src/core/budget.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import {
  type Context,
  type Cost,
  DEFAULT_LIMITS,
  defineModule,
  done,
  fanOut,
  type Module,
  topic,
  UNBOUNDED,
} from "../../src/index.ts";
import * as v from "valibot";
import { createWorld, DB, oneTopic } from "../outbox/world.ts";

beforeEach(() => DB.batch(["ticks", "items"].map((table) => DB.prepare(`DELETE FROM ${table}`))));

/** Limits that leave the given units of subrequests, and nothing else bounded. */
const units = (subrequests: number): Limits => ({ ...UNBOUNDED, subrequests });
const names = (count: number) => Array.from({ length: count }, (_, i) => `m${String(i + 1).padStart(2, "0")}`);

/** A module that spends all it gets, in units of `cost`. */
const greedy = (name: string, cost: Cost = 1, turns: (Context["budget"] | null)[] = []): Module =>
  defineModule(name, {
    async scheduled({ budget }) {
      turns.push(budget);
      while (budget.trySpend(cost)) {}
    },
  });

const warnings = (modules: readonly { module: string; warning: unknown }[]) =>
  Object.fromEntries(modules.flatMap(({ module, warning }) => (warning === null ? [] : [[module, warning]])));

describe("shares", () => {
  test("40 units over 12 greedy modules are 4 and 3", async () => {
    const { modules } = await createWorld(names(12).map((name) => greedy(name))).tick(units(40));
    expect(modules.map(({ charged }) => charged.subrequests)).toEqual([4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3]);
  });

  test("what is not spent rolls forward: behind eleven idle modules the last has all 40", async () => {
    const idle = names(11).map((name) => defineModule(name, { scheduled: async () => {} }));
    const { modules } = await createWorld([...idle, greedy("last")]).tick(units(40));
    expect(modules.at(-1)).toMatchObject({ share: { subrequests: 40 }, charged: { subrequests: 40 } });
  });

  test("4 units over 12 greedy modules: nobody is offered nothing for more than three ticks in a row", async () => {
    const world = createWorld(names(12).map((name) => greedy(name)));
    const hungry = new Map<string, number>();
    let most = 0;
    for (let i = 0; i < 24; i += 1) {
      const { modules } = await world.tick(units(4));
      expect(modules).toHaveLength(12);
      for (const { module, bornEmpty } of modules) {
        hungry.set(module, bornEmpty ? (hungry.get(module) ?? 0) + 1 : 0);
        most = Math.max(most, hungry.get(module) ?? 0);
      }
      world.clock.now += MINUTE;
    }
    expect(most).toBe(2);
  });

  test("a module below its floor gets nothing this tick and is first in the next", async () => {
    const calls: string[] = [];
    const one = (name: string, floor?: number) =>
      defineModule(name, {
        ...(floor !== undefined && { floor: { subrequests: floor } }),
        async scheduled({ budget }) {
          calls.push(name);
          while (budget.trySpend(1)) {}
        },
      });
    const unasked = defineModule("rude", {
      async scheduled({ fetch }) {
        for (let i = 0; i < 6; i += 1) await fetch("https://example.org/");
      },
    });
    const world = createWorld([unasked, one("floored", 5), one("plain")], {
      ports: { fetch: async () => new Response() },
    });
    const { modules } = await world.tick(units(10));
    expect(modules[1]).toMatchObject({ module: "floored", bornEmpty: true, charged: { subrequests: 0 } });
    expect(modules[2]).toMatchObject({ module: "plain", bornEmpty: false, charged: { subrequests: 4 } });
    calls.length = 0;
    const next = await world.tick(units(10));
    expect(next.modules.map(({ module }) => module)).toEqual(["floored", "plain", "rude"]);
    expect(next.modules[0]).toMatchObject({ share: { subrequests: 5 }, charged: { subrequests: 5 } });
  });

  test("outside scheduled, and off the platform, a budget is unbounded", async () => {
    const seen: unknown[] = [];
    const { topic: work, name } = oneTopic((_, { budget }) => void seen.push([budget.deadline, budget.remaining]));
    const module = defineModule(name.split(".")[0] as string, { topics: [work] });
    const world = createWorld([module]);
    const { budget, outbox } = world.context();
    seen.push([budget.deadline, budget.remaining]);
    await outbox.enqueueNow(work, [{ payload: { n: 1 } }]);
    await world.deliver(world.queue.take());
    const scheduled = defineModule("off", {
      scheduled: async (ctx) => void seen.push([ctx.budget.deadline, ctx.budget.remaining]),
    });
    await fanOut({ modules: [scheduled], db: DB });
    const unbounded = [null, { subrequests: null, queries: null }];
    expect(seen).toEqual([unbounded, unbounded, unbounded]);
  });
});

describe("warnings", () => {
  test("used without asking is taken from those behind, and named with the amount and with them", async () => {
    const rude = defineModule("rude", {
      async scheduled({ db, fetch }) {
        for (let i = 0; i < 5; i += 1) await db.prepare("SELECT 1").first();
        await db.batch([db.prepare("SELECT 1"), db.prepare("SELECT 2")]);
        await fetch("https://example.org/");
      },
    });
    const world = createWorld([rude, greedy("behind", { queries: 1 }), greedy("last", { queries: 1 })], {
      ports: { fetch: async () => new Response() },
    });
    const { modules } = await world.tick(DEFAULT_LIMITS);
    // 40 less four to open, three marks and three to close; then less the seven.
    expect(modules.map(({ share }) => share.queries)).toEqual([10, 12, 11]);
    expect(modules[0]).toMatchObject({ charged: { queries: 0 }, measured: { queries: 7, subrequests: 1 } });
    expect(modules[0]?.warning).toEqual({
      reason: "spent unasked",
      amount: 7,
      unit: "queries",
      behind: ["behind", "last"],
    });
    expect(world.logs.filter(({ event, module }) => event === "budget_warning" && module === "rude")).toMatchObject([
      { level: "warn", reason: "spent unasked", amount: 7, behind: ["behind", "last"] },
    ]);
  });

  test("say who overran the wall, who used its share, who was born empty; and those born empty are called", async () => {
    const called: string[] = [];
    const late = defineModule("late", {
      async scheduled() {
        world.clock.now += 11 * SECOND;
      },
    });
    const empty = defineModule("empty", { scheduled: async () => void called.push("empty") });
    const world = createWorld([late, greedy("all"), empty]);
    const { modules } = await world.tick({ wallMs: 30 * SECOND, subrequests: 1, queries: null });
    expect(warnings(modules)).toEqual({
      late: { reason: "overran wall", amount: SECOND, unit: "ms", behind: ["all", "empty"] },
      all: { reason: "share used", amount: 1, unit: "subrequests", behind: ["empty"] },
      empty: { reason: "born empty", amount: 0, unit: "subrequests", behind: [] },
    });
    expect(called).toEqual(["empty"]);
  });

  test("are none for modules that keep to what they are given, nor where nothing is bounded", async () => {
    const asks = defineModule("asks", {
      async scheduled({ budget, db }) {
        if (budget.trySpend({ queries: 1 })) await db.prepare("SELECT 1").first();
      },
    });
    const never = defineModule("never-asks", {
      scheduled: async ({ db }) => void (await db.prepare("SELECT 1").first()),
    });
    expect(warnings((await createWorld([asks]).tick(DEFAULT_LIMITS)).modules)).toEqual({});
    expect(warnings((await createWorld([never]).tick(UNBOUNDED)).modules)).toEqual({});
  });
});

describe("drains in the tick", () => {
  test("10 deliveries at 3 a tick take 4 ticks, charged 3, 3, 3, 1, one POST each", async () => {
    const posts: string[] = [];
    const {
      topic: work,
      name,
      module,
    } = oneTopic(
      async (item, { fetch }) => {
        await fetch("https://example.org/hook", { method: "POST", body: String((item.payload as { n: number }).n) });
        return done();
      },
      { path: "drain", cost: 1 },
    );
    const world = createWorld([module], {
      ports: {
        fetch: async (_, init) => {
          posts.push(`${init?.method} ${init?.body}`);
          return new Response();
        },
      },
    });
    const ctx = world.context();
    const payloads = Array.from({ length: 10 }, (_, n) => ({ payload: { n } }));
    await ctx.db.batch(ctx.outbox.enqueue(work, payloads));
    const charged: number[] = [];
    for (let i = 0; i < 4; i += 1) {
      const report = await world.tick(units(3));
      charged.push(report.modules[0]?.charged.subrequests ?? -1);
      expect(report.drained).toBe(charged.at(-1));
      world.clock.now += MINUTE;
    }
    expect(charged).toEqual([3, 3, 3, 1]);
    expect(posts).toEqual(payloads.map(({ payload: { n } }) => `POST ${n}`));
    expect(await world.rows(name)).toEqual([]);
  });

  test("twelve modules with a backlog at the default limits each get an item done at least every sixth tick", async () => {
    const last = new Map<string, number>();
    let round = 0;
    let longest = 0;
    const modules = names(12).map((name) =>
      defineModule(name, {
        scheduled: async () => {},
        topics: [
          topic(`${name}.work`, {
            schema: v.object({}),
            path: "drain",
            handle() {
              longest = Math.max(longest, round - (last.get(name) ?? 0));
              last.set(name, round);
            },
          }),
        ],
      }),
    );
    const world = createWorld(modules);
    const ctx = world.context();
    const backlog = Array.from({ length: 40 }, () => ({ payload: {} }));
    await ctx.db.batch(modules.flatMap(({ topics: [work] }) => ctx.outbox.enqueue(work as never, backlog as never)));
    for (round = 1; round <= 24; round += 1) {
      const report = await world.tick(DEFAULT_LIMITS);
      expect(report.queries).toBeLessThanOrEqual(40);
      world.clock.now += MINUTE;
    }
    expect([...last.keys()].sort()).toEqual(names(12));
    expect(longest).toBeLessThanOrEqual(6);
  });

  test("what an item uses beyond its cost is held against the items behind it", async () => {
    const { topic: work, module } = oneTopic(
      async (_, { fetch }) => {
        await fetch("https://example.org/");
        await fetch("https://example.org/");
        return done();
      },
      { path: "drain", cost: 1 },
    );
    const world = createWorld([module], { ports: { fetch: async () => new Response() } });
    const ctx = world.context();
    await ctx.db.batch(
      ctx.outbox.enqueue(
        work,
        Array.from({ length: 10 }, (_, n) => ({ payload: { n } })),
      ),
    );
    const report = await world.tick(units(8));
    expect(report).toMatchObject({ drained: 4, subrequests: 8 });
    expect(report.modules[0]?.warning).toMatchObject({ reason: "spent unasked", amount: 4 });
  });
});
