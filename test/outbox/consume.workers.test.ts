import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { classifyDbError } from "../../src/db/client.ts";
import { dead, done, nextAt, type Outcome, retryAt, retryLater } from "../../src/index.ts";
import { begin, claim } from "../../src/outbox/items.ts";
import { leaseOf } from "../../src/outbox/runtime.ts";
import { settle } from "../../src/outbox/settle.ts";
import type { Item, Settlement, TopicOptions } from "../../src/outbox/topic.ts";
import { createWorld, DB, faultyDb, oneTopic, type SentMessage, type World } from "./world.ts";

await DB.exec("CREATE TABLE log (id TEXT PRIMARY KEY)");
const number = (item: Item) => (item.payload as { n: number }).n;
const numbers = (count: number) => Array.from({ length: count }, (_, n) => ({ payload: { n } }));
const ACK = { kind: "ack" };

/** A topic whose handler notes the number of each item that it runs. */
function noted(
  answer: (item: Item, ctx: Parameters<TopicOptions["handle"]>[1]) => unknown = () => done(),
  options = {},
) {
  const ran: number[] = [];
  const made = oneTopic((item, ctx) => {
    ran.push(number(item));
    return answer(item, ctx) as Outcome;
  }, options);
  return { ...made, ran };
}

describe("ready -> leased -> running -> gone", () => {
  test("an item enqueued now is sent, runs once and is gone", async () => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    expect(await world.context().outbox.enqueueNow(topic, numbers(1))).toMatchObject({ ok: true, sent: 1 });
    expect(await world.deliver(world.queue.take())).toEqual([ACK]);
    expect(ran).toEqual([0]);
    expect(await world.rows(name)).toEqual([]);
    expect(world.warnings()).toEqual([]);
  });

  test("a ready item is claimed by the tick and sent; one due within the minute with its delay, one beyond it not", async () => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    const ctx = world.context();
    const now = world.clock.now;
    await ctx.db.batch(
      ctx.outbox.enqueue(topic, [
        { payload: { n: 0 } },
        { payload: { n: 1 }, dueAt: now + 37_000 },
        { payload: { n: 2 }, dueAt: now + 2 * MINUTE },
      ]),
    );
    expect(await world.tick()).toMatchObject({ claimed: 2, sent: 2, failed: 0 });
    const sent = world.queue.take();
    expect(sent.map(({ delaySeconds }) => delaySeconds)).toEqual([0, 37]);
    const leased = (await world.rows(name)).filter(({ lane }) => lane === 1);
    expect(leased.map(({ at }) => at)).toEqual([now + 300_000, now + 337_000]);
    await world.deliver(sent);
    expect(ran).toEqual([0, 1]);
    expect(await world.rows(name)).toMatchObject([{ lane: 0, payload: '{"n":2}' }]);
  });

  test("begin gives the running lease, and the item sees its id, key, attempts and instants", async () => {
    const seen: unknown[] = [];
    let inside: unknown;
    const { module, topic, name } = oneTopic(
      async (item) => {
        seen.push(item);
        inside = (await world.rows(name))[0];
        return retryLater("once more");
      },
      { deadlineMs: 5 * SECOND, backoff: [1] },
    );
    const world: World = createWorld([module]);
    const dueAt = world.clock.now - MINUTE;
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 }, key: "a", dueAt }]);
    const bornAt = world.clock.now;
    await world.deliver(world.queue.take());
    expect(inside).toMatchObject({ lane: 2, at: bornAt + 45 * SECOND });
    await world.deliver(world.queue.take());
    const id = answer.ok ? answer.items[0]?.id : "";
    const same = { id, topic: name, key: "a", payload: { n: 1 }, bornAt };
    expect(seen).toEqual([
      { ...same, attempts: 0, dueAt },
      { ...same, attempts: 1, dueAt: bornAt + 1 },
    ]);
  });

  test("a topic of tiny items puts ten in a message", async () => {
    const { module, topic, name, ran } = noted(undefined, { itemsPerMessage: 10 });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(25));
    const messages = world.queue.take();
    expect(messages.map(({ body }) => (body as { items: unknown[] }).items.length)).toEqual([10, 10, 5]);
    expect(await world.deliver(messages)).toEqual([ACK, ACK, ACK]);
    expect(ran.sort((a, b) => a - b)).toEqual(numbers(25).map(({ payload: { n } }) => n));
    expect(await world.rows(name)).toEqual([]);
  });

  test("a handler gets what the schema makes of the payload", async () => {
    let got: unknown;
    const schema = v.object({
      at: v.pipe(
        v.string(),
        v.transform((text) => new Date(text)),
      ),
    });
    const { module, topic } = oneTopic<typeof schema>(
      (item) => {
        got = item.payload.at;
      },
      { schema },
    );
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, [{ payload: { at: "2026-01-01T00:00:00Z" } }]);
    await world.deliver(world.queue.take());
    expect(got).toEqual(new Date("2026-01-01T00:00:00Z"));
  });
});

