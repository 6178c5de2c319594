import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { PAYLOAD_MAX_BYTES } from "../../src/core/payload.ts";
import { DAY, MINUTE, SECOND } from "../../src/core/time.ts";
import { isConstraint } from "../../src/db/client.ts";
import { dead, done, nextAt, retryLater } from "../../src/index.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import { createWorld, DB, faultyDb, oneTopic } from "./world.ts";

await DB.exec("CREATE TABLE own (id TEXT PRIMARY KEY)");
const insertOwn = (id: string) => DB.prepare("INSERT INTO own (id) VALUES (?1)").bind(id);
const ownRow = (id: string) => DB.prepare("SELECT id FROM own WHERE id = ?1").bind(id).first("id");

const idle = (options: Parameters<typeof oneTopic>[1] = {}) => {
  const made = oneTopic(() => done(), options);
  return { ...made, world: createWorld([made.module]) };
};

describe("an enqueue in the caller's batch", () => {
  test("commits with it, ready at its due time, and sends nothing", async () => {
    const { world, topic, name } = idle();
    const ctx = world.context();
    const at = world.clock.now + 10 * SECOND;
    const statements = ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }, { payload: { n: 2 }, dueAt: at }]);
    const results = await ctx.db.batch([insertOwn("with"), ...statements]);
    expect(statements.answer(results.slice(1))).toEqual(statements.ids.map((id) => ({ id, deduped: false })));
    expect(await ownRow("with")).toBe("with");
    const rows = await world.rows(name);
    expect(rows.map(({ lane, at, due_at }) => ({ lane, at, due_at }))).toEqual([
      { lane: 0, at: world.clock.now, due_at: world.clock.now },
      { lane: 0, at, due_at: at },
    ]);
    expect(rows.map(({ seq }) => `${name}~${seq}`)).toEqual(statements.ids);
    expect(world.queue.calls).toBe(0);
  });

  test("rolls back with it, its key too", async () => {
    const { world, topic, name } = idle();
    const ctx = world.context();
    await insertOwn("taken").run();
    const statements = ctx.outbox.enqueue(topic, [{ payload: { n: 1 }, key: "a" }]);
    await expect(ctx.db.batch([...statements, insertOwn("taken")])).rejects.toThrow(/UNIQUE/);
    expect(await world.rows(name)).toEqual([]);
    expect(await world.keys(name)).toEqual([]);
  });

  test("of no items is no statement", () => {
    const { world, topic } = idle({ maxBacklog: 1 });
    expect([...world.context().outbox.enqueue(topic, [])]).toEqual([]);
  });

  test("may stand in a batch of the bare binding", async () => {
    const { world, topic, name } = idle();
    await DB.batch([...world.context().outbox.enqueue(topic, [{ payload: { n: 1 } }]), insertOwn("bare")]);
    expect(await world.rows(name)).toHaveLength(1);
  });
});

