import { beforeEach, describe, expect, test } from "vitest";
import type { Limits } from "../../src/core/budget.ts";
import { DAY, MINUTE, SECOND } from "../../src/core/time.ts";
import { defineModule, DEFAULT_LIMITS, done, type Module, UNBOUNDED } from "../../src/index.ts";
import { notReached, parseTick, type TickRow } from "../../src/tick/record.ts";
import { tick } from "../../src/tick/tick.ts";
import { createWorld, DB, faultyDb, oneTopic, type World } from "../outbox/world.ts";

beforeEach(() => DB.prepare("DELETE FROM ticks").run());

async function records(): Promise<TickRow[]> {
  const { results } = await DB.prepare("SELECT * FROM ticks ORDER BY id").all();
  return results.map((row) => {
    const parsed = parseTick(row);
    if (parsed === null) throw new Error(`not a record: ${JSON.stringify(row)}`);
    return parsed;
  });
}

const latest = async () => (await records()).at(-1);

/** Modules that note when they are called. */
function callers(names: readonly string[], called: string[], act: (name: string) => unknown = () => {}): Module[] {
  return names.map((name) =>
    defineModule(name, {
      async scheduled() {
        called.push(name);
        await act(name);
      },
    }),
  );
}

/** Starts a tick whose module `name` never returns, and leaves it there. */
async function kill(world: World, called: string[], name: string, limits: Limits = DEFAULT_LIMITS): Promise<void> {
  void world.tick(limits);
  while (called.at(-1) !== name) await scheduler.wait(1);
}

describe("a tick's record", () => {
  test("is open, and names the module, while that module runs; it is there before the first", async () => {
    const seen: (TickRow | undefined)[] = [];
    const called: string[] = [];
    const world = createWorld(callers(["a", "b"], called, async () => seen.push(await latest())));
    await world.tick(DEFAULT_LIMITS);
    expect(seen.map((row) => [row?.running, row?.ended_at, row?.modules])).toEqual([
      ["a", null, ["a", "b"]],
      ["b", null, ["a", "b"]],
    ]);
  });

  test("is closed with what each module was offered, charged and really used", async () => {
    const quiet = defineModule("quiet", {});
    const asks = defineModule("asks", {
      async scheduled({ budget, db }) {
        if (budget.trySpend({ queries: 2, subrequests: 1 })) await db.prepare("SELECT 1").run();
      },
    });
    const world = createWorld([quiet, asks]);
    const report = await world.tick(DEFAULT_LIMITS);
    const row = await latest();
    expect(row).toMatchObject({ running: null, started_at: world.clock.now, ended_at: world.clock.now });
    expect(row?.report.modules).toMatchObject([
      {
        module: "quiet",
        charged: { queries: 0, subrequests: 0 },
        measured: { queries: 0, subrequests: 0 },
        error: null,
      },
      {
        module: "asks",
        charged: { queries: 2, subrequests: 1 },
        measured: { queries: 1, subrequests: 0 },
        warning: null,
      },
    ]);
    // The runtime: four to open, one to say that `asks` runs, three to close.
    expect(row?.report).toMatchObject({ calls: 4, queries: 9, subrequests: 0 });
    expect(report).toEqual({ ...row?.report, rowsRead: report.rowsRead, rowsWritten: report.rowsWritten });
  });

  test("says what each topic used: claims and sends, what its pump claimed, once, and what was drained", async () => {
    const sent = oneTopic(() => done(), { itemsPerMessage: 10 });
    const drained = oneTopic(() => done(), { path: "drain" });
    const world = createWorld([sent.module, drained.module]);
    const items = (count: number) => Array.from({ length: count }, (_, n) => ({ payload: { n } }));
    const ctx = world.context();
    await ctx.db.batch([
      ...ctx.outbox.enqueue(sent.topic, items(1_000)),
      ...ctx.outbox.enqueue(drained.topic, items(2)),
    ]);
    const { topics } = await world.tick(UNBOUNDED);
    expect(topics).toEqual([
      // A row written for each claim, and the send of 80 messages.
      expect.objectContaining({
        topic: sent.topic.name,
        claimed: 800,
        sent: 800,
        messages: 80,
        pumped: 0,
        drained: 0,
        queries: 1,
        rowsWritten: 800,
        subrequests: 1,
      }),
      // The claim and the delete of each, and the statements: a claim, and a settle an item.
      expect.objectContaining({ topic: drained.topic.name, claimed: 0, drained: 2, rowsWritten: 4, subrequests: 0 }),
    ]);
    expect((await latest())?.report.topics).toEqual(topics);

    await world.deliver(world.queue.take().filter(({ body }) => "pump" in (body as object)));
    const pumped: unknown[] = [];
    for (let nth = 0; nth < 2; nth += 1) {
      world.clock.now += MINUTE;
      pumped.push((await world.tick(UNBOUNDED)).topics);
    }
    expect(pumped).toEqual([[expect.objectContaining({ topic: sent.topic.name, claimed: 0, pumped: 200 })], []]);
  });

  test("a module that throws spoils nobody's tick, and its failure is kept", async () => {
    const called: string[] = [];
    const world = createWorld(
      callers(["a", "b", "c"], called, (name) => {
        if (name === "b") throw new Error("no luck");
      }),
    );
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ failed: 1 });
    expect(called).toEqual(["a", "b", "c"]);
    const row = await latest();
    expect(row?.ended_at).not.toBeNull();
    expect(row?.report.modules.map(({ error }) => error)).toEqual([null, "Error: no luck", null]);
    expect(world.logs.filter(({ event }) => event === "module_failed")).toMatchObject([{ module: "b" }]);
  });

  test("a throw in a module is no reason to leave its drain undone", async () => {
    const { topic, name } = oneTopic(() => done(), { path: "drain" });
    const module = defineModule(name.split(".")[0] as string, {
      topics: [topic],
      scheduled: async () => Promise.reject(new Error("first")),
    });
    const world = createWorld([module]);
    const ctx = world.context();
    await ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }]));
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ drained: 1, failed: 1 });
  });
});