describe("fences", () => {
  for (const itemsPerMessage of [1, 10]) {
    test(`messages of ${itemsPerMessage} that come twice in a batch, in two batches and at the same time run once`, async () => {
      const { module, topic, name, ran } = noted(
        async () => {
          await new Promise((resolve) => setTimeout(resolve, 20));
          return done();
        },
        { itemsPerMessage },
      );
      const world = createWorld([module]);
      await world.context().outbox.enqueueNow(topic, numbers(20));
      const messages = world.queue.take();
      const deliveries = [
        world.deliver([...messages, ...messages]),
        world.deliver(messages),
        world.deliver(messages.toReversed()),
      ];
      const verdicts = (await Promise.all(deliveries)).flat();
      verdicts.push(...(await world.deliver(messages)));
      expect(new Set(verdicts.map((verdict) => verdict?.kind))).toEqual(new Set(["ack"]));
      expect(ran.sort((a, b) => a - b)).toEqual(numbers(20).map(({ payload: { n } }) => n));
      expect(await world.rows(name)).toEqual([]);
      expect(world.logs.filter(({ event }) => event === "lease_lost")).toEqual([]);
    });
  }

  test("a message that comes late, after its lease lapsed and the row was claimed again, changes nothing", async () => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(1));
    const late = world.queue.take();
    world.clock.now += 300 * SECOND;
    expect(await world.tick()).toMatchObject({ claimed: 1, sent: 1 });
    const before = await world.rows(name);
    expect(await world.deliver(late)).toEqual([ACK]);
    expect(ran).toEqual([]);
    expect(await world.rows(name)).toEqual(before);
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0]);
  });

  test("a lapsed lease that nobody took over still begins: the key is the fence, not the clock", async () => {
    const { module, topic, ran } = noted();
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(1));
    world.clock.now += 3_600 * SECOND;
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0]);
  });

  test("claimed, released and claimed again a thousand times within one now: no old message changes anything, and nothing is counted", async () => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    const invocation = world.invocation();
    const { db, now } = invocation;
    await db.batch(world.context().outbox.enqueue(topic, numbers(1)));
    const claims = claim(db, leaseOf(world.runtime, topic), { now, ahead: now, limit: 5, path: "any", load: false });
    const messages: SentMessage[] = [];
    for (let round = 0; round < 1_000; round += 1) {
      const { results } = await claims.all<never>();
      expect(results).toHaveLength(1);
      const [{ at, seq, turn }] = results as unknown as [{ at: number; seq: string; turn: number }];
      messages.push({ body: { v: 1, topic: name, items: [[at, seq, turn]] }, delaySeconds: 0 });
      if (round === 999) continue;
      const row = { ...(results[0] as unknown as object), lane: 1 } as never;
      const given = await settle(invocation, [], [{ topic, row }], { resend: false });
      expect(given).toMatchObject({ released: 1, lost: 0 });
    }
    const [last] = messages.splice(-1) as [SentMessage];
    expect(new Set(messages.map(({ body }) => JSON.stringify(body))).size).toBe(999);
    const before = await world.rows(name);
    expect(before).toMatchObject([{ lane: 1, attempts: 0, deliveries: 0, lapses: 0, due_at: now }]);
    await world.deliver(messages);
    expect(ran).toEqual([]);
    expect(await world.rows(name)).toEqual(before);
    await world.deliver([last]);
    expect(ran).toEqual([0]);
    expect(await world.rows(name)).toEqual([]);
  });

  test.each<[string, (now: number) => Outcome]>([
    ["done", () => done()],
    ["nextAt", (now) => nextAt(now)],
    ["retryAt", () => retryLater("no")],
    ["dead", () => dead("gone")],
  ])("a settle with an old fence is lost and changes nothing, its key included: %s", async (_, outcome) => {
    const { module, topic, name } = noted();
    const world = createWorld([module]);
    const { db, now } = world.invocation();
    await db.batch(world.context().outbox.enqueue(topic, [{ payload: { n: 1 }, key: "a" }]));
    const claimOne = (at: number) =>
      claim(db, leaseOf(world.runtime, topic), { now: at, ahead: at, limit: 1, path: "any", load: true }).all<never>();
    const { results } = await claimOne(now);
    const [row] = results.map((one: object) => ({ ...one, lane: 1 }) as never);
    await claimOne(now + 300 * SECOND);
    const before = [await world.rows(name), await world.keys(name)];
    const item = { id: "", topic: name, key: "a", payload: {}, attempts: 0, dueAt: 0, bornAt: 0 };
    const answer = await settle(world.invocation(), [{ row: row as never, topic, item, outcome: outcome(now) }]);
    expect(answer).toEqual({ settled: 0, released: 0, lost: 1 });
    expect([await world.rows(name), await world.keys(name)]).toEqual(before);
    expect(await world.deadLetters(name)).toEqual([]);
    expect(world.warnings()).toEqual(["lease_lost"]);
  });

  test("a claim takes what is due to the millisecond, oldest first, and nothing else", async () => {
    const { module, topic, name } = noted();
    const world = createWorld([module]);
    const { db, now } = world.invocation();
    const due = [now + 1, now - 3, now, now - 1, now + 3_600_000, now - 2];
    await db.batch(
      world.context().outbox.enqueue(
        topic,
        due.map((dueAt, n) => ({ payload: { n }, dueAt })),
      ),
    );
    const options = { now, ahead: now, path: "any" as const, load: false };
    const first = await claim(db, leaseOf(world.runtime, topic), { ...options, limit: 3 }).all<{ due_at: number }>();
    expect(first.results.map(({ due_at }) => due_at).sort()).toEqual([now - 3, now - 2, now - 1]);
    const second = await claim(db, leaseOf(world.runtime, topic), { ...options, limit: 9 }).all<{ due_at: number }>();
    expect(second.results.map(({ due_at }) => due_at)).toEqual([now]);
    expect((await world.rows(name)).filter(({ lane }) => lane === 0).map(({ at }) => at - now)).toEqual([1, 3_600_000]);
    const early = { ...options, now: now + 300_000 - 1, ahead: now, limit: 9 };
    expect((await claim(db, leaseOf(world.runtime, topic), early).all()).results).toEqual([]);
    const lapsed = { ...early, now: now + 300_000 };
    expect((await claim(db, leaseOf(world.runtime, topic), lapsed).all()).results).toHaveLength(4);
  });

  test("claims at once never share a row", async () => {
    const { module, topic } = noted();
    const world = createWorld([module]);
    const { db, now } = world.invocation();
    await db.batch(world.context().outbox.enqueue(topic, numbers(100)));
    const claims = await Promise.all(
      Array.from({ length: 8 }, () =>
        claim(db, leaseOf(world.runtime, topic), { now, ahead: now, limit: 20, path: "any", load: false }).all<{
          seq: string;
        }>(),
      ),
    );
    const taken = claims.flatMap(({ results }) => results.map(({ seq }) => seq));
    expect(taken).toHaveLength(100);
    expect(new Set(taken).size).toBe(100);
  });

  test("a chunk whose lead has moved is stale as a whole, and its other rows are claimed when their lease lapses", async () => {
    const { module, topic, name, ran } = noted(undefined, { itemsPerMessage: 10 });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(10));
    const [message] = world.queue.take() as [SentMessage];
    const [[at, seq, turn], ...others] = (message.body as { items: [number, string, number][] }).items as [
      [number, string, number],
    ];
    await world.deliver([{ ...message, body: { v: 1, topic: name, items: [[at, seq, turn]] } }]);
    expect(ran).toEqual([0]);
    await world.deliver([message]);
    expect(ran).toEqual([0]);
    expect(await world.rows(name)).toHaveLength(others.length);
    world.clock.now += 300 * SECOND;
    await world.tick();
    await world.deliver(world.queue.take());
    expect(ran).toHaveLength(10);
  });

  test("a chunk runs those of its rows that have not moved, and no other", async () => {
    const { module, topic, name, ran } = noted(undefined, { itemsPerMessage: 10 });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(10));
    const [message] = world.queue.take() as [SentMessage];
    await DB.prepare("UPDATE items SET turn = turn + 1 WHERE topic = ?1 AND payload IN ('{\"n\":3}', '{\"n\":7}')")
      .bind(name)
      .run();
    await world.deliver([message]);
    expect(ran.sort((a, b) => a - b)).toEqual([0, 1, 2, 4, 5, 6, 8, 9]);
    expect(await world.rows(name)).toHaveLength(2);
  });
});

