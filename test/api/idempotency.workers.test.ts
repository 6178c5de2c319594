import { beforeEach, describe, expect, test } from "vitest";
import * as v from "valibot";
import { ANSWER_MAX, COMMAND_LEASE_MS, KEEP_KEYS_MS, KEYS_MAX } from "../../src/api/idempotency.ts";
import { MINUTE } from "../../src/core/time.ts";
import { deploy } from "../../src/create-worker.ts";
import { command, defineModule, refuse } from "../../src/index.ts";
import { platformPorts } from "../../src/platform.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
const TOKENS = JSON.stringify([
  { subject: "ann", sha256: await sha256("ann"), grants: { actions: "all" } },
  { subject: "bob", sha256: await sha256("bob"), grants: { actions: "all" } },
]);

/** How often a command ran. */
let runs: number;
let clock: number;
let held: Promise<void> | null;
beforeEach(async () => {
  await DB.prepare("DELETE FROM idempotency_keys").run();
  [runs, clock, held] = [0, Date.now(), null];
});

const args = v.looseObject({});
const shop = defineModule("shop", {
  commands: [
    ...(["write", "exec", "read"] as const).map((effect) =>
      command({
        name: `shop.${effect}`,
        effect,
        grant: "shop:write",
        help: "Count.",
        args: v.looseObject({ fail: v.optional(v.string()), pad: v.optional(v.number(), 0) }),
        async handle({ fail, pad }) {
          runs += 1;
          const run = runs;
          await held;
          if (fail === "refuse") return refuse("shop_closed", "at", `refused in run ${run}`);
          if (fail === "throw") throw new Error("it broke");
          return { ok: true, result: { run, pad: "x".repeat(pad) } };
        },
      }),
    ),
    command({
      name: "shop.secret",
      effect: "write",
      grant: "shop:write",
      help: "Make a secret.",
      secret: true,
      args,
      async handle() {
        runs += 1;
        return { ok: true, result: { secret: `hunter${runs}` } };
      },
    }),
  ],
});

function serve(db: D1Database = DB) {
  const ports = { ...platformPorts, clock: () => clock, log: () => {} };
  const { api } = deploy(
    { modules: [shop], catalog: [] },
    { DB: db, ITEMS: new HeldQueue(), DUEWORK_TOKENS: TOKENS },
    ports,
  );
  return async (name: string, key: string | null, body: unknown = {}, token = "ann") => {
    const headers: Record<string, string> = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    if (key !== null) headers["idempotency-key"] = key;
    const init = { method: "POST", headers, body: JSON.stringify(body) };
    const response = await api.request(`https://duework.test/api/commands/shop.${name}`, init);
    const text = await response.text();
    return {
      status: response.status,
      type: response.headers.get("content-type"),
      text,
      json: JSON.parse(text) as { code?: string; result?: { run: number } },
    };
  };
}

const stored = async () =>
  (await DB.prepare("SELECT * FROM idempotency_keys ORDER BY id").all<Record<string, unknown>>()).results;

