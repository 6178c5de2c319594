import { describe, expect, test } from "vitest";
import { createBudget, unboundedBudget } from "../../src/core/budget.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { dead, done, nextAt, type Outcome, retryAt } from "../../src/index.ts";
import { claim } from "../../src/outbox/items.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import { leaseOf } from "../../src/outbox/runtime.ts";
import type { Item, TopicOptions } from "../../src/outbox/topic.ts";
import { createWorld, DB, faultyDb, oneTopic, type World } from "./world.ts";

const number = (item: Item) => (item.payload as { n: number }).n;

/** A drain topic with `count` items of ascending due times, and a note of what ran. */
async function filled(
  count: number,
  answer: (item: Item, ctx: Parameters<TopicOptions["handle"]>[1]) => unknown = () => done(),
  options: object = {},
  db: D1Database = DB,
) {
  const ran: number[] = [];
  const made = oneTopic(
    (item, ctx) => {
      ran.push(number(item));
      return answer(item, ctx) as Outcome;
    },
    { path: "drain", ...options },
  );
  const world = createWorld([made.module], { db });
  const due = Array.from({ length: count }, (_, n) => world.clock.now - MINUTE + n * SECOND);
  const ctx = world.context();
  await DB.batch(
    ctx.outbox.enqueue(
      made.topic,
      due.map((dueAt, n) => ({ payload: { n }, dueAt })),
    ),
  );
  return { ...made, world, ran, due };
}

const within = (subrequests: number, world: World, wallMs: number | null = null) =>
  createBudget({ deadline: wallMs === null ? null : world.clock.now + wallMs, subrequests, queries: null });

describe("a drain within its budget", () => {
  test("ten deliveries at three a pass take four passes, charged 3, 3, 3 and 1, each run once, in order", async () => {
    const { world, topic, name, ran } = await filled(10);
    const charged: number[] = [];
    const reports = [];
    for (let pass = 0; pass < 4; pass += 1) {
      const budget = within(3, world);
      reports.push(await world.context().outbox.drainWithin(topic, budget, { limit: 10, cost: 1 }));
      charged.push(budget.spent.subrequests);
      world.clock.now += MINUTE;
    }
    expect(charged).toEqual([3, 3, 3, 1]);
    expect(reports.map(({ processed, stopped }) => [processed, stopped])).toEqual([
      [3, "budget"],
      [3, "budget"],
      [3, "budget"],
      [1, null],
    ]);
    expect(ran).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("limit 10 with a budget of 3 over five rows: three processed, none released, the other two never leased", async () => {
    const { world, topic, name, due } = await filled(5);
    const report = await world.context().outbox.drainWithin(topic, within(3, world), { limit: 10, cost: 1 });
    expect(report).toEqual({ processed: 3, released: 0, lost: 0, stopped: "budget", error: null });
    expect(await world.rows(name)).toMatchObject([
      { lane: 0, at: due[3], turn: 0 },
      { lane: 0, at: due[4], turn: 0 },
    ]);
  });

  test("a stop in mid-batch gives the rest back at their old instants, in order, unleased, with nothing counted", async () => {
    const { world, topic, name, ran, due } = await filled(4, (_, ctx) => {
      ctx.budget.trySpend(2);
      return done();
    });
    const budget = within(4, world);
    const report = await world.context().outbox.drainWithin(topic, budget, { limit: 10, cost: 1 });
    // Item 0: one and two of its own; item 1: one; then nothing is left.
    expect(ran).toEqual([0, 1]);
    expect(report).toEqual({ processed: 2, released: 2, lost: 0, stopped: "budget", error: null });
    expect(budget.spent.subrequests).toBe(4);
    expect(await world.rows(name)).toMatchObject([
      { lane: 0, at: due[2], due_at: due[2], attempts: 0, deliveries: 0, lapses: 0 },
      { lane: 0, at: due[3], due_at: due[3], attempts: 0, deliveries: 0, lapses: 0 },
    ]);
    await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 10 });
    expect(ran).toEqual([0, 1, 2, 3]);
  });

  test("40 at 5 an item with limit 3: the limit binds, and it is not stopped", async () => {
    const { world, topic, name } = await filled(5);
    const budget = within(40, world);
    const report = await world.context().outbox.drainWithin(topic, budget, { limit: 3, cost: 5 });
    expect(report).toMatchObject({ processed: 3, released: 0, stopped: null });
    expect(budget.spent.subrequests).toBe(15);
    expect((await world.rows(name)).map(({ lane }) => lane)).toEqual([0, 0]);
  });

  test("two rows under a cap of three: all the rows there were, and it is not stopped", async () => {
    const { world, topic } = await filled(2);
    const report = await world.context().outbox.drainWithin(topic, within(3, world), { limit: 10, cost: 1 });
    expect(report).toMatchObject({ processed: 2, stopped: null });
  });

  test.each([
    ["expired", (world: World) => within(10, world, 0)],
    ["short of one item", (world: World) => within(4, world)],
    ["empty", (world: World) => within(0, world)],
    ["short of what the pass itself asks", () => createBudget({ deadline: null, subrequests: null, queries: 1 })],
    ["short of one item beside the pass", () => createBudget({ deadline: null, subrequests: null, queries: 4 })],
  ])("a budget that is %s claims nothing", async (_, budgetOf) => {
    const { world, topic, name, ran, due } = await filled(2);
    const report = await world
      .context()
      .outbox.drainWithin(topic, budgetOf(world), { limit: 10, cost: { subrequests: 5, queries: 3 } });
    expect(report).toEqual({ processed: 0, released: 0, lost: 0, stopped: "budget", error: null });
    expect(ran).toEqual([]);
    expect((await world.rows(name)).map(({ lane, at, turn }) => [lane, at, turn])).toEqual(due.map((at) => [0, at, 0]));
  });

  test("of statements: claims only what is left beside the pass itself, and gives nothing back", async () => {
    const { world, topic } = await filled(20);
    const budget = createBudget({ deadline: null, subrequests: null, queries: 30 });
    const report = await world.context().outbox.drainWithin(topic, budget, { limit: 20, cost: { queries: 3 } });
    expect(report).toMatchObject({ processed: 9, released: 0, stopped: "budget" });
    expect(budget.spent.queries).toBe(29);
  });

  test("an unbounded one works all there is, and what is not due stays", async () => {
    const { world, topic, name } = await filled(7);
    await DB.batch(world.context().outbox.enqueue(topic, [{ payload: { n: 9 }, dueAt: world.clock.now + 1 }]));
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 100 });
    expect(report).toEqual({ processed: 7, released: 0, lost: 0, stopped: null, error: null });
    expect(await world.rows(name)).toMatchObject([{ lane: 0, turn: 0, payload: '{"n":9}' }]);
  });

  test.each([-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY])(
    "refuses a limit of %s: no limit can mean that",
    async (limit) => {
      const { world, topic, name } = await filled(1);
      const asked = world.context().outbox.drainWithin(topic, unboundedBudget(), { limit });
      await expect(asked).rejects.toThrow(RangeError);
      expect(await world.rows(name)).toMatchObject([{ lane: 0 }]);
    },
  );

  test("a limit of 0 does nothing and is not stopped", async () => {
    const { world, topic } = await filled(1);
    const report = await world.context().outbox.drainWithin(topic, within(3, world), { limit: 0 });
    expect(report).toMatchObject({ processed: 0, stopped: null });
  });
});

