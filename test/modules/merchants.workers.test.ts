import { describe, expect, test } from "vitest";
import { nextOnGrid } from "../../src/modules/merchants/grid.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { poll } from "../../src/modules/merchants/poll.ts";
import { createRig, type Rig } from "./rig.ts";

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** A rig whose accounts answer as they are told, and which of them were polled. */
async function withAccounts(
  answer: (host: string) => Response | Promise<Response> = () => new Response("{}"),
  options: Parameters<typeof createRig>[2] = {},
): Promise<Rig & { polled: string[] }> {
  const polled: string[] = [];
  const rig = await createRig(
    merchants,
    (request) => {
      const { hostname } = new URL(request.url);
      polled.push(hostname);
      return answer(hostname);
    },
    options,
  );
  return Object.assign(rig, { polled });
}

const account = (id: string, everySeconds = 60, url = `https://${id}.example/`) => ({ id, url, everySeconds });
// biome-ignore lint/suspicious/noExplicitAny: a test says what it expects
const add = (rig: Rig, ...accounts: object[]): Promise<any> => rig.result("merchants.add", { accounts });
// biome-ignore lint/suspicious/noExplicitAny: as above
const list = async (rig: Rig): Promise<any[]> => (await rig.result("merchants.list", {})).items;
const dueTimes = async (rig: Rig) =>
  (await rig.db.prepare("SELECT k, due_at AS due FROM items ORDER BY k").all<{ k: string; due: number }>()).results;

/** Drains every `step` until `ms` have passed. */
async function pass(rig: Rig, ms: number, step: number): Promise<void> {
  for (let passed = 0; passed < ms; passed += step) {
    rig.wait(step);
    await rig.drain(poll);
  }
}

describe("the grid", () => {
  test.each([
    [0, 0, 60],
    [0, 59, 60],
    [0, 60, 120],
    [0, 3_601, 3_660],
    [7, 7, 67],
    [7, 66, 67],
    [100, 7, 100],
  ])("from %i at %i goes on at %i: strictly later, and never twice for what was missed", (from, now, next) => {
    expect(nextOnGrid(from, 60, now)).toBe(next);
  });
});