describe("a message that cannot be read is logged and acked, and no row is touched", () => {
  test.each([
    ["of an unknown version", (body: object) => ({ ...body, v: 2 })],
    ["of an unknown topic", (body: object) => ({ ...body, topic: "nobody.here" })],
    ["with more fields", (body: object) => ({ ...body, extra: 1 })],
    ["without items", (body: object) => ({ ...body, items: [] })],
    ["with a bad row", (body: object) => ({ ...body, items: [[1, "short", 0]] })],
    ["that is null", () => null],
    ["that is text", () => "hello"],
  ])("%s", async (_, spoil) => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2));
    const [bad, good] = world.queue.take() as [SentMessage, SentMessage];
    const [row] = await world.rows(name);
    expect(await world.deliver([{ body: spoil(bad.body as object), delaySeconds: 0 }, good])).toEqual([ACK, ACK]);
    expect(ran).toEqual([1]);
    expect(await world.rows(name)).toEqual([row]);
    expect(world.warnings()).toEqual(["message_refused"]);
  });
});

describe("outcomes", () => {
  async function runOne(answer: Parameters<typeof noted>[0], options: object = {}, key?: string) {
    const made = noted(answer, options);
    const world = createWorld([made.module]);
    await world.context().outbox.enqueueNow(made.topic, [{ payload: { n: 1 }, ...(key !== undefined && { key }) }]);
    const verdicts = await world.deliver(world.queue.take());
    expect(verdicts).toEqual([ACK]);
    return { ...made, world, rows: await world.rows(made.name), letters: await world.deadLetters(made.name) };
  }

  test.each([
    ["done", () => done()],
    ["nothing", () => undefined],
    ["null", async () => null],
  ])("%s: the row is gone", async (_, answer) => {
    const { rows, letters } = await runOne(answer);
    expect([rows, letters]).toEqual([[], []]);
  });

  test("nextAt: the row moves, is born again for its age, and counts nothing", async () => {
    const { world, name, topic } = await runOne((item) => (item.attempts < 2 ? retryLater("no") : nextAt(at)), {
      backoff: [1],
    });
    const at = world.clock.now + 3_600_000;
    await world.deliver(world.queue.take());
    expect(await world.rows(name)).toMatchObject([{ attempts: 2, error: "no" }]);
    await world.deliver(world.queue.take());
    expect(await world.rows(name)).toMatchObject([
      { lane: 0, at, due_at: at, born_at: at, attempts: 0, deliveries: 0, lapses: 0, error: null },
    ]);
    expect(topic.options.maxAgeMs).toBe(null);
  });

  test("nextAt soon: moved leased and sent with its delay at once", async () => {
    const { world, rows } = await runOne((_, ctx) => nextAt(ctx.now + 30 * SECOND));
    const at = world.clock.now + 30 * SECOND;
    expect(rows).toMatchObject([{ lane: 1, at: at + 300 * SECOND, due_at: at }]);
    expect(world.queue.take()).toMatchObject([{ delaySeconds: 30 }]);
  });

  test("nextAt in the past is now, never before: a cursor cannot spin in the past", async () => {
    const { world, rows } = await runOne(() => nextAt(0));
    expect(rows).toMatchObject([{ due_at: world.clock.now }]);
  });

  test("nextAt soon while the queue refuses: ready, for the tick", async () => {
    const made = noted((_, ctx) => nextAt(ctx.now + 30 * SECOND));
    const world = createWorld([made.module]);
    await world.context().outbox.enqueueNow(made.topic, numbers(1));
    const messages = world.queue.take();
    world.queue.mode = "refuse";
    expect(await world.deliver(messages)).toEqual([ACK]);
    const at = world.clock.now + 30 * SECOND;
    expect(await world.rows(made.name)).toMatchObject([{ lane: 0, at, due_at: at, attempts: 0 }]);
  });

  test("retryAt: at exactly that instant, counted, with its error", async () => {
    const { world, rows } = await runOne((_, ctx) => retryAt(ctx.now + 3_600_001, "busy"));
    const at = world.clock.now + 3_600_001;
    expect(rows).toMatchObject([{ lane: 0, at, due_at: at, attempts: 1, deliveries: 0, error: "busy" }]);
  });

  test("a throw: the topic's backoff with its jitter, attempt by attempt", async () => {
    const { world, name } = await runOne(
      () => {
        throw new TypeError("no such thing");
      },
      { backoff: { baseMs: 1_000, factor: 2, capMs: 60_000, jitter: 0.5 } },
    );
    for (const [attempts, delay] of [
      [1, 1_250],
      [2, 2_500],
      [3, 5_000],
    ]) {
      const [row] = await world.rows(name);
      expect(row).toMatchObject({
        attempts,
        error: "TypeError: no such thing",
        due_at: world.clock.now + (delay ?? 0),
      });
      await world.deliver(world.queue.take());
    }
  });

  test("retryLater with notBefore: the backoff, and never before the other side's own word", async () => {
    const { world, rows } = await runOne((_, ctx) => retryLater("slow down", { notBefore: ctx.now + 7 * MINUTE }));
    expect(rows).toMatchObject([{ due_at: world.clock.now + 7 * MINUTE, attempts: 1 }]);
    const sooner = await runOne((_, ctx) => retryLater("slow down", { notBefore: ctx.now + 1 }), { backoff: [5_000] });
    expect(sooner.rows).toMatchObject([{ due_at: sooner.world.clock.now + 5_000 }]);
  });

  test.each([
    ["nextAt(NaN)", () => nextAt(Number.NaN)],
    ["nextAt(1.5)", () => nextAt(1.5)],
    ["retryAt(-1)", () => retryAt(-1, "x")],
    ["a number", () => 7],
    ["an unknown kind", () => ({ kind: "later" })],
    ["dead without a reason", () => dead("")],
    [
      "an object that throws when read",
      () => ({
        get kind() {
          throw new Error("boo");
        },
      }),
    ],
  ])("%s counts as a failed attempt", async (_, answer) => {
    const { rows } = await runOne(answer);
    expect(rows).toMatchObject([{ attempts: 1, error: expect.stringMatching(/./) }]);
  });

  test("dead(reason): moved to the dead letters, attempts as they were", async () => {
    const { rows, letters, name } = await runOne(() => dead("gone", "410 Gone"), {}, "a");
    expect(rows).toEqual([]);
    expect(letters).toMatchObject([
      { k: "a", reason: "gone", error: "410 Gone", attempts: 0, deliveries: 0, payload: '{"n":1}' },
    ]);
    expect(letters[0]?.id).toMatch(new RegExp(`^${name}~[0-9a-z]{18}$`));
  });

  test("a failure on the last attempt: dead, attempts_exhausted, and the last one is counted", async () => {
    const { world, name, ran } = await runOne(() => retryLater("still no"), { maxAttempts: 3, backoff: [1] });
    await world.deliver(world.queue.take());
    expect(await world.deadLetters(name)).toEqual([]);
    await world.deliver(world.queue.take());
    expect(ran).toHaveLength(3);
    expect(await world.rows(name)).toEqual([]);
    expect(await world.deadLetters(name)).toMatchObject([
      { reason: "attempts_exhausted", error: "still no", attempts: 3 },
    ]);
  });

  test("maxAttempts 1: the item's own bound holds at the first failure", async () => {
    const { letters } = await runOne(() => retryLater("no"), { maxAttempts: 1 });
    expect(letters).toMatchObject([{ reason: "attempts_exhausted", attempts: 1 }]);
  });

  test.each([
    ["a NUL", () => new Error("a\0b")],
    ["half a surrogate pair", () => new Error("x\ud800")],
    ["a megabyte", () => new Error("\u{1F4A3}".repeat(500_000))],
    ["control characters", () => new Error("\u0001".repeat(2_000))],
    ["no text", () => new Error("")],
    ["nothing", () => undefined],
    [
      "an object that refuses to be read",
      () =>
        new Proxy(
          {},
          {
            get() {
              throw new Error("no");
            },
          },
        ),
    ],
  ])("a failure text that holds %s does not break the settle", async (_, thrown) => {
    const { rows } = await runOne(() => {
      throw thrown();
    });
    expect(rows).toHaveLength(1);
    const error = rows[0]?.error ?? "";
    expect(error.length).toBeGreaterThan(0);
    expect(error.length).toBeLessThanOrEqual(1_024);
    expect(error).not.toContain("\0");
    const buried = await runOne(() => dead("gone", thrown() as unknown as string));
    expect(buried.rows).toEqual([]);
    expect(buried.letters).toHaveLength(1);
  });

  test("a full batch that fails with long texts is settled all the same", async () => {
    const text = "\u{1F4A3}".repeat(2_000);
    const { module, topic, name } = noted((item) => (number(item) % 2 === 0 ? retryLater(text) : dead("gone", text)), {
      itemsPerMessage: 20,
      backoff: [3_600_000],
      concurrency: 100,
    });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2_000));
    await world.deliver(world.queue.take());
    expect(world.warnings()).toEqual([]);
    const rows = await world.rows(name);
    expect(rows).toHaveLength(1_000);
    expect(rows.every(({ attempts, error }) => attempts === 1 && (error ?? "").length === 1_024)).toBe(true);
    expect(await world.deadLetters(name)).toHaveLength(1_000);
  });

  test("a handler that never answers is settled at its deadline, its signal and its fetch aborted; what it does later changes nothing", async () => {
    const late = Promise.withResolvers<void>();
    const seen: string[] = [];
    const { module, topic, name } = oneTopic(
      async (_, ctx) => {
        ctx.signal.addEventListener("abort", () => void seen.push("signal"));
        const answer = ctx.fetch("https://example.com").catch((error) => seen.push(`fetch ${error.name || "failed"}`));
        await late.promise;
        await answer;
        return dead("too late to matter");
      },
      { deadlineMs: 50, backoff: [3_600_000] },
    );
    const fetch = (_: unknown, init?: RequestInit) =>
      new Promise<Response>((_resolve, reject) => {
        init?.signal?.addEventListener("abort", () => reject(init.signal?.reason));
      });
    const world = createWorld([module], { ports: { fetch } });
    await world.context().outbox.enqueueNow(topic, numbers(1));
    expect(await world.deliver(world.queue.take())).toEqual([ACK]);
    const before = await world.rows(name);
    expect(before).toMatchObject([{ lane: 0, attempts: 1, error: "no answer within 50 ms" }]);
    late.resolve();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(seen).toEqual(["signal", "fetch Error"]);
    expect(await world.rows(name)).toEqual(before);
    expect(await world.deadLetters(name)).toEqual([]);
  });

  test("older than maxAge: dead, too_old, without a call of the handler", async () => {
    const { module, topic, name, ran } = noted(undefined, { maxAgeMs: 10 * SECOND });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(1));
    world.clock.now += 10 * SECOND + 1;
    await world.deliver(world.queue.take());
    expect(ran).toEqual([]);
    expect(await world.deadLetters(name)).toMatchObject([{ reason: "too_old", attempts: 0 }]);
  });

  test("an item's age counts from when it is due, and a cursor's from its next instant", async () => {
    const { module, topic, name, ran } = noted((_, ctx) => nextAt(ctx.now + 60 * MINUTE), { maxAgeMs: 10 * SECOND });
    const world = createWorld([module]);
    const ctx = world.context();
    await ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 }, dueAt: world.clock.now + 60 * MINUTE }]));
    for (let round = 1; round <= 3; round += 1) {
      world.clock.now += 60 * MINUTE;
      await world.tick();
      await world.deliver(world.queue.take());
      expect(ran).toHaveLength(round);
    }
    expect(await world.deadLetters(name)).toEqual([]);
    world.clock.now += 61 * MINUTE;
    await world.tick();
    await world.deliver(world.queue.take());
    expect(await world.deadLetters(name)).toMatchObject([{ reason: "too_old" }]);
  });

  test.each([
    ["not JSON", "{"],
    ["JSON of another shape", '{"n":"one"}'],
    ["empty", ""],
  ])("a stored payload that is %s: dead, malformed, kept as it was stored", async (_, payload) => {
    const { module, topic, name, ran } = noted();
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2));
    await DB.prepare("UPDATE items SET payload = ?2 WHERE topic = ?1 AND payload = '{\"n\":0}'")
      .bind(name, payload)
      .run();
    await world.deliver(world.queue.take());
    expect(ran).toEqual([1]);
    expect(await world.rows(name)).toEqual([]);
    expect(await world.deadLetters(name)).toMatchObject([{ reason: "malformed", payload, attempts: 0 }]);
  });
});

