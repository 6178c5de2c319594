import { beforeEach, describe, expect, test } from "vitest";
import { isoInstant, MINUTE, SECOND } from "../../src/core/time.ts";
import { dead, done, type Outcome, retryAt } from "../../src/index.ts";
import { claim } from "../../src/outbox/items.ts";
import { discardItem, retryItem } from "../../src/outbox/operate.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import type { TopicOptions } from "../../src/outbox/topic.ts";
import { leaseOf } from "../../src/outbox/runtime.ts";
import { DB, oneTopic } from "../outbox/world.ts";
import { createStage } from "./stage.ts";

const TABLES = ["ticks", "items", "item_keys", "dead_letters", "topics", "topic_changes"];
beforeEach(() => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`))));

type Handle = TopicOptions["handle"];

function stage(options: object = {}, handle: Handle = () => done()) {
  const made = oneTopic(handle as never, options);
  const on = createStage([made.module]);
  const query = `module=${made.name.split(".")[0]}&topic=work`;
  const enqueue = (items: object[], more: object = {}) =>
    on.world.context().outbox.enqueueNow(made.topic, items as never, more);
  return {
    ...made,
    ...on,
    query,
    now: () => on.world.clock.now,
    /** Puts an item there and answers its id. */
    async put(item: object = {}, more: object = {}): Promise<string> {
      const answer = await enqueue([{ payload: { n: 1 }, ...item }], more);
      if (!answer.ok) throw new Error(answer.message);
      return answer.items[0]?.id ?? "";
    },
    enqueue,
    show: (id: string) => on.get(`/api/items/${encodeURIComponent(id)}`),
    list: (more: string) => on.get(`/api/items?${query}${more}`),
    change: (to: { path: "queue" | "drain" } | { paused: boolean }) =>
      changeTopic(on.world.invocation(), made.topic, to, "http:ann"),
    deliver: () => on.world.deliver(on.world.queue.take()),
    tick: () =>
      DB.prepare("INSERT INTO ticks (at, started_at, wall_until, modules, ended_at) VALUES (?1, ?1, ?1, '[]', ?1)")
        .bind(on.world.clock.now)
        .run(),
  };
}

describe("an item says why it is not running, and what happens when", () => {
  test("ready and due: the next tick claims it", async () => {
    const on = stage();
    await on.tick();
    await on.change({ paused: true });
    const id = await on.put();
    await on.change({ paused: false });
    const { json } = await on.show(id);
    const due = isoInstant(on.now());
    expect(json).toEqual({
      id,
      place: `${id}~0.${on.now()}`,
      module: on.name.split(".")[0],
      topic: "work",
      key: null,
      state: "ready",
      dueAt: due,
      attempts: 0,
      deliveries: 0,
      leaseUntil: null,
      lastError: null,
      explanation: `It has been due since ${due} and is claimed by the next tick, within a minute, the oldest first.`,
    });
    expect((await on.command("item.show", { id })).json).toEqual({ ok: true, result: json });
  });

  test("ready and due, and no tick comes: that is said", async () => {
    const on = stage({ path: "drain" });
    const id = await on.put();
    const due = isoInstant(on.now());
    const drains = `It has been due since ${due} and runs in the first tick that has budget left for its topic's drain`;
    expect((await on.show(id)).json.explanation).toBe(`${drains}, but no tick has run yet.`);
    await on.tick();
    expect((await on.show(id)).json.explanation).toBe(`${drains}.`);
    on.world.clock.now += 4 * MINUTE;
    expect((await on.show(id)).json.explanation).toBe(`${drains}, but no tick has run since ${due}.`);
  });

  test("due later: when, and by which way", async () => {
    const on = stage();
    const dueAt = on.now() + 10 * MINUTE;
    const id = await on.put({ dueAt });
    const due = isoInstant(dueAt);
    expect((await on.show(id)).json.explanation).toBe(
      `It is due at ${due}: a tick claims it in time and its message starts it then.`,
    );
    await on.change({ path: "drain" });
    expect((await on.show(id)).json.explanation).toBe(
      `It is due at ${due} and runs after that, in the first tick that has budget left for its topic's drain.`,
    );
    await on.change({ paused: true });
    expect((await on.show(id)).json.explanation).toBe(
      `Its topic is paused: nothing claims it until somebody resumes the topic, and it is not due before ${due}.`,
    );
  });

  test("leased: it waits for its message until the lease ends, then it is claimed anew", async () => {
    const on = stage();
    const dueAt = on.now() + 30 * SECOND;
    const id = await on.put({ dueAt });
    const until = isoInstant(dueAt + 300 * SECOND);
    expect((await on.show(id)).json).toMatchObject({
      state: "leased",
      leaseUntil: until,
      explanation: `It was sent and waits for its message, which starts it when it is due at ${isoInstant(dueAt)}; should none have come by ${until}, it is claimed anew by the next tick.`,
    });
    await on.change({ path: "drain" });
    expect((await on.show(id)).json.explanation).toBe(
      `It was claimed, by a drain or before its topic went to the drain: should nobody have settled it at ${until}, it is claimed anew by the next tick.`,
    );
    on.world.clock.now = dueAt + 300 * SECOND;
    await on.change({ paused: true });
    expect((await on.show(id)).json).toMatchObject({
      state: "leased",
      explanation: `It was claimed and nothing began it in time: its lease lapsed at ${until}, so it is claimed anew once its topic is resumed.`,
    });
  });

  test("leased in a message with others: it may be at work already, since only the first of them moves", async () => {
    const seen: { state: string; explanation: string }[] = [];
    const ids: string[] = [];
    const on = stage({ itemsPerMessage: 2 }, async () => void seen.push((await on.show(ids[1] ?? "")).json));
    const answer = await on.enqueue([{ payload: { n: 1 } }, { payload: { n: 2 } }]);
    if (answer.ok) ids.push(...answer.items.map(({ id }) => id));
    const until = isoInstant(on.now() + 300 * SECOND);
    await on.deliver();
    expect(seen).toHaveLength(2);
    for (const one of seen) {
      expect(one).toMatchObject({
        state: "leased",
        explanation: `It was sent in a message that may carry others, and waits for it or is at work beside them: should nobody have settled it at ${until}, it is claimed anew by the next tick.`,
      });
    }
  });

  test("running: since when and until when, and what comes of it when nobody says how it ended", async () => {
    const seen: Record<string, unknown>[] = [];
    const on = stage({}, async ({ id }) => {
      seen.push((await on.show(id)).json);
      on.world.clock.now += 2 * MINUTE;
      seen.push((await on.show(id)).json);
    });
    const start = on.now();
    await on.put();
    await on.deliver();
    const [since, until] = [isoInstant(start), isoInstant(start + 70 * SECOND)];
    expect(seen).toMatchObject([
      {
        state: "running",
        leaseUntil: until,
        explanation: `It has been running since ${since} and has until ${until} to end; then it is claimed anew by the next tick.`,
      },
      {
        state: "running",
        explanation: `It was begun at ${since} and nobody said how it ended: its lease lapsed at ${until}, so it is claimed anew by the next tick.`,
      },
    ]);
  });

  test("failed: how often, of how many, with its last error, and when it is tried again", async () => {
    const again = { at: 0 };
    const on = stage({ maxAttempts: 5 }, () => retryAt(again.at, "it said 503"));
    again.at = on.now() + 10 * MINUTE;
    const id = await on.put();
    await on.deliver();
    expect((await on.show(id)).json).toMatchObject({
      state: "ready",
      attempts: 1,
      lastError: "it said 503",
      explanation: `It failed once of at most 5; its next try is at ${isoInstant(again.at)}: a tick claims it in time and its message starts it then.`,
    });
    await on.change({ paused: true });
    expect((await on.show(id)).json.explanation).toBe(
      `It failed once of at most 5; its topic is paused: nothing claims it until somebody resumes the topic, and it is not due before ${isoInstant(again.at)}.`,
    );
  });

  test.for<[string, object, () => Outcome, string, number]>([
    [
      "attempts_exhausted",
      { maxAttempts: 1 },
      () => retryAt(0, "no"),
      "it failed once, which is as often as its topic allows",
      1,
    ],
    ["endpoint_gone", {}, () => dead("endpoint_gone", "410"), 'its handler said "endpoint_gone"', 0],
  ])("dead of %s: why, and that it must be replayed", async ([, options, outcome, because, attempts]) => {
    const on = stage(options, () => outcome());
    const id = await on.put({ key: "k" });
    await on.deliver();
    const { json } = await on.show(id);
    expect(json).toMatchObject({ id, state: "dead", key: "k", dueAt: null, leaseUntil: null, attempts, deliveries: 0 });
    expect(json.explanation).toBe(
      `It died at ${isoInstant(on.now())} because ${because}: nothing tries it again until somebody replays it.`,
    );
    expect((await on.list("&state=dead")).json.items).toEqual([json]);
    expect((await on.list("&state=dead&key=k")).json.items).toEqual([json]);
    expect((await on.list("&state=dead&key=other")).json.items).toEqual([]);
  });

  test("superseded: it never runs", async () => {
    const on = stage({ path: "drain" });
    const first = await on.put({ key: "k" });
    const second = await on.put({ key: "k" }, { onKey: "replace" });
    expect((await on.show(first)).json.explanation).toBe(
      "A newer item has taken its key, so it never runs: the first claim from now on removes it.",
    );
    expect((await on.list("&key=k")).json.items).toMatchObject([{ id: second, key: "k" }]);
  });

  test("of a topic that no module has any more: nothing claims it", async () => {
    const on = stage();
    await DB.prepare(
      `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, payload)
       VALUES ('gone.work', 0, 5, '000000050000000001', 0, 5, 5, '{}')`,
    ).run();
    const { json } = await on.get("/api/items?module=gone&topic=work");
    expect(json.items).toMatchObject([{ id: "gone.work~000000050000000001", module: "gone" }]);
    expect(json.items[0].explanation).toBe("No module of this Worker has its topic, so nothing claims it.");
    expect(await on.command("item.retry", { id: json.items[0].id })).toMatchObject({
      status: 404,
      json: { code: "unknown_topic" },
    });
    expect((await on.command("item.discard", { id: json.items[0].id })).status).toBe(200);
    expect(await on.get("/api/items?module=gone&topic=work")).toMatchObject({
      status: 404,
      json: { code: "unknown_topic" },
    });
  });
});