describe("time", () => {
  test("an item's deadline is never longer than the share that is left, and too little of it stops the pass", async () => {
    const deadlines: number[] = [];
    const { world, topic, name } = await filled(5, (_, ctx) => {
      deadlines.push(ctx.deadline - world.clock.now);
      world.clock.now += 8 * SECOND;
      return done();
    });
    const report = await world
      .context()
      .outbox.drainWithin(topic, within(99, world, 33 * SECOND), { limit: 5, cost: 1 });
    expect(deadlines).toEqual([30, 25, 17, 9, 1].map((s) => s * SECOND));
    expect(report).toMatchObject({ processed: 5, stopped: null });
    const again = await filled(3, () => {
      again.world.clock.now += 2_001;
      return done();
    });
    const short = await again.world
      .context()
      .outbox.drainWithin(again.topic, within(99, again.world, 3 * SECOND), { limit: 5, cost: 1 });
    expect(short).toMatchObject({ processed: 1, released: 2, stopped: "budget" });
    expect((await again.world.rows(again.name)).map(({ at }) => at)).toEqual(again.due.slice(1));
    expect(await world.rows(name)).toEqual([]);
  });

  test("a handler that outlasts the share is settled as failed when the share ends", async () => {
    const { world, topic, name } = await filled(1, () => new Promise(() => {}), { backoff: [3_600_000] });
    // The clock is held, the share is real time.
    const report = await world.context().outbox.drainWithin(topic, within(9, world, SECOND), { limit: 5, cost: 1 });
    expect(report).toMatchObject({ processed: 1 });
    expect(await world.rows(name)).toMatchObject([{ lane: 0, attempts: 1, error: "no answer within 1000 ms" }]);
  });

  test("a lease that runs short stops it, and the rest is given back", async () => {
    const { world, topic, name, ran, due } = await filled(
      4,
      () => {
        world.clock.now += 25 * SECOND;
        return done();
      },
      { leaseMs: 70 * SECOND },
    );
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 4 });
    // Starts at 0 and 25 s; at 50 s fewer than 30 and 10 s are left of 70.
    expect(ran).toEqual([0, 1]);
    expect(report).toMatchObject({ processed: 2, released: 2, stopped: "lease" });
    expect((await world.rows(name)).map(({ lane, at }) => [lane, at])).toEqual([
      [0, due[2]],
      [0, due[3]],
    ]);
  });

  test("a pass late in its invocation counts its leases from the instant they were given", async () => {
    const { world, topic, ran } = await filled(2, undefined, { leaseMs: 70 * SECOND });
    const ctx = world.context();
    world.clock.now += 45 * SECOND;
    const report = await ctx.outbox.drainWithin(topic, unboundedBudget(), { limit: 4 });
    expect(ran).toEqual([0, 1]);
    expect(report).toMatchObject({ processed: 2, released: 0, stopped: null });
  });
});