describe("onSettle", () => {
  const logged = async () => (await DB.prepare("SELECT id FROM log ORDER BY id").all<{ id: string }>()).results;

  test("is asked once for a batch's deliveries, and its statements commit with the settle", async () => {
    const asked: string[][] = [];
    const { module, topic, name } = noted(
      (item) => [done("ok"), retryAt(1, "again"), dead("gone"), nextAt(4e12)][number(item)],
      {
        onSettle: (settled: readonly Settlement[], ctx: { db: D1Database }) => {
          asked.push(settled.map((one) => `${number(one.item)} ${one.kind} ${one.note}`).sort());
          return settled.map(({ item }) => ctx.db.prepare("INSERT INTO log (id) VALUES (?1)").bind(item.id));
        },
      },
    );
    const world = createWorld([module]);
    const answer = await world.context().outbox.enqueueNow(topic, numbers(4));
    await world.deliver(world.queue.take());
    expect(asked).toEqual([["0 done ok", "1 retryAt undefined", "2 dead undefined", "3 nextAt undefined"]]);
    expect(await logged()).toEqual(answer.ok ? answer.items.map(({ id }) => ({ id })) : []);
    expect(await world.rows(name)).toHaveLength(2);
    await DB.exec("DELETE FROM log");
  });

  test("does not commit when the settle does not", async () => {
    const faulty = faultyDb();
    const { module, topic, name } = noted(undefined, {
      onSettle: (_: unknown, ctx: { db: D1Database }) => [ctx.db.prepare("INSERT INTO log (id) VALUES ('lost')")],
    });
    const world = createWorld([module], { db: faulty.db });
    await world.context().outbox.enqueueNow(topic, numbers(1));
    faulty.ask = (call) => (call === 3 ? "fail" : "pass");
    expect(await world.deliver(world.queue.take())).toEqual([ACK]);
    expect(await logged()).toEqual([]);
    expect(await world.rows(name)).toMatchObject([{ lane: 2 }]);
    expect(world.warnings()).toEqual(["settle_failed"]);
  });

  test.each<[string, (db: D1Database) => unknown]>([
    [
      "throws",
      () => {
        throw new Error("boo");
      },
    ],
    ["names a table that is not there", (db) => [db.prepare("INSERT INTO nowhere VALUES (1)")]],
    ["breaks a constraint", (db) => [db.prepare("INSERT INTO log (id) VALUES ('x'), ('x')")]],
    ["is no SQL", (db) => [db.prepare("hello")]],
    ["binds too few values", (db) => [db.prepare("INSERT INTO log (id) VALUES (?1)")]],
    ["binds too many values", (db) => [db.prepare("INSERT INTO log (id) VALUES (?1)").bind(1, 2)]],
    ["binds what D1 does not take", (db) => [db.prepare("INSERT INTO log (id) VALUES (?1)").bind({})]],
    ["names a column twice", (db) => [db.prepare("SELECT id FROM log a, log b")]],
    ["answers what is no statement", () => [undefined]],
    ["answers no list", () => 7],
  ])("that %s loses only itself", async (_, hook) => {
    const { module, topic, name } = noted((item) => (number(item) === 0 ? done() : dead("gone")), {
      onSettle: (_: unknown, ctx: { db: D1Database }) => hook(ctx.db),
    });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2));
    expect(await world.deliver(world.queue.take())).toEqual([ACK, ACK]);
    expect(await world.rows(name)).toEqual([]);
    expect(await world.deadLetters(name)).toHaveLength(1);
    expect(world.warnings()).toEqual(["hook_failed"]);
    expect(await logged()).toEqual([]);
  });

  test("of one topic that is broken takes neither another topic's deliveries nor its statements with it", async () => {
    const insert = (id: string) => (_: unknown, ctx: { db: D1Database }) => [
      ctx.db.prepare("INSERT INTO log (id) VALUES (?1)").bind(id),
    ];
    const bad = noted(undefined, { onSettle: (_: unknown, ctx: { db: D1Database }) => [ctx.db.prepare("hello")] });
    const [good, other] = [noted(undefined, { onSettle: insert("good") }), noted()];
    const world = createWorld([bad.module, good.module, other.module]);
    for (const { topic } of [bad, good, other]) await world.context().outbox.enqueueNow(topic, numbers(1));
    await world.deliver(world.queue.take());
    for (const { name } of [bad, good, other]) expect(await world.rows(name)).toEqual([]);
    expect(await logged()).toEqual([{ id: "good" }]);
    expect(world.logs.filter(({ event }) => event === "hook_failed")).toMatchObject([{ topic: bad.name }]);
    await DB.exec("DELETE FROM log");
  });

  test("is not asked again without need: a passing fault of D1 is the settle's own", async () => {
    expect(classifyDbError(new Error("D1_ERROR: Network connection lost."))).toBe("retry");
    expect(classifyDbError(new Error("D1_ERROR: D1 DB is overloaded. Requests queued for too long."))).toBe("later");
  });
});

