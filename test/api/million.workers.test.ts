import { beforeAll, describe, expect, test } from "vitest";
import { isoInstant, MINUTE } from "../../src/core/time.ts";
import { done } from "../../src/index.ts";
import { LETTERS_READ, LOOK_THROUGH } from "../../src/outbox/find.ts";
import { DB, oneTopic } from "../outbox/world.ts";
import { createStage } from "./stage.ts";

/** Rows of one topic: items half ready and half leased, and as many dead letters. */
const ROWS = 1_000_000;
const HALF = ROWS / 2;
/** Rows that a page of 50 may read: for a dead letter the index, the row by its id, and both again in order. */
const PAGE = 220;

const made = oneTopic(() => done());
const on = createStage([made.module]);
const [module, topic] = made.name.split(".");
const of = `module=${module}&topic=${topic}`;
const first = on.world.clock.now + 60 * MINUTE;

const seq = (n: number) => String(n).padStart(18, "0");
const idOf = (n: number) => `${made.name}~${seq(n)}`;
const letterOf = (n: number) => `${made.name}~d${String(n).padStart(17, "0")}`;

beforeAll(async () => {
  const fill = DB.prepare(
    `WITH RECURSIVE n(i) AS (SELECT ?3 UNION ALL SELECT i + 1 FROM n WHERE i < ?3 + ?4 - 1)
     INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, payload)
     SELECT ?1, ?2, ?5 + i, printf('%018d', i), 1, ?5 + i, 0, '{"n":1}' FROM n`,
  );
  const bury = DB.prepare(
    `WITH RECURSIVE n(i) AS (SELECT ?2 UNION ALL SELECT i + 1 FROM n WHERE i < ?2 + ?3 - 1)
     INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
     SELECT ?1 || printf('~d%017d', i), ?1, '{"n":1}', iif(i < 10, 'rare', 'gone'), '', 1, 0, 0, i FROM n`,
  );
  for (let from = 0; from < HALF; from += HALF / 5) {
    await fill.bind(made.name, 0, from, HALF / 5, first).run();
    await fill.bind(made.name, 1, HALF + from, HALF / 5, first).run();
    await bury.bind(made.name, from, HALF / 5).run();
    await bury.bind(made.name, HALF + from, HALF / 5).run();
  }
  await DB.prepare("INSERT INTO item_keys (topic, k, seq) VALUES (?1, 'k', ?2)").bind(made.name, seq(400_000)).run();
}, 120_000);

/** What it answers, and the rows that D1 read for it. */
async function read(path: string) {
  const before = on.meter.rowsRead;
  const answer = await on.get(path);
  return { ...answer, rows: on.meter.rowsRead - before };
}

async function order(name: string, args: object) {
  const before = on.meter.rowsRead;
  const answer = await on.command(name, args);
  return { ...answer, rows: on.meter.rowsRead - before };
}

describe(`beside ${ROWS.toLocaleString("en")} items and as many dead letters of its topic`, () => {
  test.for(["ready", "leased", "running", "dead"])(
    "a page of %s reads no more than itself, wherever it is",
    async (state) => {
      const page = await read(`/api/items?${of}&state=${state}`);
      expect(page.status).toBe(200);
      expect(page.rows).toBeLessThanOrEqual(PAGE);
      if (state === "running") return;
      const middle =
        state === "dead"
          ? `dead.${HALF}.${made.name}~${letterOf(HALF)}`
          : `${state}.${first + (state === "ready" ? 0 : HALF) + 250_000}.${made.name}~${seq(0)}`;
      const later = await read(`/api/items?${of}&state=${state}&cursor=${middle}`);
      expect(later.json.items).toHaveLength(50);
      expect(later.rows).toBeLessThanOrEqual(PAGE);
    },
  );

  test("an item is found by its id where it was born, and by its place wherever it is", async () => {
    const id = (await on.world.context().outbox.enqueueNow(made.topic, [{ payload: { n: 1 }, dueAt: first + 3 }])) as {
      items: { id: string }[];
    };
    const born = await read(`/api/items/${id.items[0]?.id}`);
    expect(born.json).toMatchObject({ state: "ready", dueAt: isoInstant(first + 3) });
    expect(born.rows).toBeLessThanOrEqual(10);
    const place = `${idOf(400_000)}~0.${first + 400_000}`;
    const placed = await read(`/api/items/${place}`);
    expect(placed.json).toMatchObject({ id: idOf(400_000), place });
    expect(placed.rows).toBeLessThanOrEqual(10);
  });

  test("one that has moved is looked for in the first rows of each lane; beyond them that is said", async () => {
    const near = await read(`/api/items/${idOf(LOOK_THROUGH - 100)}`);
    expect(near.json).toMatchObject({ id: idOf(LOOK_THROUGH - 100), state: "ready" });
    const far = await read(`/api/items/${idOf(400_000)}`);
    expect(far).toMatchObject({ status: 409, json: { code: "item_moved", field: "id" } });
    const keyed = await read(`/api/items?${of}&key=k`);
    expect(keyed).toMatchObject({ status: 409, json: { code: "item_moved" } });
    for (const { rows } of [near, far, keyed]) expect(rows).toBeLessThanOrEqual(3 * LOOK_THROUGH + 100);
  });

  test("a key that is only held for its window has no item, and none is looked for", async () => {
    await DB.prepare("INSERT INTO item_keys (topic, k, seq, held_until) VALUES (?1, 'held', ?2, 9e15)")
      .bind(made.name, seq(450_000))
      .run();
    const held = await read(`/api/items?${of}&key=held`);
    expect(held).toMatchObject({ status: 200, json: { items: [] } });
    expect(held.rows).toBeLessThanOrEqual(10);
  });

  test("an item is retried and discarded by its place at the cost of a few rows", async () => {
    for (const [name, n] of [
      ["item.retry", 300_001],
      ["item.discard", 300_002],
    ] as const) {
      const answer = await order(name, { id: `${idOf(n)}~0.${first + n}` });
      expect(answer).toMatchObject({ status: 200, json: { result: { id: idOf(n) } } });
      expect(answer.rows, name).toBeLessThanOrEqual(20);
    }
  });

  test("dead letters: a page reads itself, a filtered one its bound", async () => {
    const page = await read(`/api/dead-letters?${of}`);
    expect(page.json.items[0].id).toBe(letterOf(ROWS - 1));
    expect(page.rows).toBeLessThanOrEqual(PAGE);
    const rare = await read(`/api/dead-letters?${of}&reason=rare`);
    expect(rare.json).toMatchObject({ items: [], nextCursor: expect.any(String) });
    expect(rare.rows).toBeLessThanOrEqual(4 * LETTERS_READ);
  });

  test("dead-letter.replay-all reads its page, however many there are", async () => {
    const { json, rows } = await order("dead-letter.replay-all", { module, topic });
    expect(json.result).toMatchObject({ replayed: 200, kept: 0, nextCursor: expect.any(String) });
    expect(rows).toBeLessThanOrEqual(200 * 20);
    const none = await order("dead-letter.replay-all", { module, topic, reason: "rare" });
    expect(none.json.result).toMatchObject({ replayed: 0, nextCursor: expect.any(String) });
    expect(none.rows).toBeLessThanOrEqual(4 * LETTERS_READ);
  });

  test("topics count what they may and say so", async () => {
    const { json, rows } = await read("/api/topics");
    const capped = { value: 10_000, capped: true };
    expect(json.items).toMatchObject([{ ready: capped, leased: capped, dead: capped }]);
    expect(rows).toBeLessThanOrEqual(31_000);
  });
});