describe("outcomes", () => {
  test("done, nextAt, retryAt and dead: the row goes, moves ready, moves ready counted, and is buried; nothing is sent", async () => {
    const { world, topic, name } = await filled(
      4,
      (item, ctx) => [done(), nextAt(ctx.now + 5), retryAt(ctx.now + 6, "no"), dead("gone")][number(item)],
      { path: "queue" },
    );
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 9 });
    expect(report).toMatchObject({ processed: 4, stopped: null });
    const now = world.clock.now;
    expect(await world.rows(name)).toMatchObject([
      { lane: 0, at: now + 5, attempts: 0 },
      { lane: 0, at: now + 6, attempts: 1, error: "no" },
    ]);
    expect(await world.deadLetters(name)).toMatchObject([{ reason: "gone" }]);
    expect(world.queue.calls).toBe(0);
  });

  test("a cursor that answers now is worked once in a pass", async () => {
    const { world, topic, ran } = await filled(1, (_, ctx) => nextAt(ctx.now));
    await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 9 });
    expect(ran).toEqual([0]);
  });

  test("items are settled in parties of settleEvery, and each of the last party too", async () => {
    const faulty = faultyDb();
    const { world, topic, name } = await filled(7, undefined, { settleEvery: 3 }, faulty.db);
    faulty.calls = 0;
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 9 });
    expect(report).toMatchObject({ processed: 7 });
    expect(faulty.calls).toBe(1 + 3);
    expect(await world.rows(name)).toEqual([]);
  });

  test("of a row that another has taken over: lost, and counted as that alone", async () => {
    const { world, topic, name } = await filled(3, async (item) => {
      if (number(item) !== 1) return done();
      const at = world.clock.now + 300 * SECOND;
      const lease = leaseOf(world.runtime, topic);
      await claim(DB, lease, { now: at, ahead: at, limit: 9, path: "any", load: false }).run();
      return done();
    });
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 3 });
    expect(report).toEqual({ processed: 1, released: 0, lost: 2, stopped: null, error: null });
    expect((await world.rows(name)).map(({ lane, lapses }) => [lane, lapses])).toEqual([
      [1, 1],
      [1, 1],
    ]);
  });
});

describe("D1 failing", () => {
  test("the third settle of five: two finished, three keep their leases until they lapse", async () => {
    const faulty = faultyDb();
    const { world, topic, name, ran } = await filled(5, undefined, {}, faulty.db);
    faulty.calls = 0;
    faulty.ask = (call) => (call === 1 + 3 ? "fail" : "pass");
    const report = await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 5 });
    expect(report).toEqual({
      processed: 2,
      released: 0,
      lost: 0,
      stopped: "failed",
      error: "Error: D1_ERROR: Network connection lost.",
    });
    expect(ran).toEqual([0, 1, 2]);
    const leased = { lane: 1, at: world.clock.now + 300 * SECOND, attempts: 0, deliveries: 0, lapses: 0 };
    expect(await world.rows(name)).toMatchObject([leased, leased, leased]);
    expect((await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 5 })).processed).toBe(0);
    world.clock.now += 300 * SECOND;
    expect((await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 5 })).processed).toBe(3);
    expect(ran).toEqual([0, 1, 2, 2, 3, 4]);
  });

  test("the claim: an error value, nothing leased; a claim whose answer is lost: the leases lapse", async () => {
    const faulty = faultyDb();
    const { world, topic, name, ran } = await filled(2, undefined, {}, faulty.db);
    faulty.ask = () => "fail";
    const drain = () => world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 5 });
    expect(await drain()).toMatchObject({ processed: 0, stopped: "failed" });
    expect((await world.rows(name)).map(({ lane }) => lane)).toEqual([0, 0]);
    faulty.ask = () => "lose";
    expect(await drain()).toMatchObject({ processed: 0, stopped: "failed" });
    faulty.ask = () => "pass";
    expect(await drain()).toMatchObject({ processed: 0, stopped: null });
    world.clock.now += 300 * SECOND;
    expect(await drain()).toMatchObject({ processed: 2 });
    expect(ran).toEqual([0, 1]);
    expect(await world.deadLetters(name)).toEqual([]);
  });

  test("the release: an error value, and the rest keep their leases", async () => {
    const faulty = faultyDb();
    const { world, topic, name } = await filled(3, (_, ctx) => void ctx.budget.trySpend(9), {}, faulty.db);
    faulty.calls = 0;
    faulty.ask = (call) => (call === 3 ? "fail" : "pass");
    const report = await world.context().outbox.drainWithin(topic, within(10, world), { limit: 3, cost: 1 });
    expect(report).toMatchObject({ processed: 1, released: 0, stopped: "failed" });
    expect((await world.rows(name)).map(({ lane }) => lane)).toEqual([1, 1]);
  });
});