describe("an item that kills its isolate", () => {
  const POISON = 4;

  /** A world whose handler of item 4 takes D1 from its whole invocation: as if the isolate had ended there. */
  function deadly(options: object) {
    const faulty = faultyDb();
    let gone = false;
    faulty.ask = () => (gone ? "fail" : "pass");
    const made = noted((item) => {
      if (number(item) === POISON) gone = true;
      return done();
    }, options);
    const world = createWorld([made.module], { db: faulty.db });
    const isolate = async <T>(work: Promise<T>) => {
      const answer = await work;
      gone = false;
      return answer;
    };
    return { ...made, world, isolate };
  }

  test.each([
    ["a message each", 1],
    ["a chunk of ten", 10],
  ])("ends dead by maxDeliveries and the other nine settle: %s", async (_, itemsPerMessage) => {
    const { world, isolate, topic, name, ran } = deadly({ itemsPerMessage, maxDeliveries: 3 });
    await world.context().outbox.enqueueNow(topic, numbers(10));
    const first = world.queue.take();
    await isolate(world.deliver(first));
    expect(await world.rows(name)).toHaveLength(10);
    for (let round = 0; round < 6; round += 1) {
      await isolate(world.deliver(first));
      world.clock.now += 300 * SECOND;
      await world.tick();
      const sent = world.queue.take();
      expect(sent.every(({ body }) => (body as { items: unknown[] }).items.length === 1)).toBe(true);
      // Each of them alone in its batch, or all in one: the poison must not matter to the others.
      if (round % 2 === 0) await isolate(world.deliver(sent));
      else for (const message of sent) await isolate(world.deliver([message]));
    }
    expect(await world.rows(name)).toEqual([]);
    const letters = await world.deadLetters(name);
    expect(letters).toMatchObject([{ reason: "deliveries_exhausted", payload: `{"n":${POISON}}`, attempts: 0 }]);
    expect(letters[0]?.deliveries).toBe(4);
    expect(ran.filter((n) => n === POISON)).toHaveLength(1 + 3);
    expect(new Set(ran).size).toBe(10);
  });

  test("on its last attempt is not stuck: it ends dead and its key is free", async () => {
    const { world, isolate, topic, name } = deadly({ maxAttempts: 1, maxDeliveries: 1 });
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: POISON }, key: "a" }]);
    await isolate(world.deliver(world.queue.take()));
    for (let round = 0; round < 3; round += 1) {
      world.clock.now += 300 * SECOND;
      await world.tick();
      await isolate(world.deliver(world.queue.take()));
    }
    expect(await world.rows(name)).toEqual([]);
    expect(await world.keys(name)).toEqual([]);
    expect(await world.deadLetters(name)).toMatchObject([{ reason: "deliveries_exhausted" }]);
  });

  test("rows that run alone and slowly: those that the batch has no time for are tried again, unbegun and uncounted", async () => {
    let clock = { now: 0 };
    const { module, topic, name } = oneTopic(() => {
      clock.now += 4 * 60 * SECOND;
    });
    const world = createWorld([module]);
    clock = world.clock;
    await world.context().outbox.enqueueNow(topic, numbers(5));
    world.queue.take();
    clock.now += 300 * SECOND;
    await world.tick();
    const verdicts = await world.deliver(world.queue.take());
    expect(verdicts.map((verdict) => verdict?.kind)).toEqual(["ack", "ack", "ack", "retry", "retry"]);
    expect((await world.rows(name)).filter(({ lane }) => lane === 1)).toMatchObject([
      { deliveries: 0 },
      { deliveries: 0 },
    ]);
  });

  test("a row that has lapsed runs after the others, with nothing beside it", async () => {
    let running = 0;
    const beside: Record<number, number> = {};
    const { module, topic } = oneTopic(async (item) => {
      running += 1;
      beside[number(item)] = running;
      await new Promise((resolve) => setTimeout(resolve, 5));
      beside[number(item)] = Math.max(running, beside[number(item)] ?? 0);
      running -= 1;
      return done();
    });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2));
    world.queue.take();
    world.clock.now += 300 * SECOND;
    await world.tick();
    const lapsed = world.queue.take();
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 10 } }, { payload: { n: 11 } }]);
    await world.deliver([...lapsed, ...world.queue.take()]);
    expect(beside).toEqual({ 0: 1, 1: 1, 10: 2, 11: 2 });
  });

  test("the running lease of a row that waited for its turn counts from its own begin", async () => {
    let until = 0;
    const { module, topic, name } = oneTopic(async (item) => {
      if (number(item) === 1) until = (await world.rows(name)).find(({ lane }) => lane === 2)?.at ?? 0;
      world.clock.now += 25 * SECOND;
      return done();
    });
    const world: World = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(2));
    world.queue.take();
    world.clock.now += 300 * SECOND;
    await world.tick();
    const begun = world.clock.now;
    await world.deliver(world.queue.take());
    expect(until).toBe(begun + 25 * SECOND + 70 * SECOND);
  });
});

