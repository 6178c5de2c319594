import { describe, expect, test } from "vitest";
import page from "../../docs/envelope.md?raw";
import { unboundedBudget } from "../../src/core/budget.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { createMeter, type Meter } from "../../src/db/meter.ts";
import { done, nextAt, type Outcome, retryLater } from "../../src/index.ts";
import { claim, forgetHeldKeys } from "../../src/outbox/items.ts";
import type { NewItem } from "../../src/outbox/outbox.ts";
import { leaseOf } from "../../src/outbox/runtime.ts";
import { sendOrRelease } from "../../src/outbox/settle.ts";
import { createWorld, DB, oneTopic, type SentMessage } from "./world.ts";

/** Items of one measurement: a full batch of messages of one item each. */
const ITEMS = 100;

/** A topic with the parts of an item's life, each measured by itself and added up. */
function measured(options: object = {}, answer: () => Outcome = () => done()) {
  const made = oneTopic(answer, options);
  const world = createWorld([made.module]);
  const total = createMeter();
  const step = async <T>(work: (meter: Meter) => Promise<T>): Promise<T> => {
    const meter = createMeter();
    const result = await work(meter);
    for (const name of Object.keys(total) as (keyof Meter)[]) total[name] += meter[name];
    return result;
  };
  const items = (extra: (n: number) => Partial<NewItem<unknown>> = () => ({})) =>
    Array.from({ length: ITEMS }, (_, n) => ({ payload: { n }, ...extra(n) }));
  return {
    ...made,
    world,
    total,
    enqueueNow: (extra?: (n: number) => Partial<NewItem<unknown>>) =>
      step((meter) => world.context(undefined, meter).outbox.enqueueNow(made.topic, items(extra))),
    enqueue: (extra?: (n: number) => Partial<NewItem<unknown>>) =>
      step((meter) => {
        const ctx = world.context(undefined, meter);
        return ctx.db.batch(ctx.outbox.enqueue(made.topic, items(extra)));
      }),
    /** The tick's claim and send, without the tick's own record. */
    send: () =>
      step(async (meter) => {
        const invocation = world.invocation(meter);
        const { db, now } = invocation;
        const [claimed] = await db.batch<never>([
          claim(db, leaseOf(world.runtime, made.topic), { now, ahead: now, limit: 1_000, path: "queue", load: false }),
        ]);
        await sendOrRelease(invocation, made.topic, claimed?.results ?? []);
      }),
    consume: (messages: readonly SentMessage[] = world.queue.take()) => step((meter) => world.deliver(messages, meter)),
    drain: () =>
      step((meter) =>
        world.context(undefined, meter).outbox.drainWithin(made.topic, unboundedBudget(), { limit: ITEMS }),
      ),
    left: async () => (await world.rows(made.name)).length,
  };
}

interface Line {
  path: string;
  rows: number;
  read: number;
  calls: number;
  statements: number;
}

const line = (path: string, { rowsWritten, rowsRead, calls, queries }: Meter): Line => ({
  path,
  rows: rowsWritten / ITEMS,
  read: rowsRead / ITEMS,
  calls: (calls * 1_000) / ITEMS,
  statements: (queries * 1_000) / ITEMS,
});

/** Each path from birth to the end, 100 items at a time. */
const PATHS: Record<string, () => Promise<Line>> = {
  async "enqueued now, by the queue"() {
    const one = measured();
    await one.enqueueNow();
    await one.consume();
    expect(await one.left()).toBe(0);
    return line("enqueued now, by the queue", one.total);
  },
  async "enqueued now, by the queue, ten a message"() {
    const one = measured({ itemsPerMessage: 10 });
    await one.enqueueNow();
    await one.consume();
    expect(await one.left()).toBe(0);
    return line("enqueued now, by the queue, ten a message", one.total);
  },
  async "due later, by the queue"() {
    const one = measured();
    await one.enqueue();
    await one.send();
    await one.consume();
    expect(await one.left()).toBe(0);
    return line("due later, by the queue", one.total);
  },
  async "due later, by the queue, ten a message"() {
    const one = measured({ itemsPerMessage: 10 });
    await one.enqueue();
    await one.send();
    await one.consume();
    expect(await one.left()).toBe(0);
    return line("due later, by the queue, ten a message", one.total);
  },
  async "by the drain, settled one by one"() {
    const one = measured({ path: "drain" });
    await one.enqueue();
    await one.drain();
    expect(await one.left()).toBe(0);
    return line("by the drain, settled one by one", one.total);
  },
  async "by the drain, settled ten at a time"() {
    const one = measured({ path: "drain", settleEvery: 10 });
    await one.enqueue();
    await one.drain();
    expect(await one.left()).toBe(0);
    return line("by the drain, settled ten at a time", one.total);
  },
  async "refused by the queue, then by the drain"() {
    const one = measured();
    await one.enqueue();
    one.world.queue.mode = "refuse";
    await one.send();
    await one.drain();
    expect(await one.left()).toBe(0);
    return line("refused by the queue, then by the drain", one.total);
  },
};

