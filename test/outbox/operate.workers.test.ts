import { describe, expect, test } from "vitest";
import { unboundedBudget } from "../../src/core/budget.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { dead, done, type Outcome, topic as declare } from "../../src/index.ts";
import { discardDeadLetter, replayDeadLetter } from "../../src/outbox/dead-letters.ts";
import { changeTopic, readTopicPath } from "../../src/outbox/paths.ts";
import type { Item } from "../../src/outbox/topic.ts";
import { createWorld, DB, oneTopic, type World } from "./world.ts";

const number = (item: Item) => (item.payload as { n: number }).n;
const numbers = (count: number) => Array.from({ length: count }, (_, n) => ({ payload: { n } }));

describe("dead -> ready: a replay", () => {
  /** One dead letter of a topic whose handler answers what `next` holds. */
  async function buried(key?: string, options: object = {}) {
    const ran: number[] = [];
    const next = { answer: (): Outcome => dead("gone", "410") };
    const made = oneTopic((item) => {
      ran.push(item.attempts);
      return next.answer();
    }, options);
    const world = createWorld([made.module]);
    await world.context().outbox.enqueueNow(made.topic, [{ payload: { n: 1 }, ...(key !== undefined && { key }) }]);
    await world.deliver(world.queue.take());
    const [letter] = await world.deadLetters(made.name);
    if (letter === undefined) throw new Error("nothing died");
    return { ...made, world, ran, next, letter };
  }

  test("is a new item, due now, sent at once, with its attempts at 0, and it runs", async () => {
    const { world, name, ran, next, letter } = await buried();
    world.clock.now += 3_600_000;
    const answer = await replayDeadLetter(world.invocation(), letter.id);
    expect(answer).toMatchObject({ ok: true, id: expect.not.stringMatching(letter.id) });
    expect(await world.deadLetters(name)).toEqual([]);
    expect(await world.rows(name)).toMatchObject([
      { lane: 1, due_at: world.clock.now, born_at: world.clock.now, attempts: 0, payload: letter.payload },
    ]);
    next.answer = () => done();
    await world.deliver(world.queue.take());
    expect(ran).toEqual([0, 0]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("of one letter by eight at once makes one item", async () => {
    const { world, name, letter } = await buried("a");
    const answers = await Promise.all(Array.from({ length: 8 }, () => replayDeadLetter(world.invocation(), letter.id)));
    expect(answers.filter(({ ok }) => ok)).toHaveLength(1);
    const refused = answers.filter((answer) => !answer.ok);
    expect(new Set(refused.map(({ code }) => code))).toEqual(new Set(["no_dead_letter"]));
    expect(await world.rows(name)).toHaveLength(1);
    expect(await world.keys(name)).toHaveLength(1);
    expect(world.queue.messages).toHaveLength(1);
    expect(await world.deadLetters(name)).toEqual([]);
  });

  test("while another item holds its key is refused, and the letter stays", async () => {
    const { world, topic, name, letter } = await buried("a");
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 2 }, key: "a" }]);
    expect(await replayDeadLetter(world.invocation(), letter.id)).toMatchObject({ ok: false, code: "key_taken" });
    await expect(world.context().outbox.replay(letter.id)).rejects.toMatchObject({ code: "key_taken", field: "key" });
    expect(await world.deadLetters(name)).toHaveLength(1);
    expect(await world.rows(name)).toHaveLength(1);
  });

  test("on the drain or while the queue refuses is ready, for the tick", async () => {
    const { world, name, letter } = await buried();
    world.queue.mode = "refuse";
    expect(await world.context().outbox.replay(letter.id)).toEqual({ id: expect.any(String) });
    expect(await world.rows(name)).toMatchObject([{ lane: 0, due_at: world.clock.now, attempts: 0 }]);
  });

  test("of one that is not there, or of a topic that is gone, is refused", async () => {
    const { world, letter } = await buried();
    expect(await replayDeadLetter(world.invocation(), "nothing~here")).toMatchObject({ code: "no_dead_letter" });
    expect(await world.context().outbox.replay("nothing~here")).toBe(null);
    const stranger = createWorld([oneTopic(() => done()).module]);
    expect(await replayDeadLetter(stranger.invocation(), letter.id)).toMatchObject({ code: "unknown_topic" });
    expect(await replayDeadLetter(world.invocation(), letter.id)).toMatchObject({ ok: true });
  });

  test("that dies again is a letter of its own", async () => {
    const { world, name, letter } = await buried();
    const answer = await replayDeadLetter(world.invocation(), letter.id);
    await world.deliver(world.queue.take());
    const letters = await world.deadLetters(name);
    expect(letters.map(({ id }) => id)).toEqual([answer.ok ? answer.id : ""]);
  });

  test("of a letter that was discarded finds nothing, and a discard is once", async () => {
    const { world, name, letter } = await buried();
    const answers = await Promise.all([1, 2, 3].map(() => discardDeadLetter(world.invocation(), letter.id)));
    expect(answers.filter(Boolean)).toHaveLength(1);
    expect(await world.deadLetters(name)).toEqual([]);
    expect(await replayDeadLetter(world.invocation(), letter.id)).toMatchObject({ code: "no_dead_letter" });
  });
});

