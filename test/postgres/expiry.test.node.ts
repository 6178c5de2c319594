import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { expireOverRpc } from "../../src/checkout/rpc.ts";
import { type Postgres, startPostgres } from "./server.node.ts";
import { begin, NOW, openShop, SERVICE_KEY, type Shop } from "./shop.node.ts";

let postgres: Postgres;
let shop: Shop;
let shops = 0;

beforeAll(async () => {
  postgres = await startPostgres();
});
afterAll(() => postgres?.stop());
beforeEach(async () => {
  shops += 1;
  shop = await openShop(postgres, `shop_${shops}`);
});
afterEach(() => shop.close());

const PAY = "update inventory_checkout_sessions set status = 'completed' where id = $1 and status = 'reserved'";

describe("what expires", () => {
  test("sessions that are due, the longest due first, with their workspaces", async () => {
    const ids = await shop.reserve(3);
    const future = await shop.reserve(1, -1);
    const answer = await expireOverRpc(
      fetch,
      { url: shop.rest.url, serviceKey: SERVICE_KEY },
      { now: NOW, limit: 1_000, key: "a" },
      20_000,
    );
    const { rows } = await shop.pool.query(
      `select id as "checkoutId", ws_id as "workspaceId" from inventory_checkout_sessions
       where id = any ($1) order by expires_at`,
      [ids],
    );
    expect(answer).toEqual({ ok: true, rows });
    expect(await shop.statuses([...ids, ...future])).toEqual(["expired", "expired", "expired", "reserved"]);
  });

  test("a session due at that very instant, and none a moment later", async () => {
    const [due, later] = (await shop.reserve(2, 0)) as [string, string];
    const move = "update inventory_checkout_sessions set expires_at = $2 where id = $1";
    await shop.pool.query(move, [due, new Date(NOW)]);
    await shop.pool.query(move, [later, new Date(NOW + 1)]);
    expect(await shop.expire("a")).toEqual([due]);
  });

  test("only what is reserved: sessions and reservations in any other state keep it", async () => {
    const ids = await shop.reserve(3);
    for (const [index, status] of ["completed", "expired", "released"].entries()) {
      await shop.pool.query("update inventory_checkout_sessions set status = $2 where id = $1", [ids[index], status]);
    }
    const [mixed] = (await shop.reserve(1)) as [string];
    await shop.pool.query(
      `insert into inventory_checkout_reservations (checkout_id, ws_id, status, released_at)
       values ($1, $1, 'released', '2026-01-01Z'), ($1, $1, 'completed', null), ($1, $1, 'reserved', '2026-01-02Z')`,
      [mixed],
    );
    expect(await shop.expire("a")).toEqual([mixed]);
    expect(await shop.statuses(ids)).toEqual(["completed", "expired", "released"]);
    const { rows } = await shop.pool.query(
      `select status, released_at from inventory_checkout_reservations where checkout_id = any ($1)
       order by status, released_at`,
      [[mixed]],
    );
    expect(rows).toEqual([
      { status: "completed", released_at: null },
      { status: "expired", released_at: new Date("2026-01-02T00:00:00Z") },
      { status: "expired", released_at: new Date(NOW) },
      { status: "released", released_at: new Date("2026-01-01T00:00:00Z") },
    ]);
    const untouched = await shop.pool.query(
      "select distinct status from inventory_checkout_reservations where checkout_id = any ($1)",
      [ids],
    );
    expect(untouched.rows).toEqual([{ status: "reserved" }]);
  });

  test("1,000 rows in one answer, which fits; the next batch is the rest", async () => {
    const ids = await shop.reserve(1_003);
    expect(await shop.expire("a")).toEqual(ids.slice(0, 1_000));
    expect(await shop.expire("b")).toEqual(ids.slice(1_000));
    expect(await shop.expire("c")).toEqual([]);
  });

  test.each([
    [0, 1],
    [-5, 1],
    [2, 2],
    [null, 500],
    [9_999, 5_000],
  ])("a limit of %s is %i rows", async (limit, rows) => {
    await shop.reserve(5_002);
    const { rowCount } = await shop.pool.query("select from expire_inventory_checkout_sessions($1, $2)", [
      new Date(NOW),
      limit,
    ]);
    expect(rowCount).toBe(rows);
  });

  test("no instant: refused, and nothing has happened", async () => {
    const ids = await shop.reserve(1);
    await expect(shop.pool.query("select expire_inventory_checkout_sessions(null, 5, 'a')")).rejects.toThrow(
      "p_now is required",
    );
    expect(await shop.statuses(ids)).toEqual(["reserved"]);
    expect(await shop.expire("a")).toEqual(ids);
  });
});