/** What a step adds to a path, 100 items at a time. */
const ADDED: Record<string, () => Promise<Line>> = {
  async "+ a unique key, over its life"() {
    const one = measured();
    await one.enqueueNow((n) => ({ key: `k${n}` }));
    await one.consume();
    expect(await one.left()).toBe(0);
    expect(await one.world.keys(one.name)).toEqual([]);
    const plain = await PATHS["enqueued now, by the queue"]?.();
    return less(line("+ a unique key, over its life", one.total), plain);
  },
  async "+ a unique key kept for a window after it"() {
    const one = measured({ keyWindowMs: MINUTE });
    await one.enqueueNow((n) => ({ key: `k${n}` }));
    await one.consume();
    one.world.clock.now += MINUTE;
    const meter = createMeter();
    const { db, now } = one.world.invocation(meter);
    await forgetHeldKeys(db, now, 1_000).run();
    expect(await one.world.keys(one.name)).toEqual([]);
    for (const name of Object.keys(meter) as (keyof Meter)[]) one.total[name] += meter[name];
    const plain = await PATHS["enqueued now, by the queue"]?.();
    return less(line("+ a unique key kept for a window after it", one.total), plain);
  },
  "+ a run that fails or moves on within two minutes": () =>
    moves("+ a run that fails or moves on within two minutes", 30 * SECOND),
  "+ the same with a unique key": () => moves("+ the same with a unique key", 30 * SECOND, true),
  async "+ a run that fails or moves on to later"() {
    const name = "+ a run that fails or moves on to later";
    const one = measured({}, () => nextAt(one.world.clock.now + 10 * MINUTE));
    await one.enqueueNow();
    await one.consume();
    Object.assign(one.total, createMeter());
    one.world.clock.now += 10 * MINUTE;
    await one.send();
    await one.consume();
    return line(name, one.total);
  },
  async "+ a message that comes twice"() {
    const one = measured();
    await one.enqueueNow();
    const messages = one.world.queue.take();
    await one.consume(messages);
    Object.assign(one.total, createMeter());
    await one.consume(messages);
    return line("+ a message that comes twice", one.total);
  },
};

async function moves(name: string, delayMs: number, keyed = false): Promise<Line> {
  let runs = 0;
  const one = measured({ backoff: [delayMs] }, () => {
    runs += 1;
    return runs % 2 === 0 ? retryLater("no") : nextAt(one.world.clock.now + delayMs);
  });
  await one.enqueueNow((n) => (keyed ? { key: `k${n}` } : {}));
  await one.consume();
  Object.assign(one.total, createMeter());
  one.world.clock.now += delayMs;
  await one.consume();
  expect(await one.left()).toBe(ITEMS);
  return line(name, one.total);
}

function less(all: Line, plain: Line | undefined): Line {
  if (plain === undefined) throw new Error("there is nothing to compare with");
  return {
    path: all.path,
    rows: all.rows - plain.rows,
    read: all.read - plain.read,
    calls: all.calls - plain.calls,
    statements: all.statements - plain.statements,
  };
}

const number = (value: number) => String(Number(value.toFixed(2)));

function table(lines: readonly Line[]): string {
  return [
    "| path | rows written an item | rows read an item | D1 calls per 1,000 items | D1 statements per 1,000 items |",
    "| --- | ---: | ---: | ---: | ---: |",
    ...lines.map(
      ({ path, rows, read, calls, statements }) =>
        `| ${path} | ${number(rows)} | ${number(read)} | ${number(calls)} | ${number(statements)} |`,
    ),
  ].join("\n");
}

function written(name: string): string {
  return page.match(new RegExp(`<!-- ${name} -->\n+([^]*?)\n+<!-- /${name} -->`))?.[1] ?? "";
}

const measure = async (all: Record<string, () => Promise<Line>>) => {
  const lines: Line[] = [];
  for (const one of Object.values(all)) lines.push(await one());
  return lines;
};

test("docs/envelope.md says what each path costs, as D1's own counts say", async () => {
  expect(written("paths")).toBe(table(await measure(PATHS)));
});

test("docs/envelope.md says what else adds to it, as D1's own counts say", async () => {
  expect(written("added")).toBe(table(await measure(ADDED)));
});

describe("the bounds", () => {
  const cost = (all: Record<string, () => Promise<Line>>, path: string) => (all[path] as () => Promise<Line>)();

  test.each([
    ["enqueued now, by the queue", 2 + 1],
    ["enqueued now, by the queue, ten a message", 2 + 1 / 10],
    ["due later, by the queue", 3 + 1],
    ["due later, by the queue, ten a message", 3 + 1 / 10],
    ["by the drain, settled one by one", 3],
    ["by the drain, settled ten at a time", 3],
    ["refused by the queue, then by the drain", 3 + 2],
  ])("%s: at most %d rows written an item", async (path, most) => {
    expect((await cost(PATHS, path)).rows).toBeLessThanOrEqual(most);
  });

  test("a unique key: at most two rows over its life, and none for a move", async () => {
    expect((await cost(ADDED, "+ a unique key, over its life")).rows).toBeLessThanOrEqual(2);
    expect((await cost(ADDED, "+ the same with a unique key")).rows).toBe(
      (await cost(ADDED, "+ a run that fails or moves on within two minutes")).rows,
    );
  });

  test.each([1, 10])(
    "the consumer: at most 20 D1 calls per 1,000 items in full batches of %i an item's message",
    async (n) => {
      const made = oneTopic(() => done(), { itemsPerMessage: n, concurrency: 100 });
      const world = createWorld([made.module]);
      await world.context().outbox.enqueueNow(
        made.topic,
        Array.from({ length: 1_000 }, (_, n) => ({ payload: { n } })),
      );
      const meter = createMeter();
      for (let messages = world.queue.take(); messages.length > 0; messages = messages.slice(100)) {
        await world.deliver(messages.slice(0, 100), meter);
      }
      expect(await world.rows(made.name)).toEqual([]);
      expect(meter.calls).toBeLessThanOrEqual(20);
    },
  );
});

