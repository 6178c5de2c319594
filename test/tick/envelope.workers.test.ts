import * as v from "valibot";
import { beforeEach, describe, expect, test } from "vitest";
import page from "../../docs/envelope.md?raw";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { IDLE_TICK } from "../../src/cost/envelope.ts";
import { dead, DEFAULT_LIMITS, defineModule, type Module, nextAt, topic, UNBOUNDED } from "../../src/index.ts";
import { job, type Processor } from "../../src/jobs/catalog.ts";
import { HAND_OVERS_A_TICK, JOBS_A_TICK } from "../../src/jobs/hand-over.ts";
import type { ActiveJob, JobsAtWork } from "../../src/jobs/selection.ts";
import type { TickReport } from "../../src/tick/record.ts";
import { RUNTIME_RESERVE, tick } from "../../src/tick/tick.ts";
import { createWorld, DB, type World } from "../outbox/world.ts";
import { createStage } from "../schedules/stage.ts";

/** The figures of docs/envelope.md, "The tick": what a tick uses of the platform's 50 queries and 50 subrequests. */

const TABLES = [
  "ticks",
  "items",
  "item_keys",
  "dead_letters",
  "pumps",
  "topics",
  "jobs",
  "slots",
  "schedules",
  "firings",
  "runs",
];
beforeEach(() => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`))));

/** The row of the page's table that begins with `what`: its figures, in order. */
function figures(what: string): number[] {
  const line = page.split("\n").find((one) => one.startsWith(`| ${what} |`));
  if (line === undefined) throw new Error(`docs/envelope.md has no row "${what}"`);
  return line
    .split("|")
    .slice(2, -1)
    .map((cell) => Number(cell.trim()));
}

const used = ({ calls, queries, subrequests }: TickReport) => [calls, queries, subrequests];
const names = (first: number, count: number) => Array.from({ length: count }, (_, i) => `mod-${first + i}`);

/** A module with a `scheduled` that asks for one query and makes it, and a topic of the given path. */
function busy(name: string, path: "queue" | "drain"): Module {
  return defineModule(name, {
    async scheduled({ budget, db }) {
      if (budget.trySpend({ queries: 1 })) await db.prepare("SELECT 1").first();
    },
    topics: [
      topic(`${name}.work`, {
        schema: v.object({ n: v.number() }),
        path,
        async handle({ payload: { n } }, { fetch, now }) {
          await fetch("https://example.org/");
          // The dearest ways to end: a dead letter of a keyed item, and a move that would be sent at once.
          return n % 2 === 0 ? dead("worst") : nextAt(now + 10 * SECOND);
        },
        onSettle: (_, { db }) => [db.prepare("SELECT 1")],
      }),
    ],
  });
}

/** Everything is due: backlogs beyond a page, each item with a key and a lease that has lapsed once before. */
async function fill(world: World, modules: readonly Module[], rows: number): Promise<void> {
  const ctx = world.context();
  for (const { topics } of modules) {
    const items = Array.from({ length: rows }, (_, n) => ({ payload: { n }, key: `k${n}` }));
    await ctx.db.batch(ctx.outbox.enqueue(topics[0] as never, items as never));
  }
  await DB.prepare("UPDATE items SET lane = 1, at = at - 1000, turn = 1").run();
}

function everythingDue() {
  const sent = names(1, 4).map((name) => busy(name, "queue"));
  const refused = names(5, 4).map((name) => busy(name, "queue"));
  const drained = names(9, 4).map((name) => busy(name, "drain"));
  const modules = [...sent, ...refused, ...drained];
  const world = createWorld(modules, { ports: { fetch: async () => new Response() } });
  const refusing = new Set(refused.map(({ topics }) => topics[0]?.name));
  const take = world.queue.sendBatch.bind(world.queue);
  world.queue.sendBatch = async (batch) => {
    const messages = [...batch];
    const [first] = messages as { body: { topic: string } }[];
    if (refusing.has(first?.body.topic)) throw new Error("Too Many Requests");
    return take(messages);
  };
  return { modules, world };
}

/** So many jobs that are due every minute, dealt out to the queue and to Workflows: as many carriers as a tick calls. */
function jobsDue(world: World, count: number, carriers: number): JobsAtWork {
  const createBatch = async () => ({ created: [], errors: [] });
  const works: ActiveJob["work"][] = [{ kind: "module", handle: async () => {} }];
  while (works.length < carriers) works.push({ kind: "workflow", workflow: { createBatch } as unknown as Workflow });
  const active = Array.from({ length: count }, (_, n): ActiveJob => {
    const work = works[n % carriers] as ActiveJob["work"];
    const processor: Processor = work.kind === "module" ? work : { kind: "workflow", binding: "FLOW" };
    const every = work.kind === "module" ? "* * * * *" : "*/5 * * * *";
    return { job: job({ id: `job-${n}`, cron: every, processor }), kind: work.kind, work };
  });
  return { active, queue: world.queue as unknown as Queue };
}

/** A tick with so many stored schedules due: a third of them run, a third would write, a third say nothing. */
async function withSchedules(world: World, jobs: JobsAtWork, count: number) {
  const stage = await createStage();
  const texts = ["probe look", "probe change", "please do it"];
  const put = (n: number) =>
    DB.prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by, anchored_at)
       VALUES (?1, ?1, '* * * * *', 'UTC', ?2, 'inbox:ops', 'new', '{"actions":["probe:read"]}', 1, ?3, 'http:amy', ?3)`,
    ).bind(`s-${n}`, texts[n % 3], world.clock.now - MINUTE);
  for (let n = 0; n < count; n += 1) await put(n).run();
  const report = await tick(world.runtime, world.clock.now, DEFAULT_LIMITS, jobs, stage.dispatcher);
  return { report, stage };
}