describe("a tick that died", () => {
  const names = ["a", "b", "c", "d", "e"];

  test("in its third module leaves a record that names it and those not reached", async () => {
    const called: string[] = [];
    await kill(createWorld(callers(names, called, (name) => name === "c" && new Promise(() => {}))), called, "c");
    const row = (await latest()) as TickRow;
    expect(row).toMatchObject({ running: "c", ended_at: null });
    expect(notReached(row)).toEqual(["d", "e"]);
  });

  test("is told of by the very next tick, once, and that one starts at the first module not reached", async () => {
    let dying = true;
    const called: string[] = [];
    const world = createWorld(callers(names, called, (name) => name === "c" && dying && new Promise(() => {})));
    await kill(world, called, "c");
    dying = false;
    called.length = 0;

    world.clock.now += MINUTE;
    await world.tick(DEFAULT_LIMITS);
    expect(called).toEqual(["d", "e", "a", "b", "c"]);
    expect(world.logs.filter(({ event }) => event === "tick_died")).toMatchObject([
      { level: "error", in: "c", notReached: ["d", "e"] },
    ]);

    called.length = 0;
    world.clock.now += MINUTE;
    await world.tick(DEFAULT_LIMITS);
    expect(called).toEqual(names);
    expect(world.logs.filter(({ event }) => event === "tick_died")).toHaveLength(1);
  });

  test("in its last module is followed by a tick that starts at the first", async () => {
    let dying = true;
    const called: string[] = [];
    const world = createWorld(callers(names, called, (name) => name === "e" && dying && new Promise(() => {})));
    await kill(world, called, "e");
    dying = false;
    called.length = 0;
    world.clock.now += MINUTE;
    await world.tick(DEFAULT_LIMITS);
    expect(called).toEqual(names);
    expect(world.logs.find(({ event }) => event === "tick_died")).toMatchObject({ in: "e", notReached: [] });
  });

  test("is not told of while its wall has not passed: it may still run", async () => {
    let dying = true;
    const called: string[] = [];
    const world = createWorld(callers(names, called, (name) => name === "c" && dying && new Promise(() => {})));
    await kill(world, called, "c");
    dying = false;
    world.clock.now += 25 * SECOND;
    await world.tick(DEFAULT_LIMITS);
    expect(world.logs.filter(({ event }) => event === "tick_died")).toEqual([]);
  });
});