test("a row whose message was lost a hundred times has no delivery counted, and runs", async () => {
  const { module, topic, name, ran } = noted();
  const world = createWorld([module]);
  await world.context().outbox.enqueueNow(topic, numbers(1));
  for (let round = 0; round < 100; round += 1) {
    world.queue.take();
    world.clock.now += 300 * SECOND;
    const { db, now } = world.invocation();
    await claim(db, leaseOf(world.runtime, topic), { now, ahead: now, limit: 1, path: "queue", load: false }).run();
  }
  expect(await world.rows(name)).toMatchObject([{ lane: 1, deliveries: 0, lapses: 100, attempts: 0 }]);
  world.clock.now += 300 * SECOND;
  await world.tick();
  await world.deliver(world.queue.take());
  expect(ran).toEqual([0]);
  expect(await world.rows(name)).toEqual([]);
  expect(await world.deadLetters(name)).toEqual([]);
});

test("a row given back by consumers a thousand times, begun each time, has no delivery counted", async () => {
  const { module, topic, name } = noted();
  const world = createWorld([module]);
  await world.context().outbox.enqueueNow(topic, numbers(1));
  world.queue.take();
  world.clock.now += 300 * SECOND;
  const invocation = world.invocation();
  const { db, now } = invocation;
  await claim(db, leaseOf(world.runtime, topic), { now, ahead: now, limit: 1, path: "queue", load: false }).run();
  for (let round = 0; round < 1_000; round += 1) {
    const [row] = (await world.rows(name)) as [Awaited<ReturnType<World["rows"]>>[number]];
    const fence = { topic: name, lane: 1 as const, at: row.at, seq: row.seq, turn: row.turn };
    const [begun] = await db.batch<never>([begin(db, [[fence, 70_000]], now)]);
    expect(begun?.results).toMatchObject([{ lane: 2, deliveries: 1, lapses: 1 }]);
    const [running] = (begun as D1Result<never>).results as [never];
    await settle(invocation, [], [{ topic, row: running }]);
    world.queue.take();
  }
  expect(await world.rows(name)).toMatchObject([{ lane: 1, deliveries: 0, lapses: 1, attempts: 0 }]);
});