describe("Idempotency-Key", () => {
  test.for(["write", "exec"])(
    "the same key and body of a %s command runs it once, and answers the same",
    async (name) => {
      const call = serve();
      const first = await call(name, "k");
      expect(first).toMatchObject({ status: 200, json: { result: { run: 1 } } });
      expect(await call(name, "k")).toEqual(first);
      expect(await call(name, null)).toMatchObject({ json: { result: { run: 2 } } });
      expect(runs).toBe(2);
    },
  );

  test("a refusal is answered again as it was", async () => {
    const call = serve();
    const first = await call("write", "k", { fail: "refuse" });
    expect(first).toMatchObject({ status: 400, json: { code: "shop_closed", detail: "refused in run 1" } });
    expect(first.type).toMatch(/^application\/problem\+json/);
    expect(await call("write", "k", { fail: "refuse" })).toEqual(first);
    expect(runs).toBe(1);
  });

  test("another body, or another command, is a conflict; another actor's key is another key", async () => {
    const call = serve();
    await call("write", "k", { a: 1 });
    for (const again of [call("write", "k", { a: 2 }), call("exec", "k", { a: 1 })]) {
      expect(await again).toMatchObject({ status: 409, json: { code: "idempotency_conflict" } });
    }
    expect(runs).toBe(1);
    expect(await call("write", "k", { a: 2 }, "bob")).toMatchObject({ status: 200 });
  });

  test("ten at once: one runs, the others are told that it is being done", async () => {
    const call = serve();
    const go = Promise.withResolvers<void>();
    held = go.promise;
    const all = Array.from({ length: 10 }, () => call("write", "k"));
    const answers = Promise.all(all);
    await expect.poll(() => runs).toBe(1);
    expect(await call("write", "k")).toMatchObject({ status: 409, json: { code: "idempotency_in_progress" } });
    go.resolve();
    const statuses = (await answers).map(({ status }) => status).sort();
    expect(statuses).toEqual([200, ...Array(9).fill(409)]);
    expect(runs).toBe(1);
    expect((await call("write", "k")).status).toBe(200);
  });

  test("a crash before the answer was kept: in progress, then its outcome is not known, and it never runs again", async () => {
    // The statement that keeps the answer never comes to pass, as if the isolate had died.
    const dying = new Proxy(DB, {
      get(target, name) {
        if (name !== "prepare") return Reflect.get(target, name).bind(target);
        return (sql: string) => {
          if (/^\s*UPDATE idempotency_keys/.test(sql)) throw new Error("the isolate died");
          return target.prepare(sql);
        };
      },
    });
    expect((await serve(dying)("write", "k")).status).toBe(200);
    const call = serve();
    expect(await call("write", "k")).toMatchObject({ status: 409, json: { code: "idempotency_in_progress" } });
    clock += COMMAND_LEASE_MS;
    expect(await call("write", "k")).toMatchObject({ status: 409, json: { code: "idempotency_unknown" } });
    clock += KEEP_KEYS_MS / 2;
    expect(await call("write", "k")).toMatchObject({ status: 409, json: { code: "idempotency_unknown" } });
    expect(runs).toBe(1);
  });

  test("a command that throws: 500, and its outcome is not known at once", async () => {
    const call = serve();
    expect((await call("write", "k", { fail: "throw" })).status).toBe(500);
    expect(await call("write", "k", { fail: "throw" })).toMatchObject({ json: { code: "idempotency_unknown" } });
    expect(runs).toBe(1);
  });

  test("an answer with a secret is shown once, and stored nowhere", async () => {
    const call = serve();
    const first = await call("secret", "k");
    expect(first.text).toContain("hunter1");
    expect(await call("secret", "k")).toMatchObject({ status: 409, json: { code: "idempotency_secret" } });
    expect(runs).toBe(1);
    expect(JSON.stringify(await stored())).not.toContain("hunter");
  });

  test("an answer that is too large is not kept, and says so", async () => {
    const call = serve();
    const body = { pad: ANSWER_MAX };
    expect((await call("write", "k", body)).status).toBe(200);
    expect(await call("write", "k", body)).toMatchObject({ status: 409, json: { code: "idempotency_too_large" } });
    expect(runs).toBe(1);
    expect(JSON.stringify(await stored()).length).toBeLessThan(1_000);
  });

  test("a key lives for a day, is then anyone's again, and each new one tidies old ones", async () => {
    const call = serve();
    for (let n = 0; n < 30; n += 1) await call("write", `k${n}`);
    clock += KEEP_KEYS_MS - MINUTE;
    expect(await call("write", "k0")).toMatchObject({ json: { result: { run: 1 } } });
    expect(await stored()).toHaveLength(30);
    clock += MINUTE;
    expect(await call("write", "k29", { a: 2 })).toMatchObject({ json: { result: { run: 31 } } });
    expect(await stored()).toHaveLength(10);
    await call("write", "another");
    expect(await stored()).toHaveLength(2);
  });

  test("there are so many keys at most: then a command is refused before it runs", async () => {
    const call = serve();
    await call("write", "first");
    await DB.prepare(
      `INSERT INTO idempotency_keys (id, actor, key, command, body_sha256, claim, began_at, lease_until)
       SELECT id + ${KEYS_MAX} - 2, actor, 'last', command, body_sha256, claim, began_at, lease_until FROM idempotency_keys`,
    ).run();
    expect((await call("write", "fits")).status).toBe(200);
    expect(await call("write", "k")).toMatchObject({ status: 503, json: { code: "idempotency_full" } });
    expect((await call("write", "first")).status).toBe(200);
    expect(runs).toBe(2);
  });

  test("reads look at no key", async () => {
    const call = serve();
    expect(await call("read", "k")).toMatchObject({ json: { result: { run: 1 } } });
    expect(await call("read", "k")).toMatchObject({ json: { result: { run: 2 } } });
    expect(await stored()).toEqual([]);
  });

  test.for(["", "a b", "ä", "x".repeat(256)])("what is no key (%o) is refused, and nothing runs", async (key) => {
    const answer = await serve()("write", key);
    expect(answer).toMatchObject({ status: 400, json: { code: "bad_arguments", field: "Idempotency-Key" } });
    expect(runs).toBe(0);
  });
});
