import { beforeEach, describe, expect, test } from "vitest";
import { isoInstant } from "../../src/core/time.ts";
import { dead, done, DueworkError } from "../../src/index.ts";
import { LETTERS_READ } from "../../src/outbox/find.ts";
import { DB, oneTopic } from "../outbox/world.ts";
import { createStage } from "./stage.ts";

const TABLES = ["ticks", "items", "item_keys", "dead_letters", "topics"];
beforeEach(() => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`))));

function stage(handle: (n: number) => unknown = () => done()) {
  const made = oneTopic(({ payload }) => handle((payload as { n: number }).n) as never, { concurrency: 100 });
  const on = createStage([made.module]);
  const [module, topic] = made.name.split(".");
  return {
    ...made,
    ...on,
    args: { module, topic },
    list: (more = "") => on.get(`/api/dead-letters?module=${module}&topic=${topic}${more}`),
    path: `/api/dead-letters?module=${module}&topic=${topic}`,
    /** Dead letters 0 to count - 1, each a ms later than the one before. */
    bury: (count: number, options: { reason?: string; key?: string; from?: number; payload?: string } = {}) =>
      DB.prepare(
        `WITH RECURSIVE n(i) AS (SELECT ?6 UNION ALL SELECT i + 1 FROM n WHERE i < ?6 + ?2 - 1)
         INSERT INTO dead_letters (id, topic, k, payload, reason, error, attempts, deliveries, born_at, died_at)
         SELECT ?1 || '~' || printf('%018d', i), ?1, ?4, coalesce(?5, '{"n":' || i || '}'), ?3, 'it said no', 3, 0, 0, i
         FROM n`,
      )
        .bind(
          made.name,
          count,
          options.reason ?? "gone",
          options.key ?? null,
          options.payload ?? null,
          options.from ?? 0,
        )
        .run(),
    count: () => DB.prepare("SELECT count(*) AS n FROM dead_letters").first<number>("n"),
    drain: () => on.world.deliver(on.world.queue.take()),
  };
}

const id = (name: string, n: number) => `${name}~${String(n).padStart(18, "0")}`;

describe("the list of dead letters", () => {
  test("shows what died, why, and with what payload, the newest first", async () => {
    const on = stage(() => dead("gone", "it said 410"));
    const { outbox } = on.world.context();
    await outbox.enqueueNow(on.topic, [{ payload: { n: 1 }, key: "k" }]);
    await on.drain();
    const { json } = await on.list();
    expect(json).toEqual({
      items: [
        {
          id: expect.stringContaining(`${on.name}~`),
          ...on.args,
          key: "k",
          payload: { n: 1 },
          reason: "gone",
          lastError: "it said 410",
          attempts: 0,
          diedAt: isoInstant(on.world.clock.now),
        },
      ],
      nextCursor: null,
    });
  });

  test.for([
    "not JSON",
    '{"__proto__":{"admin":true},"constructor":1}',
    '"<script>alert(1)</script>"',
    `${"[".repeat(500)}${"]".repeat(500)}`,
    "null",
    '"\\ud800"',
  ])("shows a payload of %s as it was stored", async (payload) => {
    const on = stage();
    await on.bury(1, { payload });
    const { status, json } = await on.list();
    expect(status).toBe(200);
    const [{ payload: shown }] = json.items;
    expect(typeof shown === "string" && payload === "not JSON" ? shown : JSON.stringify(shown)).toBe(payload);
    expect(({} as { admin?: boolean }).admin).toBeUndefined();
  });

  test("goes by pages, each letter once, though all died in one instant", async () => {
    const on = stage();
    await on.bury(7);
    await DB.prepare("UPDATE dead_letters SET died_at = 5").run();
    const listed = await on.pages(`${on.path}&limit=3`);
    expect(listed.map((letter) => letter.id)).toEqual([6, 5, 4, 3, 2, 1, 0].map((n) => id(on.name, n)));
  });

  test("filtered by a reason, reads its bound and then answers early, and its pages miss none", async () => {
    const on = stage();
    await on.bury(3, { reason: "old" });
    await on.bury(2 * LETTERS_READ, { from: 3 });
    const before = { ...on.meter };
    const first = (await on.list("&reason=old")).json;
    expect(first).toMatchObject({ items: [], nextCursor: expect.any(String) });
    expect(on.meter.rowsRead - before.rowsRead).toBeLessThanOrEqual(4 * LETTERS_READ);
    const listed = await on.pages(`${on.path}&reason=old`);
    expect(listed.map((letter) => letter.id)).toEqual([2, 1, 0].map((n) => id(on.name, n)));
    expect((await on.list("&reason=gone&limit=2")).json.items).toHaveLength(2);
    expect((await on.list(`&reason=${encodeURIComponent("x' OR '1'='1")}`)).json.items).toEqual([]);
  });
});

describe("dead-letter.replay-all", () => {
  test("puts 200 a call back as new items, due now, and goes on by its cursor until none is left", async () => {
    const ran: number[] = [];
    const on = stage((n) => void ran.push(n));
    await on.bury(450);
    const counts: number[] = [];
    let cursor: string | null = null;
    do {
      const { json } = await on.command("dead-letter.replay-all", { ...on.args, ...(cursor !== null && { cursor }) });
      counts.push(json.result.replayed);
      cursor = json.result.nextCursor;
    } while (cursor !== null);
    expect([counts, await on.count()]).toEqual([[200, 200, 50], 0]);
    await on.drain();
    expect(ran.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 450 }, (_, n) => n));
  });

  test("twice, and ten times, at once: each letter becomes one item", async () => {
    const ran: number[] = [];
    const on = stage((n) => void ran.push(n));
    await on.bury(150);
    const one = id(on.name, 3);
    const answers = await Promise.all([
      ...Array.from({ length: 10 }, () => on.command("dead-letter.replay-all", on.args)),
      on.command("dead-letter.replay", { id: one }),
    ]);
    const replayed = answers.slice(0, 10).reduce((sum, { json }) => sum + json.result.replayed, 0);
    expect(replayed + (answers.at(-1)?.status === 200 ? 1 : 0)).toBe(150);
    await on.drain();
    expect(ran.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 150 }, (_, n) => n));
    expect([await on.count(), await on.world.rows(on.name)]).toEqual([0, []]);
  });

  test("what dies again meanwhile is not met again, so that the pages end", async () => {
    const on = stage(() => dead("gone", "still"));
    await on.bury(250);
    let calls = 0;
    let cursor: string | null = null;
    do {
      const { json } = await on.command("dead-letter.replay-all", { ...on.args, ...(cursor !== null && { cursor }) });
      await on.drain();
      cursor = json.result.nextCursor;
      calls += 1;
    } while (cursor !== null && calls < 9);
    expect([calls, await on.count()]).toEqual([2, 250]);
  });

  test("takes those of one reason, and leaves the others", async () => {
    const on = stage();
    await on.bury(3, { reason: "old" });
    await on.bury(3, { from: 3 });
    const { json } = await on.command("dead-letter.replay-all", { ...on.args, reason: "old" });
    expect(json.result).toEqual({ replayed: 3, kept: 0, nextCursor: null });
    expect((await on.list()).json.items.map(({ reason }: { reason: string }) => reason)).toEqual([
      "gone",
      "gone",
      "gone",
    ]);
  });

  test("keeps a letter whose key another item holds, also one of its own page", async () => {
    const on = stage();
    await on.bury(2, { key: "shared" });
    await on.bury(1, { key: "taken", from: 2 });
    await on.world.context().outbox.enqueueNow(on.topic, [{ payload: { n: 9 }, key: "taken" }]);
    expect((await on.command("dead-letter.replay-all", on.args)).json.result).toMatchObject({ replayed: 1, kept: 2 });
    const left = await on.world.deadLetters(on.name);
    expect(left.map(({ k }) => k)).toEqual(["shared", "taken"]);
    expect((await on.world.keys(on.name)).map(({ k }) => k)).toEqual(["shared", "taken"]);
    expect(await on.world.rows(on.name)).toHaveLength(2);
  });

  test("on the drain the items wait, due now", async () => {
    const on = stage();
    await on.bury(2);
    await on.command("topic.path", { ...on.args, path: "drain" });
    expect((await on.command("dead-letter.replay-all", on.args)).json.result.replayed).toBe(2);
    expect(on.world.queue.calls).toBe(0);
    expect(await on.world.rows(on.name)).toMatchObject([
      { lane: 0, at: on.world.clock.now },
      { lane: 0, at: on.world.clock.now },
    ]);
  });

  test("refuses the cursor of another list, and an unknown topic", async () => {
    const on = stage();
    const cursor = `dead.9.shop.play~${id("shop.play", 1)}`;
    expect(await on.command("dead-letter.replay-all", { ...on.args, cursor })).toMatchObject({
      status: 400,
      json: { code: "bad_arguments", field: "cursor" },
    });
    expect(await on.command("dead-letter.replay-all", { module: "shop", topic: "play" })).toMatchObject({
      status: 404,
      json: { code: "unknown_topic" },
    });
  });
});

describe("a module's own dead letters", () => {
  test("are read by pages, parsed, and replayed by their id", async () => {
    const on = stage();
    await on.bury(3);
    const { outbox } = on.world.context();
    const first = await outbox.deadLetters(on.topic, { limit: 2 });
    expect(first.items).toMatchObject([
      { id: id(on.name, 2), payload: { n: 2 }, reason: "gone", error: "it said no", attempts: 3, diedAt: 2 },
      { id: id(on.name, 1) },
    ]);
    const second = await outbox.deadLetters(on.topic, { limit: 2, cursor: first.nextCursor ?? "" });
    expect([second.items.map((one) => one.id), second.nextCursor]).toEqual([[id(on.name, 0)], null]);
    expect(await outbox.replay(id(on.name, 0))).not.toBeNull();
    expect((await outbox.deadLetters(on.topic, { limit: 9, reason: "else" })).items).toEqual([]);
  });

  test("are refused for a bad limit, a foreign cursor, and a topic of another Worker", async () => {
    const on = stage();
    const { outbox } = on.world.context();
    for (const limit of [0, -1, 201, 1e9, 1.5]) {
      await expect(outbox.deadLetters(on.topic, { limit })).rejects.toThrow(RangeError);
    }
    await expect(outbox.deadLetters(on.topic, { limit: 1, cursor: "12" })).rejects.toThrow(DueworkError);
    await expect(outbox.deadLetters(oneTopic(() => done()).topic, { limit: 1 })).rejects.toThrow("no module");
  });
});