test("pollers that run 10,000 times between them, 200 times each, and fail every tenth time, are all alive", async () => {
  const runs = new Map<number, number>();
  const { module, topic, name } = noted(
    (item, ctx) => {
      const count = (runs.get(number(item)) ?? 0) + 1;
      runs.set(number(item), count);
      return count % 10 === 0 ? retryAt(ctx.now + MINUTE, "every tenth") : nextAt(ctx.now + MINUTE);
    },
    { maxAttempts: 2, maxDeliveries: 1 },
  );
  const world = createWorld([module]);
  await world.context().outbox.enqueueNow(topic, numbers(50));
  for (let round = 0; round < 200; round += 1) {
    expect(await world.deliver(world.queue.take())).toHaveLength(50);
    world.clock.now += MINUTE;
  }
  expect([...runs.values()].reduce((sum, count) => sum + count, 0)).toBe(10_000);
  const rows = await world.rows(name);
  expect(rows).toHaveLength(50);
  expect(rows.every(({ attempts, deliveries, lapses }) => attempts === 1 && deliveries === 0 && lapses === 0)).toBe(
    true,
  );
  expect(await world.deadLetters(name)).toEqual([]);
});

describe("concurrency", () => {
  function crowd(options: object) {
    let running = 0;
    let most = 0;
    const made = noted(async () => {
      running += 1;
      most = Math.max(most, running);
      await new Promise((resolve) => setTimeout(resolve, 3));
      running -= 1;
      return done();
    }, options);
    return { ...made, most: () => most };
  }

  test.each([
    ["six at once, whatever the batch holds", {}, 6],
    ["six at once in chunks too", { itemsPerMessage: 10 }, 6],
    ["as many as the topic says: one", { concurrency: 1 }, 1],
    ["as many as the topic says: fifteen", { concurrency: 15 }, 15],
  ])("%s", async (_, options, expected) => {
    const { module, topic, most, ran } = crowd(options);
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(60));
    await world.deliver(world.queue.take());
    expect(ran).toHaveLength(60);
    expect(most()).toBe(expected);
  });

  test("topics without a word of their own share the six", async () => {
    let running = 0;
    let most = 0;
    const handle = async () => {
      running += 1;
      most = Math.max(most, running);
      await new Promise((resolve) => setTimeout(resolve, 3));
      running -= 1;
      return done();
    };
    const [one, two] = [noted(handle), noted(handle)];
    const world = createWorld([one.module, two.module]);
    await world.context().outbox.enqueueNow(one.topic, numbers(20));
    await world.context().outbox.enqueueNow(two.topic, numbers(20));
    await world.deliver(world.queue.take());
    expect(most).toBe(6);
    expect(one.ran.length + two.ran.length).toBe(40);
  });

  test("what has not started when its lease runs short is put back, uncounted, and sent again", async () => {
    const { module, topic, name, ran } = noted(
      () => {
        world.clock.now += 12 * SECOND;
        return done();
      },
      { concurrency: 1 },
    );
    const world: World = createWorld([module]);
    const due = world.clock.now;
    await world.context().outbox.enqueueNow(topic, numbers(5));
    expect(await world.deliver(world.queue.take())).toEqual(Array(5).fill(ACK));
    // Running lease 70 s, deadline 30 s and margin 10 s: starts at 0, 12 and 24 s.
    expect(ran).toEqual([0, 1, 2]);
    expect(await world.rows(name)).toMatchObject([
      { lane: 1, at: world.clock.now + 300 * SECOND, due_at: due, attempts: 0, deliveries: 0, lapses: 0 },
      { lane: 1, attempts: 0, deliveries: 0, lapses: 0 },
    ]);
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0, 1, 2, 3, 4]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("the others of a chunk are put back when the lease they were sent with runs short", async () => {
    const { module, topic, name, ran } = noted(undefined, { itemsPerMessage: 3 });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, numbers(3));
    world.clock.now += 261 * SECOND;
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0]);
    expect(await world.rows(name)).toHaveLength(2);
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0, 1, 2]);
  });
});