describe("a tick with everything due at the default limits", () => {
  test("stays within 50 queries and 50 subrequests, and uses what the page says", async () => {
    const { modules, world } = everythingDue();
    await fill(world, modules, 120);
    const report = await world.tick(DEFAULT_LIMITS);
    expect(report).toMatchObject({ claimed: 800, sent: 400 });
    expect(report.refused).toHaveLength(4);
    expect(report.drained).toBeGreaterThan(0);
    expect(used(report)).toEqual(figures("everything due, 12 modules, 12 topics"));
    expect(report.queries).toBeLessThanOrEqual(45);
    expect(report.subrequests).toBeLessThanOrEqual(45);
  });

  test("and so with as many jobs due as it claims, by as many carriers as it calls, also when the queue refuses them", async () => {
    for (const refuses of [false, true]) {
      await DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`)));
      const { modules, world } = everythingDue();
      await fill(world, modules, 120);
      const jobs = jobsDue(world, JOBS_A_TICK, HAND_OVERS_A_TICK);
      const send = world.queue.sendBatch;
      world.queue.sendBatch = async (batch) => {
        const messages = [...batch];
        if (refuses && messages.some(({ body }) => "job" in (body as object))) throw new Error("Too Many Requests");
        return send(messages);
      };
      const report = await tick(world.runtime, world.clock.now, DEFAULT_LIMITS, jobs);
      expect(report).toMatchObject({ claimed: 800, sent: 400, slots: JOBS_A_TICK });
      if (!refuses) expect(used(report)).toEqual(figures("everything due, and 50 jobs by four carriers"));
      expect(report.queries).toBeLessThanOrEqual(45);
      expect(report.subrequests).toBeLessThanOrEqual(45);
    }
  });

  test("and so with a hundred schedules due beside them, two thirds of which are refused", async () => {
    const { modules, world } = everythingDue();
    await fill(world, modules, 120);
    const jobs = jobsDue(world, JOBS_A_TICK, HAND_OVERS_A_TICK);
    const { report } = await withSchedules(world, jobs, 100);
    expect(report).toMatchObject({ claimed: 800, sent: 400, slots: JOBS_A_TICK, firings: 100 });
    expect(used(report)).toEqual(figures("everything due, 50 jobs and 100 schedules"));
    expect(report.queries).toBeLessThanOrEqual(50);
    expect(report.subrequests).toBeLessThanOrEqual(50);
  });

  test("and the runtime's own part of it is within what it reserves", async () => {
    const { modules, world } = everythingDue();
    await fill(world, modules, 120);
    const jobs = jobsDue(world, JOBS_A_TICK, HAND_OVERS_A_TICK);
    const { report } = await withSchedules(world, jobs, 100);
    const measured = (unit: "queries" | "subrequests") =>
      report.modules.reduce((sum, module) => sum + module.measured[unit], 0);
    const own = {
      queries: report.queries - measured("queries") - modules.length,
      subrequests: report.subrequests - measured("subrequests"),
    };
    expect(own.queries).toBeLessThanOrEqual(RUNTIME_RESERVE.queries);
    expect(own.subrequests).toBeLessThanOrEqual(RUNTIME_RESERVE.subrequests);
  });

  test("and so does every tick after it, and each module gets its turn", async () => {
    const { modules, world } = everythingDue();
    await fill(world, modules, 200);
    const drained = new Set<string>();
    for (let i = 0; i < 12; i += 1) {
      const report = await world.tick(DEFAULT_LIMITS);
      expect(report.queries).toBeLessThanOrEqual(45);
      expect(report.subrequests).toBeLessThanOrEqual(45);
      for (const one of report.modules) if (one.drained > 0) drained.add(one.module);
      world.queue.take();
      world.clock.now += MINUTE;
    }
    expect(drained.size).toBeGreaterThanOrEqual(8);
  });

  test("however little a message holds: rows of a chunked topic that each travel alone are no more sends", async () => {
    const work = topic("chunks.work", { schema: v.object({}), itemsPerMessage: 100, handle: () => {} });
    const world = createWorld([defineModule("chunks", { topics: [work] })]);
    const ctx = world.context();
    await ctx.db.batch(
      ctx.outbox.enqueue(
        work,
        Array.from({ length: 3_000 }, () => ({ payload: {} })),
      ),
    );
    await DB.prepare("UPDATE items SET lane = 1, at = at - 1000").run();
    const report = await world.tick(DEFAULT_LIMITS);
    // Eight sends, and the chain's first message.
    expect(report).toMatchObject({ claimed: 800, sent: 800, subrequests: 9 });
  });
});

describe("a tick with nothing due", () => {
  test("makes two calls, and one more for each module that has a scheduled part", async () => {
    const quiet = defineModule("quiet", { topics: [topic("quiet.work", { schema: v.object({}), handle: () => {} })] });
    const idle = (name: string) => defineModule(name, { scheduled: async () => {} });
    const nothing = await createWorld([quiet]).tick(DEFAULT_LIMITS);
    expect(used(nothing)).toEqual(figures("nothing due"));
    // Its record, opened and closed. One that is a week old goes with it, in a deployment that is: the third.
    expect(nothing.rowsWritten).toBe(IDLE_TICK.rowsWritten - 1);
    expect(nothing.rowsRead).toBeLessThanOrEqual(IDLE_TICK.rowsRead);
    const four = await createWorld([quiet, ...names(1, 4).map(idle)]).tick(DEFAULT_LIMITS);
    expect(used(four)).toEqual(figures("nothing due, four modules with a `scheduled`"));
    expect(four.calls).toBeLessThanOrEqual(6);
  });
});

describe("a tick with jobs due", () => {
  test.each([3, 50])(
    "claims %i of them by three statements in one call, and hands them over by one send",
    async (count) => {
      const quiet = defineModule("quiet", {
        topics: [topic("quiet.work", { schema: v.object({}), handle: () => {} })],
      });
      const world = createWorld([quiet]);
      const report = await tick(world.runtime, world.clock.now, DEFAULT_LIMITS, jobsDue(world, count, 1));
      expect(report.slots).toBe(count);
      expect(used(report)).toEqual(figures("3 to 50 jobs due, by the queue"));
    },
  );
});

describe("a tick with stored schedules", () => {
  test.each([
    [0, "nothing due, and the tables of schedules"],
    [1, "one schedule due"],
    [100, "100 schedules due"],
  ])("with %i of them due: one call more than without, and one to the Workflow", async (count, row) => {
    const quiet = defineModule("quiet", { topics: [topic("quiet.work", { schema: v.object({}), handle: () => {} })] });
    const world = createWorld([quiet]);
    const { report, stage } = await withSchedules(world, { active: [], queue: null }, count);
    expect(report.firings).toBe(count);
    expect(used(report)).toEqual(figures(row));
    expect(stage.runs.calls).toBe(count === 0 ? 0 : 1);
  });
});

describe("a step of a pump", () => {
  test("claims a page in one call and makes at most ten sends and its next message", async () => {
    const work = topic("pumped.work", { schema: v.object({}), handle: () => {} });
    const world = createWorld([defineModule("pumped", { topics: [work] })]);
    const ctx = world.context();
    await ctx.db.batch(
      ctx.outbox.enqueue(
        work,
        Array.from({ length: 2_000 }, () => ({ payload: {} })),
      ),
    );
    const report = await world.tick(UNBOUNDED);
    expect(used(report)).toEqual(figures("a backlog of one topic, begun"));
    const pump = world.queue.take().filter(({ body }) => "pump" in (body as object));
    const { meter } = world.invocation();
    await world.deliver(pump, meter);
    expect([meter.calls, meter.queries, meter.subrequests]).toEqual(figures("a step of its pump, 1,000 messages"));
  });
});