describe("lists of items", () => {
  test("go by pages in the order of their instants, each item once, though many share one", async () => {
    const on = stage({ path: "drain" });
    const dueAt = on.now() + MINUTE;
    const answer = await on.enqueue(Array.from({ length: 7 }, (_, n) => ({ payload: { n }, dueAt: dueAt - (n % 2) })));
    const ids = answer.ok ? answer.items.map(({ id }) => id) : [];
    const listed = await on.pages(`/api/items?${on.query}&limit=2`);
    expect(listed.map(({ id }) => id)).toEqual([1, 3, 5, 0, 2, 4, 6].map((n) => ids[n]));
    expect(await on.pages(`/api/items?${on.query}&state=leased&limit=2`)).toEqual([]);
  });

  test("take module and topic as given, or the only topic that can be meant", async () => {
    const on = stage();
    for (const query of ["", `module=${on.name.split(".")[0]}`, "topic=work", on.query]) {
      expect((await on.get(`/api/items?${query}`)).status, query).toBe(200);
      expect((await on.get(`/api/dead-letters?${query}`)).status, query).toBe(200);
    }
    expect(await on.get("/api/items?module=nope")).toMatchObject({ status: 404, json: { code: "unknown_topic" } });
    const two = createStage([oneTopic(() => done()).module, oneTopic(() => done()).module]);
    expect(await two.get("/api/items?topic=work")).toMatchObject({
      status: 400,
      json: { code: "bad_arguments", field: "module" },
    });
  });

  test("refuse the cursor of another list, state or topic, and a state that is none", async () => {
    const on = stage({ path: "drain" });
    await on.enqueue([{ payload: { n: 1 } }, { payload: { n: 2 } }]);
    const { nextCursor } = (await on.list("&limit=1")).json;
    expect((await on.list(`&limit=1&cursor=${nextCursor}`)).json.items).toHaveLength(1);
    const wrong = [
      `&state=leased&cursor=${nextCursor}`,
      `&state=dead&cursor=${nextCursor}`,
      `&cursor=${nextCursor.replace(on.name, "shop.play")}`,
      "&cursor=12",
      "&cursor=",
      "&cursor=ready.1e9.x~y",
      `&key=k&cursor=${nextCursor}`,
      "&state=lost",
      "&key=",
    ];
    for (const more of wrong) {
      expect(await on.list(more), more).toMatchObject({ status: 400, json: { code: "bad_arguments" } });
    }
    expect((await on.get(`/api/dead-letters?${on.query}&cursor=${nextCursor}`)).status).toBe(400);
  });

  test.for([
    "'; DROP TABLE items; --",
    "<img src=x onerror=alert(1)>",
    "a~b.c/d?e&f=%00#g",
    "\u202e\ud83d\ude00 \u00e9",
    "%",
    "k".repeat(512),
  ])("find an item by the key %s, and no other", async (key) => {
    const on = stage({ path: "drain" });
    await on.put({ key: "other" });
    const id = await on.put({ key });
    expect((await on.list(`&key=${encodeURIComponent(key)}`)).json.items).toMatchObject([{ id, key, state: "ready" }]);
    expect((await on.list(`&state=running&key=${encodeURIComponent(key)}`)).json.items).toEqual([]);
    expect((await on.list(`&key=${encodeURIComponent(`${key.slice(0, 400)}x`)}`)).json.items).toEqual([]);
  });

  test("a key that is only held for its window leads to no item", async () => {
    const on = stage({ keyWindowMs: MINUTE });
    await on.put({ key: "k" });
    await on.deliver();
    expect((await on.list("&key=k")).json).toEqual({ items: [], nextCursor: null });
  });

  test("an id that is none, and one of an item that is done, are 404", async () => {
    const on = stage();
    const id = await on.put();
    await on.deliver();
    for (const one of [id, "nope", "~", `${on.name}~'OR 1=1 --`, `${on.name}~${"0".repeat(18)}~9.1`, "x".repeat(400)]) {
      expect(await on.show(one), one).toMatchObject({ status: 404, json: { code: "no_item" } });
    }
  });
});