describe("enqueueNow", () => {
  test("runs the caller's statements in the same transaction and answers their results", async () => {
    const { world, topic, name } = idle();
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }], {
      batch: [insertOwn("now"), DB.prepare("SELECT 7 AS seven")],
    });
    expect(answer).toMatchObject({ ok: true, sent: 1 });
    if (answer.ok) expect(answer.results.map(({ results }) => results)).toEqual([[], [{ seven: 7 }]]);
    expect(await ownRow("now")).toBe("now");

    const failed = world
      .context()
      .outbox.enqueueNow(topic, [{ payload: { n: 2 } }], { batch: [insertOwn("other"), insertOwn("now")] });
    await expect(failed).rejects.toThrow(/UNIQUE/);
    expect(await ownRow("other")).toBe(null);
    expect(await world.rows(name)).toHaveLength(1);
    expect(world.queue.messages).toHaveLength(1);
  });

  test("an item due now is born leased for the topic's lease, and its message is its fence", async () => {
    const { world, topic, name } = idle({ leaseMs: 90 * SECOND });
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    const [row] = await world.rows(name);
    expect(row).toMatchObject({ lane: 1, at: world.clock.now + 90 * SECOND, due_at: world.clock.now, turn: 1 });
    expect(answer).toMatchObject({ items: [{ id: `${name}~${row?.seq}`, deduped: false }] });
    expect(world.queue.take()).toEqual([
      { body: { v: 1, topic: name, items: [[row?.at, row?.seq, 1]] }, delaySeconds: 0 },
    ]);
  });

  test("an item due before the tick after next is born leased and sent with its delay, rounded up", async () => {
    const { world, topic, name } = idle();
    const now = world.clock.now;
    const answer = await world.context().outbox.enqueueNow(topic, [
      { payload: { n: 1 }, dueAt: now + 37_001 },
      { payload: { n: 2 }, dueAt: now + 2 * MINUTE - 1 },
    ]);
    expect(answer).toMatchObject({ sent: 2 });
    expect(world.queue.take().map(({ delaySeconds }) => delaySeconds)).toEqual([38, 120]);
    expect((await world.rows(name)).map(({ lane, at, due_at }) => [lane, at - due_at])).toEqual([
      [1, 300_000],
      [1, 300_000],
    ]);
  });

  test("an item that the tick after next is early enough for stays ready and is not sent", async () => {
    const { world, topic, name } = idle();
    const dueAt = world.clock.now + 2 * MINUTE;
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 }, dueAt }]);
    expect(answer).toMatchObject({ ok: true, sent: 0 });
    expect(await world.rows(name)).toMatchObject([{ lane: 0, at: dueAt, due_at: dueAt }]);
    expect(world.queue.calls).toBe(0);
  });

  test("an item due in the past keeps its due time and is leased from now", async () => {
    const { world, topic, name } = idle();
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 }, dueAt: 0 }]);
    expect(await world.rows(name)).toMatchObject([{ lane: 1, at: world.clock.now + 300_000, due_at: 0 }]);
    expect(world.queue.take()[0]?.delaySeconds).toBe(0);
  });

  test("late in a long invocation, what is near counts from the clock and not from the invocation's start", async () => {
    const { world, topic, name } = idle();
    const ctx = world.context();
    world.clock.now += 5 * MINUTE;
    const dueAt = world.clock.now + 30 * SECOND;
    expect(await ctx.outbox.enqueueNow(topic, [{ payload: { n: 1 }, dueAt }])).toMatchObject({ sent: 1 });
    expect(await world.rows(name)).toMatchObject([{ lane: 1, at: dueAt + 300 * SECOND }]);
    expect(world.queue.take()).toMatchObject([{ delaySeconds: 30 }]);
  });

  test("a lease given when a tick was driven ahead of the clock counts from that tick", async () => {
    const { world, topic, name } = idle();
    const ahead = world.clock.now + 10 * MINUTE;
    await DB.prepare("INSERT INTO ticks (at, started_at, wall_until, modules) VALUES (?1, 0, 0, '[]')")
      .bind(ahead)
      .run();
    try {
      await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
      expect(await world.rows(name)).toMatchObject([{ lane: 1, at: ahead + 300_000 }]);
    } finally {
      await DB.exec("DELETE FROM ticks");
    }
  });

  test.each([
    ["on the drain", { path: "drain" as const }],
    ["on pause", { paused: true }],
  ])("%s, items are born ready and nothing is sent", async (_, change) => {
    const { world, topic, name } = idle();
    await changeTopic(world.invocation(), topic, change, "user:test");
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    expect(answer).toMatchObject({ ok: true, sent: 0 });
    expect(await world.rows(name)).toMatchObject([{ lane: 0, at: world.clock.now }]);
    expect(world.queue.calls).toBe(0);
  });

  test("a topic whose code says drain is born ready until it is flipped to the queue", async () => {
    const { world, topic, name } = idle({ path: "drain" });
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    await changeTopic(world.invocation(), topic, { path: "queue" }, "user:test");
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 2 } }]);
    expect((await world.rows(name)).map(({ lane }) => lane)).toEqual([0, 1]);
  });

  test("a refused send gives the rows back ready, uncounted, and the item is enqueued all the same", async () => {
    const { world, topic, name } = idle();
    world.queue.mode = "refuse";
    const dueAt = world.clock.now + 20 * SECOND;
    const answer = await world
      .context()
      .outbox.enqueueNow(topic, [{ payload: { n: 1 } }, { payload: { n: 2 }, dueAt }]);
    expect(answer).toMatchObject({ ok: true, sent: 0, items: [{ deduped: false }, { deduped: false }] });
    expect(await world.rows(name)).toMatchObject([
      { lane: 0, at: world.clock.now, turn: 2, attempts: 0, deliveries: 0, lapses: 0 },
      { lane: 0, at: dueAt, turn: 2 },
    ]);
    expect(world.warnings()).toEqual(["send_refused"]);
  });

  test("a send that was taken although its answer never came is a message that finds nothing", async () => {
    const ran: number[] = [];
    const { module, topic, name } = oneTopic((item) => {
      ran.push((item.payload as { n: number }).n);
      return done();
    });
    const world = createWorld([module]);
    world.queue.mode = "take and hang";
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    expect(answer).toMatchObject({ ok: true, sent: 0 });
    expect(await world.deliver(world.queue.take())).toEqual([{ kind: "ack" }]);
    expect(ran).toEqual([]);
    expect(await world.rows(name)).toMatchObject([{ lane: 0, deliveries: 0 }]);
  }, 15_000);

  test("when D1 cannot take the refused rows back, the lease decides and the tick sends them", async () => {
    const faulty = faultyDb();
    const { module, topic, name } = oneTopic(() => done());
    const world = createWorld([module], { db: faulty.db });
    world.queue.mode = "refuse";
    faulty.ask = (call) => (call === 2 ? "fail" : "pass");
    expect(await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }])).toMatchObject({
      ok: true,
      sent: 0,
    });
    expect(await world.rows(name)).toMatchObject([{ lane: 1 }]);
    world.queue.mode = "take";
    expect(await world.tick()).toMatchObject({ claimed: 0 });
    world.clock.now += 300 * SECOND;
    expect(await world.tick()).toMatchObject({ claimed: 1, sent: 1 });
    await world.deliver(world.queue.take());
    expect(await world.rows(name)).toEqual([]);
  });

  test("a large call is written in parts, all in one transaction, in the order given", async () => {
    const { world, topic, name } = idle({ schema: v.object({ n: v.number(), text: v.string() }) } as never);
    const text = "\u{1F600}".repeat(5_000);
    const items = Array.from({ length: 70 }, (_, n) => ({ payload: { n, text }, key: `k${n}` }));
    const answer = await world.context().outbox.enqueueNow(topic, items);
    expect(answer).toMatchObject({ ok: true, sent: 70 });
    const rows = await world.rows(name);
    expect(rows.map(({ payload }) => JSON.parse(payload).n)).toEqual(items.map(({ payload: { n } }) => n));
    expect(rows.every(({ payload }) => JSON.parse(payload).text === text)).toBe(true);
    if (answer.ok) expect(new Set(answer.items.map(({ id }) => id)).size).toBe(70);
    const order = world.queue.take().map(({ body }) => (body as { items: [number, string, number][] }).items[0]?.[1]);
    expect(order).toEqual(rows.map(({ seq }) => seq));
  });
});