describe("a topic's path", () => {
  const idle = () => {
    const made = oneTopic(() => done());
    return { ...made, world: createWorld([made.module]) };
  };
  const history = async (name: string) =>
    (
      await DB.prepare(
        "SELECT version, path, paused, changed_at, changed_by FROM topic_changes WHERE topic = ?1 ORDER BY version",
      )
        .bind(name)
        .all()
    ).results;

  test("is the code's, at version 0, until it is changed; each change is kept with who and when", async () => {
    const { world, topic, name } = idle();
    expect(await readTopicPath(DB, topic)).toEqual({ path: "queue", paused: false, version: 0 });
    const first = await changeTopic(world.invocation(), topic, { path: "drain" }, "user:ann", 0);
    expect(first).toEqual({ ok: true, changed: true, path: "drain", paused: false, version: 1 });
    world.clock.now += 5;
    await changeTopic(world.invocation(), topic, { paused: true }, "user:bob", 1);
    expect(await readTopicPath(DB, topic)).toEqual({ path: "drain", paused: true, version: 2 });
    const now = world.clock.now;
    expect(await history(name)).toEqual([
      { version: 1, path: "drain", paused: 0, changed_at: now - 5, changed_by: "user:ann" },
      { version: 2, path: "drain", paused: 1, changed_at: now, changed_by: "user:bob" },
    ]);
  });

  test("asked for what it is changes nothing and leaves no trace", async () => {
    const { world, topic, name } = idle();
    const answer = await changeTopic(world.invocation(), topic, { path: "queue" }, "user:ann");
    expect(answer).toEqual({ ok: true, changed: false, path: "queue", paused: false, version: 0 });
    expect(await history(name)).toEqual([]);
    expect(world.logs).toEqual([]);
  });

  test.each([0, 1])(
    "changed by two at once from version %i: one wins, the other is version_conflict",
    async (version) => {
      const { world, topic, name } = idle();
      if (version === 1) await changeTopic(world.invocation(), topic, { paused: true }, "user:first");
      const answers = await Promise.all([
        changeTopic(world.invocation(), topic, { path: "drain" }, "user:ann", version),
        changeTopic(world.invocation(), topic, { path: "drain", paused: false } as never, "user:bob", version),
        changeTopic(world.invocation(), topic, { path: "drain" }, "user:cyd", version),
      ]);
      expect(answers.filter((answer) => answer.ok && answer.changed)).toHaveLength(1);
      expect(answers.filter((answer) => !answer.ok).map((answer) => (answer as { code: string }).code)).toEqual([
        "version_conflict",
        "version_conflict",
      ]);
      const kept = await history(name);
      expect(kept.map((row) => row.version)).toEqual(version === 1 ? [1, 2] : [1]);
      const winner = world.logs.filter(({ event }) => event === "topic_changed").at(-1);
      expect(kept.at(-1)?.changed_by).toBe(winner?.by);
    },
  );

  test("changed from a version that is past is a conflict, whatever is asked", async () => {
    const { world, topic } = idle();
    await changeTopic(world.invocation(), topic, { path: "drain" }, "user:ann");
    expect(await changeTopic(world.invocation(), topic, { path: "queue" }, "user:bob", 0)).toMatchObject({
      ok: false,
      code: "version_conflict",
      field: "expectedVersion",
    });
  });

  test("of a topic without a queue cannot be the queue", async () => {
    const { world, topic } = idle();
    const off = { ...world.runtime, queue: () => null };
    const invocation = { ...world.invocation(), runtime: off };
    expect(await changeTopic(invocation, topic, { path: "queue" }, "user:ann")).toMatchObject({
      code: "queue_not_bound",
    });
  });

  test("paused: nothing is claimed by tick, drain or pump, what was sent still runs, and a resume goes on", async () => {
    const made = oneTopic(() => done());
    const world = createWorld([made.module]);
    await world.context().outbox.enqueueNow(made.topic, numbers(2));
    await DB.batch(world.context().outbox.enqueue(made.topic, numbers(3)));
    await changeTopic(world.invocation(), made.topic, { paused: true }, "user:ann");
    expect(await world.tick()).toMatchObject({ claimed: 0, drained: 0 });
    const drain = () => world.context().outbox.drainWithin(made.topic, unboundedBudget(), { limit: 9 });
    expect(await drain()).toMatchObject({ processed: 0, stopped: null });
    await world.deliver(world.queue.take());
    expect(await world.rows(made.name)).toHaveLength(3);
    await changeTopic(world.invocation(), made.topic, { paused: false }, "user:ann");
    expect(await world.tick()).toMatchObject({ claimed: 3, sent: 3 });
    await world.deliver(world.queue.take());
    expect(await world.rows(made.name)).toEqual([]);
  });

  test("flipped to and fro under load, with overlapping ticks and late messages: each item settles once, none is lost", async () => {
    const ran: number[] = [];
    const made = oneTopic(
      async (item) => {
        ran.push(number(item));
        await new Promise((resolve) => setTimeout(resolve, ran.length % 3));
        return done();
      },
      { itemsPerMessage: 3, settleEvery: 4 },
    );
    const world = createWorld([made.module]);
    await DB.batch(world.context().outbox.enqueue(made.topic, numbers(400)));
    let late: ReturnType<typeof world.queue.take> = [];
    for (let round = 0; round < 8; round += 1) {
      if (round === 3) world.queue.mode = "refuse";
      const work = [
        world.tick(),
        world.tick(),
        world.deliver(late),
        changeTopic(world.invocation(), made.topic, { path: round % 2 === 0 ? "drain" : "queue" }, "user:ann"),
        world.context().outbox.enqueueNow(
          made.topic,
          numbers(20).map(({ payload: { n } }) => ({ payload: { n: 1_000 * (round + 1) + n } })),
        ),
      ];
      await Promise.all(work);
      world.queue.mode = "take";
      late = world.queue.take();
      // Half of them come twice.
      late.push(...late.filter((_, index) => index % 2 === 0));
      world.clock.now += MINUTE;
    }
    await world.deliver(late);
    for (let round = 0; round < 3; round += 1) {
      world.clock.now += 300 * SECOND;
      await world.tick();
      await world.deliver(world.queue.take());
    }
    expect(await world.rows(made.name)).toEqual([]);
    expect(new Set(ran).size).toBe(400 + 8 * 20);
    expect(ran).toHaveLength(400 + 8 * 20);
    expect(world.logs.filter(({ event }) => event === "lease_lost")).toEqual([]);
  });
});