describe("a tick that cannot read the database", () => {
  test("fires nothing, and the next makes good", async () => {
    const ran: unknown[] = [];
    const { topic, name } = oneTopic((item) => void ran.push(item.payload));
    const called: string[] = [];
    const module = defineModule(name.split(".")[0] as string, {
      topics: [topic],
      scheduled: async () => void called.push("scheduled"),
    });
    const faulty = faultyDb();
    const world = createWorld([module], { db: faulty.db });
    const ctx = world.context();
    await ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }]));

    faulty.ask = () => "fail";
    await expect(world.tick(DEFAULT_LIMITS)).rejects.toThrow("Network connection lost");
    expect([called, world.queue.calls, await records()]).toEqual([[], 0, []]);

    faulty.ask = () => "pass";
    world.clock.now += MINUTE;
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 1, sent: 1 });
    await world.deliver(world.queue.take());
    expect([called, ran]).toEqual([["scheduled"], [{ n: 1 }]]);
  });

  test("nor does one whose opening landed and whose answer was lost; it is told of later as having reached nobody", async () => {
    const called: string[] = [];
    const faulty = faultyDb();
    const world = createWorld(callers(["a", "b"], called), { db: faulty.db });
    faulty.ask = () => "lose";
    await expect(world.tick(DEFAULT_LIMITS)).rejects.toThrow();
    faulty.ask = () => "pass";
    world.clock.now += MINUTE;
    await world.tick(DEFAULT_LIMITS);
    expect(called).toEqual(["a", "b"]);
    expect(world.logs.find(({ event }) => event === "tick_died")).toMatchObject({ in: null, notReached: ["a", "b"] });
  });

  test("a claim that fails is counted, and the modules run all the same", async () => {
    const { topic, name } = oneTopic(() => done());
    const called: string[] = [];
    const module = defineModule(name.split(".")[0] as string, {
      topics: [topic],
      scheduled: async () => void called.push("scheduled"),
    });
    const faulty = faultyDb();
    const world = createWorld([module], { db: faulty.db });
    const ctx = world.context();
    await ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }]));
    // The first call opens the record, the second claims.
    const opening = faulty.calls + 1;
    faulty.ask = (call) => (call === opening + 1 ? "fail" : "pass");
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 0, failed: 1 });
    expect(called).toEqual(["scheduled"]);
    expect(world.warnings()).toEqual(["claim_failed"]);
  });
});

describe("records that are old", () => {
  test("are deleted at most twenty a tick, those of the last seven days never", async () => {
    const world = createWorld([]);
    const { now } = world.clock;
    const insert = (at: number) =>
      DB.prepare(
        "INSERT INTO ticks (at, started_at, wall_until, modules, ended_at) VALUES (?1, ?1, ?1, '[]', ?1)",
      ).bind(at);
    await DB.batch([
      ...Array.from({ length: 30 }, (_, i) => insert(now - 8 * DAY + i * MINUTE)),
      ...Array.from({ length: 5 }, (_, i) => insert(now - 7 * DAY + i * MINUTE)),
    ]);
    const left = [];
    for (let i = 0; i < 3; i += 1) {
      await world.tick();
      left.push((await records()).length);
    }
    expect(left).toEqual([36 - 20, 17 - 10, 8]);
  });
});

describe("a tick's now", () => {
  const nows: number[] = [];
  const module = defineModule("clocked", { scheduled: async ({ now }) => void nows.push(now) });

  test("is the later of the scheduled time and the clock", async () => {
    nows.length = 0;
    const { runtime, clock } = createWorld([module]);
    await tick(runtime, clock.now - 3 * SECOND, DEFAULT_LIMITS);
    await tick(runtime, clock.now + 3 * SECOND, DEFAULT_LIMITS);
    expect(nows).toEqual([clock.now, clock.now + 3 * SECOND]);
    expect((await records()).map(({ at }) => at)).toEqual(nows);
  });

  test("may go back: the tick runs, nothing is called dead, and what the later tick leased is run once", async () => {
    const ran: unknown[] = [];
    const { topic, name, module: owner } = oneTopic((item) => void ran.push(item.payload));
    const world = createWorld([owner]);
    const ctx = world.context();
    await ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }]));
    await world.tick(DEFAULT_LIMITS);
    world.clock.now -= 10 * MINUTE;
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 0, failed: 0 });
    expect(world.warnings()).toEqual([]);
    const messages = world.queue.take();
    await world.deliver([...messages, ...messages]);
    expect([ran, await world.rows(name)]).toEqual([[{ n: 1 }], []]);
  });
});