describe("D1 failing", () => {
  async function withFaults(fate: "fail" | "lose", at: number) {
    const faulty = faultyDb();
    const made = noted(undefined, { itemsPerMessage: 2 });
    const world = createWorld([made.module], { db: faulty.db });
    await world.context().outbox.enqueueNow(made.topic, numbers(4));
    faulty.ask = (call) => (call === 1 + at ? fate : "pass");
    const messages = world.queue.take();
    return { ...made, world, messages, verdicts: await world.deliver(messages) };
  }

  test("before begin: every message is retried with a delay, and the retry runs each item once", async () => {
    const { world, messages, verdicts, ran, name } = await withFaults("fail", 1);
    expect(verdicts).toEqual([
      { kind: "retry", delaySeconds: 15 },
      { kind: "retry", delaySeconds: 15 },
    ]);
    expect(ran).toEqual([]);
    expect(world.warnings()).toEqual(["begin_failed"]);
    await world.deliver(messages);
    expect(ran.sort()).toEqual([0, 1, 2, 3]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("a begin that landed although its answer was lost: the retried message is stale, the lease decides", async () => {
    const { world, messages, ran, name } = await withFaults("lose", 1);
    expect(await world.deliver(messages)).toEqual([ACK, ACK]);
    expect(ran).toEqual([]);
    world.clock.now += 300 * SECOND;
    await world.tick();
    await world.deliver(world.queue.take());
    expect(ran.sort()).toEqual([0, 1, 2, 3]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("at settle: acked, the lease decides, and the items run again", async () => {
    const { world, verdicts, ran, name } = await withFaults("fail", 2);
    expect(verdicts).toEqual([ACK, ACK]);
    expect(ran).toHaveLength(4);
    expect((await world.rows(name)).map(({ lane }) => lane)).toEqual([1, 1, 2, 2]);
    world.clock.now += 300 * SECOND;
    await world.tick();
    await world.deliver(world.queue.take());
    expect(ran).toHaveLength(8);
    expect(await world.rows(name)).toEqual([]);
  });

  test("a settle that landed although its answer was lost is settled: nothing runs again", async () => {
    const { world, verdicts, ran, name } = await withFaults("lose", 2);
    expect(verdicts).toEqual([ACK, ACK]);
    expect(await world.rows(name)).toEqual([]);
    world.clock.now += 300 * SECOND;
    expect(await world.tick()).toMatchObject({ claimed: 0 });
    expect(ran).toHaveLength(4);
  });
});