describe("a payment", () => {
  test("that is under way when the batch runs: passed over at once, and stays paid", async () => {
    const [paid, other] = (await shop.reserve(2)) as [string, string];
    const payment = await begin(shop.pool, PAY, [paid]);
    expect(await shop.expire("a")).toEqual([other]);
    await payment.end("commit");
    expect(await shop.expire("b")).toEqual([]);
    expect(await shop.statuses([paid, other])).toEqual(["completed", "expired"]);
  });

  test("that is taken back: the session expires in a later batch", async () => {
    const [id] = (await shop.reserve(1)) as [string];
    const payment = await begin(shop.pool, PAY, [id]);
    expect(await shop.expire("a")).toEqual([]);
    await payment.end("rollback");
    expect(await shop.expire("b")).toEqual([id]);
  });

  test("that comes between candidate and update waits, and finds it is too late", async () => {
    const [id] = (await shop.reserve(1)) as [string];
    const batch = await begin(shop.pool, "select expire_inventory_checkout_sessions($1)", [new Date(NOW)]);
    const payment = shop.pool.query(PAY, [id]);
    await batch.end("commit");
    expect((await payment).rowCount).toBe(0);
    expect(await shop.statuses([id])).toEqual(["expired"]);
  });

  test("amid many batches: each session is paid or expired, never both", async () => {
    const ids = await shop.reserve(400);
    const payments = Promise.all(ids.map((id) => shop.pool.query(PAY, [id]).then(({ rowCount }) => rowCount)));
    const batches = await Promise.all(Array.from({ length: 40 }, (_, n) => shop.expire(`k${n}`, 10)));
    const paid = ids.filter(
      (
        (counts) => (_, index) =>
          counts[index] === 1
      )(await payments),
    );
    const expired = new Set(batches.flat());
    expect(paid.filter((id) => expired.has(id))).toEqual([]);
    expect(await shop.statuses(paid)).toEqual(paid.map(() => "completed"));
    expect(await shop.statuses([...expired])).toEqual([...expired].map(() => "expired"));
  });
});

describe("two at once", () => {
  test("take no session twice, and all of them in the end", async () => {
    const ids = await shop.reserve(2_000);
    const workers = Array.from({ length: 4 }, async (_, worker) => {
      const taken: string[] = [];
      // A short batch is not the end while others hold rows, so each runs its whole course.
      for (let n = 0; n < 12; n += 1) taken.push(...(await shop.expire(`${worker}-${n}`, 100)));
      return taken;
    });
    const taken = (await Promise.all(workers)).flat();
    expect(new Set(taken).size).toBe(taken.length);
    expect([...taken].sort()).toEqual([...ids].sort());
  });

  test("a caller without a key beside ours takes none of our rows, nor we of its", async () => {
    const ids = await shop.reserve(1_000);
    const runs = Array.from({ length: 10 }, (_, n) => [shop.expire(`k${n}`, 60), shop.expireWithoutKey(60)]);
    const taken = (await Promise.all(runs.flat())).flat();
    while (taken.length < ids.length) taken.push(...(await shop.expireWithoutKey()));
    expect([...taken].sort()).toEqual([...ids].sort());
  });

  test("one that holds its rows holds nobody up: the other takes the next", async () => {
    const ids = await shop.reserve(4);
    const batch = await begin(shop.pool, "select expire_inventory_checkout_sessions($1, 2)", [new Date(NOW)]);
    expect(await shop.expire("a", 2)).toEqual(ids.slice(2));
    await batch.end("commit");
    expect(await shop.statuses(ids)).toEqual(ids.map(() => "expired"));
  });
});
