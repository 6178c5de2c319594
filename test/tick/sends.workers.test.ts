import * as v from "valibot";
import { beforeEach, describe, expect, test } from "vitest";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { DEFAULT_LIMITS, defineModule, done, type Module, topic } from "../../src/index.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import { createWorld, DB, faultyDb, type SentMessage, type World } from "../outbox/world.ts";

beforeEach(() => DB.batch(["ticks", "items", "pumps", "topics"].map((table) => DB.prepare(`DELETE FROM ${table}`))));

interface Stage {
  world: World;
  /** Of each item that ran, how often. */
  ran: Map<string, number>;
  put(topic: number, count: number, dueAt?: number): Promise<string[]>;
}

/** Topics whose items note that they ran. */
function stage(topics: number, prefix = "s", db?: D1Database): Stage {
  const ran = new Map<string, number>();
  const modules: Module[] = Array.from({ length: topics }, (_, i) =>
    defineModule(`${prefix}${i}`, {
      topics: [
        topic(`${prefix}${i}.work`, {
          schema: v.object({}),
          handle({ id }) {
            ran.set(id, (ran.get(id) ?? 0) + 1);
            return done();
          },
        }),
      ],
    }),
  );
  const world = createWorld(modules, db === undefined ? {} : { db });
  return {
    world,
    ran,
    async put(at, count, dueAt = world.clock.now) {
      const ctx = world.context();
      const items = Array.from({ length: count }, () => ({ payload: {}, dueAt }));
      const statements = ctx.outbox.enqueue(modules[at]?.topics[0] as never, items as never);
      await ctx.db.batch(statements);
      return [...statements.ids];
    },
  };
}

const topicsOf = (messages: readonly SentMessage[]) =>
  [...new Set(messages.map(({ body }) => (body as { topic: string }).topic))].sort();
const isPump = ({ body }: SentMessage) => "pump" in (body as object);
const once = (ids: readonly string[]) => new Map(ids.map((id) => [id, 1]));
const left = async () => DB.prepare("SELECT count(*) AS n FROM items").first("n");

describe("what is due by the queue", () => {
  test("in the coming minute is sent with its delay, never early; what is due later waits", async () => {
    const { world, put } = stage(1);
    const { now } = world.clock;
    for (const [seconds, count] of [
      [0, 1],
      [0.2, 1],
      [37, 1],
      [59.5, 1],
      [74, 1],
      [80, 1],
    ] as const) {
      await put(0, count, now + seconds * SECOND);
    }
    await world.tick(DEFAULT_LIMITS);
    expect(world.queue.take().map(({ delaySeconds }) => delaySeconds)).toEqual([0, 1, 37, 60, 74]);
    const rows = await world.rows("s0.work");
    expect(rows.map(({ lane }) => lane)).toEqual([0, 1, 1, 1, 1, 1]);
    // The lease covers the delay.
    for (const { lane, at, due_at } of rows) if (lane === 1) expect(at).toBe(due_at + 300 * SECOND);
  });

  test("in more than eight topics: the oldest first, the others at the next tick", async () => {
    const { world, put } = stage(12);
    for (let i = 0; i < 12; i += 1) await put(i, 1, world.clock.now - i * SECOND);
    await world.tick(DEFAULT_LIMITS);
    const first = topicsOf(world.queue.take());
    expect(first).toHaveLength(8);
    for (let i = 5; i < 12; i += 1) expect(first).toContain(`s${i}.work`);
    world.clock.now += MINUTE;
    await world.tick(DEFAULT_LIMITS);
    expect([...first, ...topicsOf(world.queue.take())].sort()).toHaveLength(12);
  });

  test("starves no topic, however far behind eight others are", async () => {
    const { world, put } = stage(12);
    for (let i = 0; i < 9; i += 1) await put(i, 2_000, world.clock.now - 60 * MINUTE);
    for (let i = 9; i < 12; i += 1) await put(i, 1);
    const seen = new Set<string>();
    for (let i = 0; i < 12; i += 1) {
      await world.tick(DEFAULT_LIMITS);
      for (const name of topicsOf(world.queue.take())) seen.add(name);
      world.clock.now += MINUTE;
    }
    expect(seen.size).toBe(12);
  });

  test("is not claimed while its topic is paused", async () => {
    const { world, put } = stage(1);
    await put(0, 3);
    const [work] = [...world.runtime.topics.values()];
    await changeTopic(world.invocation(), work as never, { paused: true }, "test");
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 0, drained: 0 });
    await changeTopic(world.invocation(), work as never, { paused: false }, "test");
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 3, sent: 3 });
  });
});