describe("item.retry", () => {
  test("makes an item that waits for its retry due now and sends it; its failures still count", async () => {
    const outcomes: Outcome[] = [done()];
    const attempts: number[] = [];
    const on = stage({}, (item) => {
      attempts.push(item.attempts);
      return outcomes.pop() ?? done();
    });
    outcomes.push(retryAt(on.now() + 60 * MINUTE, "no"));
    const id = await on.put({ key: "k" });
    await on.deliver();
    expect((await on.command("item.retry", { id })).json).toEqual({ ok: true, result: { id, sent: true } });
    expect((await on.show(id)).json).toMatchObject({ state: "leased", dueAt: isoInstant(on.now()), attempts: 1 });
    expect(on.world.queue.messages).toMatchObject([{ delaySeconds: 0 }]);
    await on.deliver();
    expect(attempts).toEqual([0, 1]);
    expect([await on.world.rows(on.name), await on.world.keys(on.name)]).toEqual([[], []]);
  });

  test("on the drain, and while the topic is paused, the item waits, due now", async () => {
    const on = stage({ path: "drain" });
    const id = await on.put({ dueAt: on.now() + 60 * MINUTE });
    expect((await on.command("item.retry", { id })).json.result).toEqual({ id, sent: false });
    expect((await on.show(id)).json).toMatchObject({ state: "ready", dueAt: isoInstant(on.now()) });
    const late = await on.put({ dueAt: on.now() + 60 * MINUTE });
    await on.change({ path: "queue" });
    await on.change({ paused: true });
    expect((await on.command("item.retry", { id: late })).json.result).toEqual({ id: late, sent: false });
    expect(on.world.queue.calls).toBe(0);
  });

  test("one that is due already keeps its instant, and with it its turn", async () => {
    const on = stage({ path: "drain" });
    const due = isoInstant(on.now());
    const id = await on.put();
    on.world.clock.now += MINUTE;
    expect((await on.command("item.retry", { id })).status).toBe(200);
    expect((await on.show(id)).json).toMatchObject({ state: "ready", dueAt: due });
  });

  test("whose send is refused leaves the item ready, due now", async () => {
    const on = stage();
    const id = await on.put({ dueAt: on.now() + 60 * MINUTE });
    on.world.queue.mode = "refuse";
    expect((await on.command("item.retry", { id })).json.result).toEqual({ id, sent: false });
    expect((await on.show(id)).json).toMatchObject({ state: "ready", dueAt: isoInstant(on.now()), attempts: 0 });
  });

  test.for(["item.retry", "item.discard"])("%s is refused for what is leased, running, dead or gone", async (name) => {
    const codes: string[] = [];
    const on = stage({}, async ({ id }) => {
      codes.push((await on.command(name, { id })).json.code);
      return dead("no", "never");
    });
    const id = await on.put();
    expect(await on.command(name, { id })).toMatchObject({ status: 409, json: { code: "item_in_flight" } });
    await on.deliver();
    expect(codes).toEqual(["item_in_flight"]);
    expect(await on.command(name, { id })).toMatchObject({ status: 409, json: { code: "item_dead" } });
    expect(await on.command(name, { id: "nope" })).toMatchObject({ status: 404, json: { code: "no_item" } });
    expect(await on.world.deadLetters(on.name)).toHaveLength(1);
  });
});