describe("a key", () => {
  const ask = (world: ReturnType<typeof createWorld>, topic: never, keys: (string | undefined)[], onKey?: never) =>
    world.context().outbox.enqueueNow(
      topic,
      keys.map((key, n) => ({ payload: { n }, ...(key !== undefined && { key }) })),
      onKey === undefined ? {} : { onKey },
    );

  test("keep: the taken key stays with its holder, and the answer names it", async () => {
    const { world, topic, name } = idle();
    const first = await ask(world, topic as never, ["a"]);
    const second = await ask(world, topic as never, ["a", "b", undefined]);
    if (!first.ok || !second.ok) throw new Error("refused");
    expect(second.items.map(({ deduped }) => deduped)).toEqual([true, false, false]);
    expect(second.items[0]?.id).toBe(first.items[0]?.id);
    expect(await world.rows(name)).toHaveLength(3);
    expect(second.sent).toBe(2);
  });

  test("keep: of duplicates within one call the first is the item", async () => {
    const { world, topic, name } = idle();
    const answer = await ask(world, topic as never, ["a", "b", "a", "a"]);
    if (!answer.ok) throw new Error("refused");
    expect(answer.items.map(({ deduped }) => deduped)).toEqual([false, false, true, true]);
    expect(answer.items[2]?.id).toBe(answer.items[0]?.id);
    expect((await world.rows(name)).map(({ payload }) => JSON.parse(payload).n)).toEqual([0, 1]);
  });

  test("keep: eight that ask at once make one item, and seven get its id", async () => {
    const { world, topic, name } = idle();
    const answers = await Promise.all(Array.from({ length: 8 }, () => ask(world, topic as never, ["a"])));
    const items = answers.flatMap((answer) => (answer.ok ? answer.items : []));
    expect(items).toHaveLength(8);
    expect(new Set(items.map(({ id }) => id)).size).toBe(1);
    expect(items.filter(({ deduped }) => !deduped)).toHaveLength(1);
    expect(await world.rows(name)).toHaveLength(1);
    expect(world.queue.messages).toHaveLength(1);
  });

  test("refuse: a taken key refuses all of the call and the caller's own statements", async () => {
    const { world, topic, name } = idle();
    await ask(world, topic as never, ["a"]);
    const answer = await world.context().outbox.enqueueNow(
      topic,
      [
        { payload: { n: 1 }, key: "b" },
        { payload: { n: 2 }, key: "a" },
      ],
      {
        onKey: "refuse",
        batch: [insertOwn("refused")],
      },
    );
    expect(answer).toMatchObject({ ok: false, code: "key_taken", field: "items.key" });
    expect(await ownRow("refused")).toBe(null);
    expect(await world.rows(name)).toHaveLength(1);
    expect(await ask(world, topic as never, ["c", "c"], "refuse" as never)).toMatchObject({ code: "key_taken" });
    expect((await ask(world, topic as never, ["c"], "refuse" as never)).ok).toBe(true);
  });

  test("refuse, in the caller's batch, is a constraint that names the key's table", async () => {
    const { world, topic } = idle();
    await ask(world, topic as never, ["a"]);
    const ctx = world.context();
    const failed = ctx.db.batch(ctx.outbox.enqueue(topic, [{ payload: { n: 1 }, key: "a" }], { onKey: "refuse" }));
    expect(isConstraint(await failed.catch((error) => error), "item_keys.k")).toBe(true);
  });

  test("replace: the new item takes the key, and the superseded row never runs and frees nothing of it", async () => {
    const ran: number[] = [];
    const settled: unknown[] = [];
    const { module, topic, name } = oneTopic((item) => void ran.push((item.payload as { n: number }).n), {
      onSettle: (all) => {
        settled.push(...all.map(({ item }) => (item.payload as { n: number }).n));
        return [];
      },
    });
    const world = createWorld([module]);
    const put = (n: number) =>
      world.context().outbox.enqueueNow(topic, [{ payload: { n }, key: "a" }], { onKey: "replace" });
    const first = await put(1);
    const second = await put(2);
    if (!first.ok || !second.ok) throw new Error("refused");
    expect(second.items[0]).toEqual({ id: expect.not.stringContaining(first.items[0]?.id ?? ""), deduped: false });
    const [old, fresh] = world.queue.take();
    if (old === undefined || fresh === undefined) throw new Error("two were sent");
    await world.deliver([old]);
    expect(ran).toEqual([]);
    expect(settled).toEqual([]);
    expect(await world.keys(name)).toHaveLength(1);
    await world.deliver([fresh]);
    expect(ran).toEqual([2]);
    expect(await world.rows(name)).toEqual([]);
    expect(await world.keys(name)).toEqual([]);
  });

  test("replace: of duplicates within one call the last is the item, in however many parts it is written", async () => {
    const { world, topic, name } = idle({ schema: v.object({ n: v.number(), text: v.string() }) } as never);
    const text = "x".repeat(60_000);
    const items = Array.from({ length: 25 }, (_, n) => ({
      payload: { n, text },
      key: n % 24 === 0 ? "same" : `k${n}`,
    }));
    const answer = await world.context().outbox.enqueueNow(topic, items, { onKey: "replace" });
    if (!answer.ok) throw new Error("refused");
    expect(answer.items[0]).toEqual({ id: answer.items[24]?.id, deduped: true });
    const holder = (await world.keys(name)).find(({ k }) => k === "same");
    expect(answer.items[24]).toEqual({ id: `${name}~${holder?.seq}`, deduped: false });
  });

  test("replace, of an item that is running: the running one settles alone and the new one keeps the key", async () => {
    const started = Promise.withResolvers<void>();
    const go = Promise.withResolvers<void>();
    const { module, topic, name } = oneTopic(async (item) => {
      if ((item.payload as { n: number }).n !== 1) return done();
      started.resolve();
      await go.promise;
      return done();
    });
    const world = createWorld([module]);
    const put = (n: number) =>
      world.context().outbox.enqueueNow(topic, [{ payload: { n }, key: "a" }], { onKey: "replace" });
    await put(1);
    const running = world.deliver(world.queue.take());
    await started.promise;
    await put(2);
    go.resolve();
    await running;
    expect(await world.rows(name)).toMatchObject([{ payload: '{"n":2}', k: "a" }]);
    expect(await world.keys(name)).toHaveLength(1);
  });

  test.each([
    ["done", () => done()],
    ["dead", () => dead("gone")],
  ])("is free again after its item is %s", async (_, handle) => {
    const { module, topic, name } = oneTopic(handle);
    const world = createWorld([module]);
    await ask(world, topic as never, ["a"]);
    await world.deliver(world.queue.take());
    expect(await world.keys(name)).toEqual([]);
    const again = await ask(world, topic as never, ["a"], "refuse" as never);
    expect(again).toMatchObject({ ok: true, items: [{ deduped: false }] });
  });

  test.each([
    ["retryLater", () => retryLater("no")],
    ["nextAt", () => nextAt(Date.UTC(2050, 0, 1))],
  ])("is held over %s", async (_, handle) => {
    const { module, topic, name } = oneTopic(handle);
    const world = createWorld([module]);
    await ask(world, topic as never, ["a"]);
    await world.deliver(world.queue.take());
    expect(await ask(world, topic as never, ["a"])).toMatchObject({ items: [{ deduped: true }] });
    expect(await world.rows(name)).toHaveLength(1);
  });

  test("with a window stays taken after done until the window has passed, and the tick forgets it then", async () => {
    const { world, topic, name } = idle({ keyWindowMs: 10 * SECOND });
    const first = await ask(world, topic as never, ["a"]);
    await world.deliver(world.queue.take());
    expect(await world.rows(name)).toEqual([]);
    world.clock.now += 10 * SECOND - 1;
    const within = await ask(world, topic as never, ["a"]);
    expect(within).toMatchObject({ ok: true, sent: 0, items: [{ deduped: true }] });
    if (first.ok && within.ok) expect(within.items[0]?.id).toBe(first.items[0]?.id);
    expect(await ask(world, topic as never, ["a"], "refuse" as never)).toMatchObject({ code: "key_taken" });
    await world.tick();
    expect(await world.keys(name)).toHaveLength(1);
    world.clock.now += 1;
    expect(await ask(world, topic as never, ["a"], "refuse" as never)).toMatchObject({ ok: true, sent: 1 });
    await world.deliver(world.queue.take());
    world.clock.now += 10 * SECOND;
    await world.tick();
    expect(await world.keys(name)).toEqual([]);
  });

  test("with a window is free at once after dead: a person's replay or a new item must not wait", async () => {
    const { module, topic, name } = oneTopic(() => dead("gone"), { keyWindowMs: DAY });
    const world = createWorld([module]);
    await ask(world, topic as never, ["a"]);
    await world.deliver(world.queue.take());
    expect(await world.keys(name)).toEqual([]);
  });
});