describe("a queue that refuses", () => {
  test("has its topic drained this once, and the record says so; a message that comes late finds nothing", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 5);
    // It lands, and the answer is an error.
    const take = world.queue.sendBatch.bind(world.queue);
    world.queue.sendBatch = async (batch) => {
      await take(batch);
      throw new Error("Too Many Requests");
    };
    const report = await world.tick(DEFAULT_LIMITS);
    expect(report).toMatchObject({ claimed: 5, sent: 0, failed: 1, refused: ["s0.work"], drained: 5 });
    const { report: stored } = (await DB.prepare("SELECT report FROM ticks").first<{ report: string }>()) ?? {};
    expect(JSON.parse(stored ?? "")).toMatchObject({ refused: ["s0.work"], drained: 5 });
    const late = world.queue.take();
    expect(late).toHaveLength(5);
    await world.deliver(late);
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test("has it drained within the budget; the rest is ready, in its order, and goes by the queue again", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 5);
    world.queue.mode = "refuse";
    const report = await world.tick({ ...DEFAULT_LIMITS, subrequests: 4 });
    expect(report).toMatchObject({ refused: ["s0.work"], drained: 3 });
    const rows = await world.rows("s0.work");
    expect(rows).toMatchObject([0, 1].map(() => ({ lane: 0, due_at: world.clock.now, attempts: 0, deliveries: 0 })));
    world.queue.mode = "take";
    world.clock.now += MINUTE;
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ sent: 2, drained: 0, refused: [] });
    await world.deliver(world.queue.take());
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test("that hangs is waited for once, whether it took the messages or not; each item runs once", async () => {
    const began = Date.now();
    const modes = ["hang", "take and hang"] as const;
    await Promise.all(
      modes.map(async (mode, index) => {
        const { world, put, ran } = stage(3, "hang".slice(0, 3 + index));
        const ids = [...(await put(0, 3)), ...(await put(1, 3)), ...(await put(2, 3))];
        world.queue.mode = mode;
        const report = await world.tick(DEFAULT_LIMITS);
        expect(report).toMatchObject({ sent: 0, failed: 3, subrequests: 3 });
        expect(report.drained).toBeGreaterThan(0);
        expect(report.refused).toHaveLength(3);
        await world.deliver(world.queue.take());
        world.queue.mode = "take";
        for (let i = 0; i < 5 && ran.size < ids.length; i += 1) {
          world.clock.now += MINUTE;
          await world.tick(DEFAULT_LIMITS);
          await world.deliver(world.queue.take());
        }
        expect(ran).toEqual(once(ids));
      }),
    );
    expect(await left()).toBe(0);
    expect(Date.now() - began).toBeLessThan(9 * SECOND);
  });
});