describe("an item that kills its isolate", () => {
  for (const settleEvery of [1, 5]) {
    test(`ends dead by maxDeliveries, and the other nine settle, run at most twice (settleEvery ${settleEvery})`, async () => {
      const faulty = faultyDb();
      let gone = false;
      faulty.ask = () => (gone ? "fail" : "pass");
      const { world, topic, name, ran } = await filled(
        10,
        (item) => {
          if (number(item) === 4) gone = true;
          return done();
        },
        { maxDeliveries: 2, settleEvery },
        faulty.db,
      );
      for (let pass = 0; pass < 6; pass += 1) {
        await world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 10 });
        gone = false;
        world.clock.now += 300 * SECOND;
      }
      expect(await world.rows(name)).toEqual([]);
      expect(await world.deadLetters(name)).toMatchObject([
        { reason: "deliveries_exhausted", payload: '{"n":4}', deliveries: 2, attempts: 0 },
      ]);
      expect(ran.filter((n) => n === 4)).toHaveLength(1 + 2);
      const others = [0, 1, 2, 3, 5, 6, 7, 8, 9].map((n) => ran.filter((one) => one === n).length);
      expect(Math.max(...others)).toBeLessThanOrEqual(settleEvery === 1 ? 1 : 2);
      expect(Math.min(...others)).toBe(1);
    });
  }

  test("rows that have run are settled before one that has lapsed begins", async () => {
    const faulty = faultyDb();
    let gone = false;
    faulty.ask = () => (gone ? "fail" : "pass");
    const { world, topic, name } = await filled(
      1,
      (item) => {
        if (number(item) === 0) gone = true;
        return done();
      },
      { settleEvery: 100 },
      faulty.db,
    );
    const drain = () => world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 10 });
    await drain();
    gone = false;
    world.clock.now += 300 * SECOND;
    await DB.batch(world.context().outbox.enqueue(topic, [{ payload: { n: 1 } }, { payload: { n: 2 } }]));
    expect(await drain()).toMatchObject({ processed: 2, stopped: "failed" });
    expect(await world.rows(name)).toMatchObject([{ lane: 2, payload: '{"n":0}', deliveries: 1, lapses: 1 }]);
  });
});

test("drains at once share the rows and no row", async () => {
  const { world, topic, name, ran } = await filled(60, () => new Promise((resolve) => setTimeout(resolve, 1)));
  const drains = Array.from({ length: 6 }, () =>
    world.context().outbox.drainWithin(topic, unboundedBudget(), { limit: 15 }),
  );
  const reports = await Promise.all(drains);
  expect(reports.reduce((sum, { processed }) => sum + processed, 0)).toBe(60);
  expect(ran.sort((a, b) => a - b)).toEqual(Array.from({ length: 60 }, (_, n) => n));
  expect(await world.rows(name)).toEqual([]);
});

test("a tick drains a drain topic and sends nothing; a paused one is left as it is", async () => {
  const { world, topic, name, ran } = await filled(3);
  await changeTopic(world.invocation(), topic, { paused: true }, "user:test");
  expect(await world.tick()).toMatchObject({ drained: 0, claimed: 0 });
  expect((await world.rows(name)).map(({ lane, turn }) => [lane, turn])).toEqual([
    [0, 0],
    [0, 0],
    [0, 0],
  ]);
  await changeTopic(world.invocation(), topic, { paused: false }, "user:test");
  expect(await world.tick()).toMatchObject({ drained: 3, claimed: 0 });
  expect(ran).toEqual([0, 1, 2]);
  expect(world.queue.calls).toBe(0);
});