describe("bad input is refused with its field named, and nothing is written", () => {
  const cycle: Record<string, unknown> = { n: 1 };
  cycle.self = { cycle };
  const any = v.object({ n: v.unknown() });
  test.each([
    ["a BigInt", { n: { deep: [1n] } }, "items[1].payload.n.deep[0]"],
    ["a cycle", cycle, "items[1].payload.self.cycle"],
    ["a Date", { n: new Date(0) }, "items[1].payload.n"],
    ["a NUL", { n: "a\0b" }, "items[1].payload.n"],
    ["a lone surrogate", { n: "\ud800" }, "items[1].payload.n"],
    ["NaN", { n: Number.NaN }, "items[1].payload.n"],
    ["a Map", { n: new Map() }, "items[1].payload.n"],
    ["too large", { n: "x".repeat(PAYLOAD_MAX_BYTES) }, "items[1].payload"],
  ])("%s", async (_, payload, field) => {
    const { world, topic, name } = idle({ schema: any } as never);
    const items = [{ payload: { n: 0 } }, { payload }];
    const answer = await world.context().outbox.enqueueNow(topic, items, { batch: [insertOwn("never")] });
    expect(answer).toMatchObject({ ok: false, code: "payload_refused", field });
    expect(() => world.context().outbox.enqueue(topic, items)).toThrow(
      expect.objectContaining({ name: "DueworkError", code: "payload_refused", field }),
    );
    expect(await world.rows(name)).toEqual([]);
    expect(await ownRow("never")).toBe(null);
    expect(world.queue.calls).toBe(0);
  });

  test("what the schema refuses, with the schema's own path", async () => {
    const { world, topic, name } = idle({
      schema: v.object({ n: v.number(), list: v.array(v.object({ at: v.number() })) }),
    } as never);
    const answer = await world
      .context()
      .outbox.enqueueNow(topic, [{ payload: { n: 1, list: [{ at: 1 }, { at: "2" }] } }]);
    expect(answer).toMatchObject({ ok: false, code: "payload_refused", field: "items[0].payload.list[1].at" });
    expect(await world.rows(name)).toEqual([]);
  });

  test.each([Number.NaN, 1.5, -1, 8.64e15 + 1, Number.POSITIVE_INFINITY, "2026-01-01"])("due at %s", async (dueAt) => {
    const { world, topic } = idle();
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 }, dueAt: dueAt as number }]);
    expect(answer).toMatchObject({ ok: false, code: "payload_refused", field: "items[0].dueAt" });
  });

  test.each([[""], ["x".repeat(513)], ["\ud800"], ["a\0"], [7]])("key %j", async (key) => {
    const { world, topic } = idle();
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 }, key: key as string }]);
    expect(answer).toMatchObject({ ok: false, code: "payload_refused", field: "items[0].key" });
  });

  test("a topic of no module here", async () => {
    const { world } = idle();
    const { topic: stranger } = oneTopic(() => done());
    expect(await world.context().outbox.enqueueNow(stranger, [{ payload: { n: 1 } }])).toMatchObject({
      ok: false,
      code: "unknown_topic",
    });
  });

  test("a schema that answers later", async () => {
    const schema = { "~standard": { version: 1, vendor: "x", validate: async () => ({ value: {} }) } };
    const { world, topic } = idle({ schema } as never);
    const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    expect(answer).toMatchObject({ code: "payload_refused", message: "the topic's schema is asynchronous" });
  });
});