describe("a backlog", () => {
  /** Delivers what the queue holds until it is empty; answers the pump messages that went through. */
  async function empty(world: World): Promise<SentMessage[]> {
    const pumps: SentMessage[] = [];
    for (let messages = world.queue.take(); messages.length > 0; messages = world.queue.take()) {
      pumps.push(...messages.filter(isPump));
      for (let i = 0; i < messages.length; i += 500) await world.deliver(messages.slice(i, i + 500));
    }
    return pumps;
  }

  test("of three pages and more goes through one chain from one tick; each item runs once", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 3_500);
    expect(await world.tick(DEFAULT_LIMITS)).toMatchObject({ claimed: 800, sent: 800 });
    const pumps = await empty(world);
    expect(pumps).toHaveLength(3);
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test("that is due in the coming minute is pumped too, with its delay", async () => {
    const { world, put } = stage(1);
    await put(0, 1_000, world.clock.now + 37 * SECOND);
    await world.tick(DEFAULT_LIMITS);
    const sent = world.queue.take();
    await world.deliver(sent.filter(isPump));
    const rest = world.queue.take().filter((one) => !isPump(one));
    expect(rest).toHaveLength(200);
    expect(new Set(rest.map(({ delaySeconds }) => delaySeconds))).toEqual(new Set([37]));
  });

  test("a pump message that comes twice claims once", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 4_000);
    await world.tick(DEFAULT_LIMITS);
    const sent = world.queue.take();
    const [pump] = sent.filter(isPump);
    await Promise.all([world.deliver([pump as SentMessage]), world.deliver([pump as SentMessage])]);
    const next = world.queue.take();
    expect([next.filter(isPump).length, next.length]).toEqual([1, 1_001]);
    const leased = await DB.prepare("SELECT count(*) AS n FROM items WHERE lane = 1").first("n");
    expect(leased).toBe(1_800);
    world.queue.messages.push(...sent.filter((one) => !isPump(one)), ...next);
    await empty(world);
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test("has one chain, although two ticks overlap", async () => {
    const { world, put } = stage(1);
    await put(0, 4_000);
    await Promise.all([world.tick(DEFAULT_LIMITS), world.tick(DEFAULT_LIMITS)]);
    expect(world.queue.take().filter(isPump)).toHaveLength(1);
  });

  test("whose chain is lost is given another by a later tick", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 3_000);
    await world.tick(DEFAULT_LIMITS);
    await world.deliver(world.queue.take().filter((one) => !isPump(one)));
    world.clock.now += 30 * SECOND;
    await world.tick(DEFAULT_LIMITS);
    expect(world.queue.messages.filter(isPump)).toHaveLength(0);
    world.clock.now += 30 * SECOND;
    await world.tick(DEFAULT_LIMITS);
    expect(world.queue.messages.filter(isPump)).toHaveLength(1);
    await empty(world);
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test.for([
    ["a pause", { paused: true }],
    ["a flip", { path: "drain" }],
  ] as const)("%s ends its chain, and nothing is lost", async ([, change]) => {
    const { world, put } = stage(1);
    await put(0, 3_000);
    await world.tick(DEFAULT_LIMITS);
    const [work] = [...world.runtime.topics.values()];
    await changeTopic(world.invocation(), work as never, change, "test");
    const sent = world.queue.take();
    await world.deliver(sent.filter(isPump));
    expect(world.queue.take()).toEqual([]);
    expect(await left()).toBe(3_000);
    expect(world.logs.filter(({ event }) => event === "pump_ended")).toHaveLength(1);
  });

  /** How a queue's sends fail, from the nth on: `refused`, or taken with an error for an answer. */
  function failing(world: World, fails: (nth: number) => "refused" | "lost" | null): void {
    const take = world.queue.sendBatch.bind(world.queue);
    let nth = 0;
    world.queue.sendBatch = async (batch) => {
      nth += 1;
      const how = fails(nth);
      if (how === "refused") throw new Error("Too Many Requests");
      const answer = await take(batch);
      if (how === "lost") throw new Error("Too Many Requests");
      return answer;
    };
  }

  test.for([
    ["a whole page", () => "refused", 2_700],
    ["the fourth send of a page", (nth) => (nth === 4 ? "refused" : null), 2_700],
    ["a page that landed all the same", (nth) => (nth <= 10 ? "lost" : null), 2_700],
    ["the chain's next message", (nth) => (nth === 11 ? "refused" : null), 2_700],
    // The one that landed goes on, with the count of its page alone.
    ["the chain's next message, which landed all the same", (nth) => (nth === 11 ? "lost" : null), 1_700],
  ] as [string, (nth: number) => "refused" | "lost" | null, number][])(
    "stepped -> put back: %s was refused; the same message, a second later, goes on, and each item runs once",
    async ([, fails, claimed]) => {
      const { world, put, ran } = stage(1);
      const ids = await put(0, 3_500);
      await world.tick(DEFAULT_LIMITS);
      const sent = world.queue.take();
      const [pump] = sent.filter(isPump) as [SentMessage];
      const sendBatch = world.queue.sendBatch;
      failing(world, fails);
      expect(await world.deliver([pump])).toEqual([{ kind: "retry", delaySeconds: 1 }]);
      world.queue.sendBatch = sendBatch;
      world.clock.now += SECOND;
      // What landed is delivered beside the retry, and the retry twice.
      const landed = world.queue.take();
      world.queue.messages.push(...sent.filter((one) => !isPump(one)));
      const again = { ...pump, attempts: 2 };
      expect(await world.deliver([again, again, ...landed.filter(isPump)])).toEqual(
        [again, again, ...landed.filter(isPump)].map(() => ({ kind: "ack" })),
      );
      expect(world.queue.messages.filter(isPump)).toHaveLength(1);
      world.queue.messages.push(...landed.filter((one) => !isPump(one)));
      await empty(world);
      expect([ran, await left()]).toEqual([once(ids), 0]);
      expect(await DB.prepare("SELECT claimed FROM pumps").first("claimed")).toBe(claimed);
    },
  );

  test("refused for ever: its message waits a second longer each time, until its time is up; then the next tick's goes on", async () => {
    const { world, put, ran } = stage(1);
    const ids = await put(0, 3_500);
    await world.tick(DEFAULT_LIMITS);
    const sent = world.queue.take();
    const [pump] = sent.filter(isPump) as [SentMessage];
    world.queue.mode = "refuse";
    const waits: number[] = [];
    for (let attempts = 1; ; attempts += 1) {
      const [verdict] = await world.deliver([{ ...pump, attempts }]);
      if (verdict?.kind !== "retry") break;
      waits.push(verdict.delaySeconds);
      world.clock.now += verdict.delaySeconds * SECOND;
    }
    expect(waits).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    expect(await DB.prepare("SELECT count(*) AS n FROM items WHERE lane = 0").first("n")).toBe(2_700);
    world.queue.mode = "take";
    world.queue.messages.push(...sent.filter((one) => !isPump(one)));
    world.clock.now += 5 * SECOND;
    await world.tick(DEFAULT_LIMITS);
    expect(world.queue.messages.filter(isPump)).toHaveLength(1);
    await empty(world);
    expect([ran, await left()]).toEqual([once(ids), 0]);
  });

  test("whose step D1 did not take, or took without an answer: the message is retried, and nothing runs twice", async () => {
    for (const fate of ["fail", "lose"] as const) {
      const faulty = faultyDb();
      const { world, put, ran } = stage(1, fate, faulty.db);
      const ids = await put(0, 900);
      await world.tick(DEFAULT_LIMITS);
      const sent = world.queue.take();
      const [pump] = sent.filter(isPump) as [SentMessage];
      faulty.ask = () => fate;
      expect(await world.deliver([pump])).toEqual([{ kind: "retry", delaySeconds: 15 }]);
      expect(world.warnings()).toEqual(["pump_failed"]);
      faulty.ask = () => "pass";
      world.clock.now += 15 * SECOND;
      world.queue.messages.push(...sent, pump);
      await empty(world);
      // A page that was claimed without an answer waits for its leases, as any lost message does.
      expect(ran.size).toBe(fate === "fail" ? 900 : 800);
      world.clock.now += 6 * MINUTE;
      for (let minutes = 0; (await left()) !== 0 && minutes < 5; minutes += 1) {
        await world.tick(DEFAULT_LIMITS);
        await empty(world);
        world.clock.now += MINUTE;
      }
      expect([ran, await left()]).toEqual([once(ids), 0]);
    }
  });

  test("goes on before the items of the batch that its message came in have run", async () => {
    let pumpsSent = -1;
    const work = topic("slow.work", {
      schema: v.object({}),
      handle() {
        if (pumpsSent < 0) pumpsSent = world.queue.messages.filter(isPump).length;
        return done();
      },
    });
    const world = createWorld([defineModule("slow", { topics: [work] })]);
    const ctx = world.context();
    await ctx.db.batch(
      ctx.outbox.enqueue(
        work,
        Array.from({ length: 3_000 }, () => ({ payload: {} })),
      ),
    );
    await world.tick(DEFAULT_LIMITS);
    const sent = world.queue.take();
    await world.deliver([...sent.filter((one) => !isPump(one)).slice(0, 5), ...sent.filter(isPump)]);
    expect(pumpsSent).toBe(1);
  });

  test.for([
    ["250,000 items", { claimed: 249_500 }, 0],
    ["55 seconds", {}, 55 * SECOND],
  ] as const)("%s end its chain", async ([, pump, later]) => {
    const { world, put } = stage(1);
    await put(0, 5_000);
    await world.tick(DEFAULT_LIMITS);
    const [first] = world.queue.take().filter(isPump);
    world.clock.now += later;
    const body = first?.body as { pump: object };
    await world.deliver([{ body: { ...body, pump: { ...body.pump, ...pump } }, delaySeconds: 0 }]);
    expect(world.queue.take().filter(isPump)).toEqual([]);
  });
});