describe("beside other rows", () => {
  const BESIDE = 20_000;
  const CLAIMED = 500;

  /** Fills a topic by hand, with a key for each row. */
  const fill = (name: string, count: number, lane: number, at: number, from: number) =>
    DB.batch([
      DB.prepare(
        `WITH RECURSIVE n(i) AS (SELECT ?5 UNION ALL SELECT i + 1 FROM n WHERE i < ?5 + ?2 - 1)
         INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, k, payload)
         SELECT ?1, ?3, ?4 + i - ?5, printf('%018d', i), 1, ?4 + i - ?5, 0, 'k' || i, '{"n":1}' FROM n`,
      ).bind(name, count, lane, at, from),
      DB.prepare(
        `INSERT INTO item_keys (topic, k, seq) SELECT topic, k, seq FROM items
         WHERE topic = ?1 AND lane = ?2 AND at BETWEEN ?3 AND ?3 + ?4 AND seq >= printf('%018d', ?5)`,
      ).bind(name, lane, at, count, from),
    ]);
  const bury = (name: string, count: number) =>
    DB.prepare(
      `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?2 - 1)
       INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
       SELECT ?1 || '~' || i, ?1, '{}', 'gone', '', 0, 0, 0, 0 FROM n`,
    )
      .bind(name, count)
      .run();

  /** Rows read by each statement of an item's life over 500 rows: claim, begin, settle by each outcome. */
  async function reads(
    beside: (name: string, now: number) => Promise<unknown>,
    keyWindowMs: number,
  ): Promise<Record<string, number>> {
    const outcomes = [done(), nextAt(9e12), retryLater("no")];
    let runs = 0;
    const made = oneTopic(() => outcomes[runs++ % 3] as Outcome, { itemsPerMessage: 5, keyWindowMs });
    const world = createWorld([made.module]);
    const now = world.clock.now;
    await fill(made.name, CLAIMED, 0, now - 1_000, 0);
    await beside(made.name, now);
    const meter = createMeter();
    const invocation = world.invocation(meter);
    const { db } = invocation;
    const [claimed] = await db.batch<never>([
      claim(db, leaseOf(world.runtime, made.topic), { now, ahead: now, limit: CLAIMED, path: "queue", load: false }),
    ]);
    expect(claimed?.results).toHaveLength(CLAIMED);
    const read = { claim: meter.rowsRead, consume: 0, drain: 0 };
    await sendOrRelease(invocation, made.topic, claimed?.results ?? []);
    const consumed = createMeter();
    await world.deliver(world.queue.take(), consumed);
    read.consume = consumed.rowsRead;
    await fill(made.name, 50, 0, now - 1_000, 1_000_000);
    const drained = createMeter();
    const report = await world
      .context(undefined, drained)
      .outbox.drainWithin(made.topic, unboundedBudget(), { limit: 50 });
    expect(report).toMatchObject({ processed: 50, error: null });
    read.drain = drained.rowsRead;
    return read;
  }

  const crowds: [string, (name: string, now: number) => Promise<unknown>][] = [
    ["future", (name, now) => fill(name, BESIDE, 0, now + 3_600_000, 100_000)],
    ["leased", (name, now) => fill(name, BESIDE, 1, now + 3_600_000, 200_000)],
    ["running", (name, now) => fill(name, BESIDE, 2, now + 3_600_000, 300_000)],
    ["dead", (name) => bury(name, BESIDE)],
    ["due", (name, now) => fill(name, BESIDE, 0, now - 500_000, 400_000)],
  ];
  const windows: [string, number][] = [
    ["keys freed", 0],
    ["keys held", MINUTE],
  ];

  test.each(windows)(
    "a claim of 500, a consumer's batch and a drain read as many rows beside 20,000 others as beside none (%s)",
    async (_, keyWindowMs) => {
      const alone = await reads(async () => {}, keyWindowMs);
      for (const [crowd, beside] of crowds) {
        const read = await reads(beside, keyWindowMs);
        for (const [statement, rows] of Object.entries(alone)) {
          expect(read[statement] ?? 0, `${statement} beside ${crowd} rows`).toBeLessThanOrEqual(1.2 * rows);
        }
        await DB.batch(["items", "item_keys", "dead_letters"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
      }
    },
  );
});
