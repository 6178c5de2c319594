import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Postgres, startPostgres } from "./server.node.ts";
import { begin, NOW, openShop, type Shop } from "./shop.node.ts";

let postgres: Postgres;
let shop: Shop;
let shops = 0;

beforeAll(async () => {
  postgres = await startPostgres();
});
afterAll(() => postgres?.stop());
beforeEach(async () => {
  shops += 1;
  shop = await openShop(postgres, `replay_${shops}`);
});
afterEach(() => shop.close());

const count = async () =>
  (await shop.pool.query("select count(*)::int as n from inventory_checkout_batches")).rows[0].n;

describe("a key", () => {
  test("whose answer was lost brings the same rows again, in the same order, however often", async () => {
    const ids = await shop.reserve(5);
    shop.rest.loseNext();
    await expect(shop.expire("a", 3)).rejects.toThrow("unreachable");
    expect(await shop.statuses(ids)).toEqual(["expired", "expired", "expired", "reserved", "reserved"]);
    for (let n = 0; n < 3; n += 1) expect(await shop.expire("a", 3)).toEqual(ids.slice(0, 3));
    expect(await shop.expire("b", 3)).toEqual(ids.slice(3));
    expect(await shop.expire("a", 3)).toEqual(ids.slice(0, 3));
  });

  test("whose batch was empty stays empty, whatever has become due since", async () => {
    expect(await shop.expire("a")).toEqual([]);
    const ids = await shop.reserve(2);
    expect(await shop.expire("a")).toEqual([]);
    expect(await shop.expire("b")).toEqual(ids);
  });

  test("asked for twice at once is one batch", async () => {
    const ids = await shop.reserve(50);
    const answers = await Promise.all(Array.from({ length: 6 }, () => shop.expire("a", 10)));
    for (const answer of answers) expect(answer).toEqual(ids.slice(0, 10));
    expect((await shop.statuses(ids)).filter((status) => status === "expired")).toHaveLength(10);
  });

  test.each(["commit", "rollback"] as const)("whose first call is still open waits for it, to its %s", async (how) => {
    const ids = await shop.reserve(4);
    const first = await begin(shop.pool, "select expire_inventory_checkout_sessions($1, 2, 'a')", [new Date(NOW)]);
    let answered = false;
    const second = shop.expire("a", 2).finally(() => {
      answered = true;
    });
    await waitForLock();
    expect(answered).toBe(false);
    await first.end(how);
    expect(await second).toEqual(ids.slice(0, 2));
    expect((await shop.statuses(ids)).filter((status) => status === "expired")).toHaveLength(2);
  });

  test("does not hold up another", async () => {
    const ids = await shop.reserve(4);
    const first = await begin(shop.pool, "select expire_inventory_checkout_sessions($1, 2, 'a')", [new Date(NOW)]);
    expect(await shop.expire("b", 2)).toEqual(ids.slice(2));
    await first.end("commit");
  });

  test("that is empty, or longer than 200 characters, is refused, and nothing expires", async () => {
    const ids = await shop.reserve(1);
    await expect(shop.expire("")).rejects.toThrow("answered 400 (23514)");
    await expect(shop.expire("k".repeat(201))).rejects.toThrow("answered 400 (23514)");
    expect(await shop.statuses(ids)).toEqual(["reserved"]);
  });
});

describe("keeping", () => {
  const age = (key: string, days: number) =>
    shop.pool.query("update inventory_checkout_batches set created_at = now() - $2 * interval '1 day' where key = $1", [
      key,
      days,
    ]);

  test("29 days: still answered; 31 days: forgotten by the next new batch", async () => {
    const ids = await shop.reserve(2);
    await shop.expire("old", 1);
    await shop.expire("older", 1);
    await age("old", 29);
    await age("older", 31);
    await shop.expire("new");
    expect(await shop.expire("old", 1)).toEqual(ids.slice(0, 1));
    expect(await count()).toBe(2);
    expect(await shop.expire("older", 1)).toEqual([]);
  });

  test("a batch forgets a hundred at most", async () => {
    await shop.pool.query(
      `insert into inventory_checkout_batches (key, p_now, created_at)
       select 'k' || n, now(), now() - interval '40 days' from generate_series(1, 250) n`,
    );
    await shop.expire("a");
    expect(await count()).toBe(151);
    await shop.expire("b");
    await shop.expire("c");
    expect(await count()).toBe(3);
  });

  test("a replay, and a call without a key, write nothing there", async () => {
    await shop.expire("a");
    await age("a", 31);
    await shop.expireWithoutKey();
    await shop.expire("a");
    expect(await count()).toBe(1);
  });
});

/** Until some session waits for another's row. */
async function waitForLock(): Promise<void> {
  for (;;) {
    const { rows } = await shop.pool.query(
      "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
    );
    if (rows.length > 0) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