describe("the pump", () => {
  async function backlog(count: number, options: object = {}) {
    const ran: number[] = [];
    const made = oneTopic((item) => void ran.push(number(item)), { itemsPerMessage: 100, concurrency: 50, ...options });
    const world = createWorld([made.module]);
    await DB.batch(world.context().outbox.enqueue(made.topic, numbers(count)));
    return { ...made, world, ran };
  }
  const isPump = ({ body }: { body: unknown }) => "pump" in (body as object);
  /** Delivers what the queue holds, batch by batch, until it is empty. */
  async function empty(world: World, change: (messages: ReturnType<World["queue"]["take"]>) => typeof messages) {
    for (let batch = 0; batch < 50; batch += 1) {
      const messages = world.queue.take();
      if (messages.length === 0) return;
      await world.deliver(change(messages));
    }
    throw new Error("the queue never got empty");
  }

  test("empties a backlog of many pages from one tick, though each message comes twice, and each item runs once", async () => {
    const { world, ran, name } = await backlog(11_000);
    await world.tick();
    let pumps = 0;
    await empty(world, (messages) => {
      pumps += messages.filter(isPump).length;
      return [...messages, ...messages];
    });
    expect(pumps).toBeGreaterThanOrEqual(1);
    expect(await world.rows(name)).toEqual([]);
    expect(ran).toHaveLength(11_000);
    expect(new Set(ran).size).toBe(11_000);
    expect(world.warnings()).toEqual([]);
  });

  test.each([
    ["a pause", { paused: true }],
    ["a flip", { path: "drain" as const }],
  ])("is ended by %s", async (_, change) => {
    const { world, topic, name } = await backlog(6_000);
    await world.tick();
    const sent = (await world.rows(name)).filter(({ lane }) => lane === 1).length;
    await changeTopic(world.invocation(), topic, change, "user:ann");
    await empty(world, (messages) => messages);
    expect(await world.rows(name)).toHaveLength(6_000 - sent);
    expect((await world.rows(name)).every(({ lane }) => lane === 0)).toBe(true);
  });
});

test("a topic whose deadline does not fit its lease with room to start is refused, the option named", () => {
  const { topic } = oneTopic(() => done());
  const options = { schema: topic.options.schema, handle: () => done() };
  const make = (leaseMs: number, deadlineMs: number) => declare("a.b", { ...options, leaseMs, deadlineMs });
  expect(() => make(69_999, 30_000)).toThrow(expect.objectContaining({ code: "bad_topic", field: "a.b.deadlineMs" }));
  expect(make(70_000, 30_000).options.leaseMs).toBe(70_000);
});