describe("a poller", () => {
  test("polls when it is added, then on the account's own grid for ever", async () => {
    const rig = await withAccounts();
    const start = rig.now();
    await add(rig, account("a", 60));
    rig.wait(2 * SECOND);
    await rig.drain(poll);
    expect(await dueTimes(rig)).toEqual([{ k: "a", due: start + MINUTE }]);
    rig.wait(MINUTE);
    await rig.drain(poll);
    expect(await dueTimes(rig)).toEqual([{ k: "a", due: start + 2 * MINUTE }]);
    expect(await list(rig)).toMatchObject([
      {
        id: "a",
        lastStatus: 200,
        lastError: null,
        polls: 2,
        failures: 0,
        lastPollAt: new Date(rig.now()).toISOString(),
      },
    ]);
  });

  test("that missed an hour polls once, and is back on its grid", async () => {
    const rig = await withAccounts();
    const start = rig.now();
    await add(rig, account("a", 60));
    await rig.drain(poll);
    rig.wait(HOUR + 10 * SECOND);
    await rig.drain(poll);
    await rig.drain(poll);
    expect(rig.polled).toEqual(["a.example", "a.example"]);
    expect(await dueTimes(rig)).toEqual([{ k: "a", due: start + HOUR + MINUTE }]);
  });

  test("that fails backs off alone, to an hour at most, never dies, and is back on its grid when it succeeds", async () => {
    let up = false;
    const rig = await withAccounts((host) => new Response("", { status: host === "bad.example" && !up ? 500 : 200 }));
    const start = rig.now();
    await add(rig, account("bad", 600), account("good", 600));
    await rig.drain(poll);
    await pass(rig, 40 * HOUR, 10 * MINUTE);
    const polls = (host: string) => rig.polled.filter((each) => each === host).length;
    expect(polls("good.example")).toBe(241);
    // Seven growing waits, then an hour each at the most; the jitter makes some of them shorter.
    expect(polls("bad.example")).toBeGreaterThan(40);
    expect(polls("bad.example")).toBeLessThan(60);
    const [bad] = await list(rig);
    expect(bad).toMatchObject({ id: "bad", lastStatus: 500, lastError: "answered 500" });
    expect(bad.polls).toBe(bad.failures);

    up = true;
    await pass(rig, 2 * HOUR, 10 * MINUTE);
    const [{ due } = { due: 0 }] = await dueTimes(rig);
    expect((due - start) % (600 * SECOND)).toBe(0);
    expect(await list(rig)).toMatchObject([{ id: "bad", lastStatus: 200, lastError: null }, { id: "good" }]);
  });

  test.each([
    ["an error status", () => new Response("", { status: 404 }), 404, "answered 404"],
    [
      "a redirect, which is not followed",
      () => Response.redirect("https://elsewhere.example/", 302),
      302,
      "answered 302",
    ],
    ["a body over 64 KiB", () => new Response("x".repeat(65_537)), 200, "the body is over 65536 bytes"],
    [
      "no answer",
      () => {
        throw new TypeError("refused\0");
      },
      null,
      "TypeError: refused\uFFFD",
    ],
  ])("counts %s as a failure and says so", async (_, answer, lastStatus, lastError) => {
    const rig = await withAccounts(answer);
    await add(rig, account("a"));
    await rig.drain(poll);
    expect(rig.polled).toEqual(["a.example"]);
    expect(await list(rig)).toMatchObject([{ lastStatus, lastError, polls: 1, failures: 1 }]);
  });

  test("heeds Retry-After", async () => {
    const rig = await withAccounts(() => new Response("", { status: 503, headers: { "retry-after": "7200" } }));
    await add(rig, account("a"));
    await rig.drain(poll);
    const [{ due } = { due: 0 }] = await dueTimes(rig);
    expect(due).toBe(rig.now() + 2 * HOUR);
  });

  test("takes a body of exactly 64 KiB", async () => {
    const rig = await withAccounts(() => new Response("x".repeat(65_536)));
    await add(rig, account("a"));
    await rig.drain(poll);
    expect(await list(rig)).toMatchObject([{ lastError: null, failures: 0 }]);
  });

  test("of a batch of 100 costs nothing to read, and one statement to settle and one to record", async () => {
    const rig = await withAccounts(undefined, { path: "queue" });
    await add(rig, ...Array.from({ length: 100 }, (_, n) => account(`a${n}`, 3_600)));
    expect(await rig.consume()).toBe(100);
    // The begin, the settle, the record.
    expect(rig.used()).toMatchObject({ queries: 3, calls: 2, subrequests: 100 });
    expect(await rig.result("merchants.audit", {})).toEqual({
      since: new Date(rig.now() - 24 * HOUR).toISOString(),
      accounts: 100,
      succeeded: 100,
      failed: 0,
      failing: 0,
      neverPolled: 0,
      polls: 100,
      failures: 0,
      capped: false,
      worst: [],
    });
  });

  test("is audited: what the last polls since an instant found, and the ten accounts that failed most", async () => {
    const rig = await withAccounts((host) => new Response("", { status: host.startsWith("good") ? 200 : 503 }));
    const bad = Array.from({ length: 12 }, (_, n) => `bad${n}`);
    await add(rig, account("good"), ...bad.map((id) => account(id)));
    await rig.drain(poll);
    await rig.db.prepare("UPDATE merchant_accounts SET polls = 100, failures = 90 WHERE id = 'bad7'").run();
    await rig.db
      .prepare("UPDATE merchant_accounts SET last_poll_at = ?1 WHERE id = 'bad3'")
      .bind(rig.now() - HOUR)
      .run();
    await add(rig, account("new"));
    const since = new Date(rig.now()).toISOString();
    const { worst, ...counts } = await rig.result("merchants.audit", { since });
    expect(counts).toEqual({
      since,
      accounts: 14,
      succeeded: 1,
      failed: 11,
      failing: 12,
      neverPolled: 1,
      polls: 112,
      failures: 101,
      capped: false,
    });
    expect(worst).toHaveLength(10);
    expect(worst[0]).toEqual({
      ...account("bad7"),
      lastPollAt: since,
      lastStatus: 503,
      lastError: "answered 503",
      polls: 100,
      failures: 90,
    });
    expect(worst.map(({ id }: { id: string }) => id)).not.toContain("bad3");
    expect(await rig.result("merchants.audit", {})).toMatchObject({ failed: 12 });
    expect(await rig.run("merchants.audit", { since: 5 })).toMatchObject({ code: "bad_arguments" });
  });
});