test("a key's length and a payload's are allowed to the last character", async () => {
  const { world, topic, name } = idle({ schema: v.object({ n: v.string() }) } as never);
  const n = "x".repeat(PAYLOAD_MAX_BYTES - '{"n":""}'.length);
  const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n }, key: "é".repeat(512) }]);
  expect(answer).toMatchObject({ ok: true });
  expect(await world.rows(name)).toHaveLength(1);
});

describe("a full backlog", () => {
  test("refuses the whole batch, and one item less is taken", async () => {
    const { world, topic, name } = idle({ maxBacklog: 3 });
    const put = (count: number, own: string) =>
      world.context().outbox.enqueueNow(
        topic,
        Array.from({ length: count }, (_, n) => ({ payload: { n }, key: `${own}-${n}` })),
        { batch: [insertOwn(own)] },
      );
    expect(await put(4, "four")).toMatchObject({ ok: false, code: "backlog_full", field: "items" });
    expect(await put(2, "two")).toMatchObject({ ok: true });
    expect(await put(2, "more")).toMatchObject({ ok: false, code: "backlog_full" });
    expect(await put(1, "last")).toMatchObject({ ok: true });
    expect(await Promise.all(["four", "two", "more", "last"].map(ownRow))).toEqual([null, "two", null, "last"]);
    expect(await world.rows(name)).toHaveLength(3);
    expect(await world.keys(name)).toHaveLength(3);
  });

  test("is a constraint of that name in the caller's batch", async () => {
    const { world, topic } = idle({ maxBacklog: 1 });
    const ctx = world.context();
    const items = [{ payload: { n: 1 } }, { payload: { n: 2 } }];
    expect(isConstraint(await ctx.db.batch(ctx.outbox.enqueue(topic, items)).catch((e) => e), "backlog_full")).toBe(
      true,
    );
  });

  test("is never passed by calls at once", async () => {
    const { world, topic, name } = idle({ maxBacklog: 5 });
    await Promise.all(
      Array.from({ length: 8 }, () =>
        world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }, { payload: { n: 2 } }]),
      ),
    );
    expect(await world.rows(name)).toHaveLength(4);
  });
});