test("item.discard takes a ready item away, and frees its own key alone", async () => {
  const on = stage({ path: "drain" });
  const first = await on.put({ key: "k" });
  const second = await on.put({ key: "k" }, { onKey: "replace" });
  expect((await on.command("item.discard", { id: first })).json).toEqual({ ok: true, result: { id: first } });
  expect(await on.world.keys(on.name)).toMatchObject([{ k: "k", seq: second.split("~")[1] }]);
  expect((await on.command("item.discard", { id: second })).status).toBe(200);
  expect([await on.world.rows(on.name), await on.world.keys(on.name)]).toEqual([[], []]);
});

test.for(["item.retry", "item.discard"])("%s and a claim at the same time: one of them has the item", async (name) => {
  const wins = { claim: 0, command: 0 };
  const on = stage();
  for (let round = 0; round < 20; round += 1) {
    await on.change({ paused: true });
    const id = await on.put();
    await on.change({ paused: false });
    const now = on.now();
    const claimed = () =>
      DB.batch([
        claim(DB, leaseOf(on.world.runtime, on.topic), { now, ahead: now, limit: 10, path: "queue", load: false }),
      ]);
    const asked = () => on.command(name, { id });
    const [first, second] = round % 2 === 0 ? [claimed(), asked()] : [asked(), claimed()];
    const [a, b] = await Promise.all([first, second] as const);
    const [batch, answer] = (round % 2 === 0 ? [a, b] : [b, a]) as [D1Result[], { status: number }];
    const taken = batch[0]?.results.length === 1;
    expect([taken, answer.status], `round ${round}`).toEqual(taken ? [true, 409] : [false, 200]);
    wins[taken ? "claim" : "command"] += 1;
    const [row] = await on.world.rows(on.name);
    expect(row?.turn ?? null).toBe(name === "item.discard" && !taken ? null : 1);
    await DB.prepare("DELETE FROM items").run();
  }
  expect(wins.claim + wins.command).toBe(20);
});

test.for([
  ["item.retry", retryItem],
  ["item.discard", discardItem],
] as const)("%s whose item is claimed after it was read changes nothing", async ([, act]) => {
  const on = stage();
  await on.change({ paused: true });
  const id = await on.put({ key: "k" });
  await on.change({ paused: false });
  const invocation = on.world.invocation();
  const now = on.now();
  let reads = 0;
  const db = new Proxy(invocation.db, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      if (name !== "batch") return typeof member === "function" ? member.bind(target) : member;
      return async (statements: D1PreparedStatement[]) => {
        const answer = await target.batch(statements);
        reads += 1;
        if (reads === 1) {
          const options = { now, ahead: now, limit: 1, path: "queue", load: false } as const;
          await DB.batch([claim(DB, leaseOf(on.world.runtime, on.topic), options)]);
        }
        return answer;
      };
    },
  });
  expect(await act({ ...invocation, db }, id)).toMatchObject({ ok: false, code: "item_in_flight" });
  expect(await on.world.rows(on.name)).toMatchObject([{ lane: 1, turn: 1 }]);
  expect(await on.world.keys(on.name)).toMatchObject([{ k: "k" }]);
  expect(on.world.queue.calls).toBe(0);
});