describe("adding", () => {
  test("again changes nothing and polls nobody twice", async () => {
    const rig = await withAccounts();
    expect(await add(rig, account("a"), account("b"))).toEqual({ added: 2, updated: 0, unchanged: 0 });
    await rig.drain(poll);
    expect(await add(rig, account("a"), account("b"))).toEqual({ added: 0, updated: 0, unchanged: 2 });
    await rig.drain(poll);
    expect(rig.polled.toSorted()).toEqual(["a.example", "b.example"]);
    expect(await dueTimes(rig)).toHaveLength(2);
    expect(await list(rig)).toMatchObject([{ polls: 1 }, { polls: 1 }]);
  });

  test("again with another URL or period takes effect at once, with one poller still", async () => {
    const rig = await withAccounts();
    await add(rig, account("a", 86_400));
    await rig.drain(poll);
    rig.wait(HOUR);
    expect(await add(rig, account("a", 60, "https://new.example/"))).toEqual({ added: 0, updated: 1, unchanged: 0 });
    await pass(rig, 3 * MINUTE, MINUTE);
    expect(rig.polled).toEqual(["a.example", "new.example", "new.example", "new.example"]);
    await pass(rig, 25 * HOUR, HOUR);
    expect(rig.polled.filter((host) => host === "a.example")).toHaveLength(1);
    expect(await list(rig)).toMatchObject([{ url: "https://new.example/", everySeconds: 60, polls: 29 }]);
  });

  test("again gives an account back its poller, should it have lost it", async () => {
    const rig = await withAccounts();
    await add(rig, account("a"));
    await rig.db.batch([rig.db.prepare("DELETE FROM items"), rig.db.prepare("DELETE FROM item_keys")]);
    expect(await add(rig, account("a"))).toEqual({ added: 0, updated: 0, unchanged: 1 });
    await rig.drain(poll);
    expect(rig.polled).toEqual(["a.example"]);
  });

  test("the same account twice at the same time makes one poller", async () => {
    const rig = await withAccounts();
    await Promise.all([add(rig, account("a")), add(rig, account("a"))]);
    await rig.drain(poll);
    expect(rig.polled).toEqual(["a.example"]);
    await pass(rig, MINUTE, MINUTE);
    expect(rig.polled).toHaveLength(2);
  });

  test("a thousand accounts with long URLs is one call", async () => {
    const rig = await withAccounts();
    const accounts = Array.from({ length: 1_000 }, (_, n) =>
      account(`a${n}`, 60, `https://a.example/${"x".repeat(2_000)}`),
    );
    expect(await add(rig, ...accounts)).toEqual({ added: 1_000, updated: 0, unchanged: 0 });
    expect(await dueTimes(rig)).toHaveLength(1_000);
  });

  test.each([
    ["a destination that is not public", [account("a"), account("b", 60, "https://10.0.0.1/")], "destination_refused"],
    ["http", [account("a", 60, "http://a.example/")], "destination_refused"],
    ["one account twice", [account("a"), account("a", 61)], "bad_arguments"],
    ["no account", [], "bad_arguments"],
    ["a period of nothing", [account("a", 0)], "bad_arguments"],
    ["a period in fractions", [account("a", 1.5)], "bad_arguments"],
    ["an id with a space", [account("a b", 60, "https://a.example/")], "bad_arguments"],
    ["more than a thousand", Array.from({ length: 1_001 }, (_, n) => account(`a${n}`)), "bad_arguments"],
  ])("refuses %s, and writes nothing of the call", async (_, accounts, code) => {
    const rig = await withAccounts();
    expect(await rig.run("merchants.add", { accounts })).toMatchObject({ ok: false, code });
    expect(await list(rig)).toEqual([]);
    expect(await dueTimes(rig)).toEqual([]);
  });
});

test("accounts are listed whole, page by page, in the order of their ids", async () => {
  const rig = await withAccounts();
  const ids = Array.from({ length: 25 }, (_, n) => `a${String(n).padStart(2, "0")}`);
  await add(rig, ...ids.map((id) => account(id)));
  const found: string[] = [];
  let cursor: string | null = "";
  while (cursor !== null) {
    const page: { items: { id: string }[]; nextCursor: string | null } = await rig.result("merchants.list", {
      cursor,
      limit: 10,
    });
    found.push(...page.items.map(({ id }) => id));
    cursor = page.nextCursor;
  }
  expect(found).toEqual(ids);
});
