import { randomUUID } from "node:crypto";
import { afterEach, describe, expect, test } from "vitest";
import { expireOverRpc, RPC_MAX_ROWS } from "../../src/checkout/rpc.ts";
import { BAD_ANSWERS, sendJson, serve, type TestServer } from "./servers.node.ts";

const KEY = "sb_secret_5up3r";
const NOW = Date.UTC(2026, 10, 30, 12, 0, 0, 5);
const servers: TestServer[] = [];

const up = async (...args: Parameters<typeof serve>) => {
  const server = await serve(...args);
  servers.push(server);
  return server;
};
afterEach(() => Promise.all(servers.splice(0).map((server) => server.close())));

const ask = (url: string, { limit = 1_000, timeoutMs = 5_000 } = {}) =>
  expireOverRpc(fetch, { url, serviceKey: KEY }, { now: NOW, limit, key: "job-1-2-b1" }, timeoutMs);

const row = () => ({ checkout_id: randomUUID(), ws_id: randomUUID() });
const A = "0b7f1c9e-1111-4222-8333-0123456789ab";
const B = "1b7f1c9e-1111-4222-8333-0123456789ab";

describe("a call", () => {
  test("is one POST with the key in apikey, and nothing else that tells it", async () => {
    const server = await up((response) => sendJson(response, []));
    expect(await ask(`${server.url}/`, { limit: 7 })).toEqual({ ok: true, rows: [] });
    expect(server.asked).toHaveLength(1);
    const [{ method, path, headers, body }] = server.asked as [(typeof server.asked)[0]];
    expect([method, path]).toEqual(["POST", "/rest/v1/rpc/expire_inventory_checkout_sessions"]);
    expect(JSON.parse(body)).toEqual({ p_now: "2026-11-30T12:00:00.005Z", p_limit: 7, p_key: "job-1-2-b1" });
    expect(headers).toMatchObject({
      apikey: KEY,
      "content-type": "application/json",
      "user-agent": "duework-checkout",
    });
    expect(headers.authorization).toBeUndefined();
  });

  test("takes 1,000 rows, in their order, with ids in lower case", async () => {
    const rows = Array.from({ length: RPC_MAX_ROWS }, row);
    const server = await up((response) => sendJson(response, rows));
    const answer = await ask(server.url);
    expect(answer).toEqual({
      ok: true,
      rows: rows.map(({ checkout_id, ws_id }) => ({ checkoutId: checkout_id, workspaceId: ws_id })),
    });
    const upper = await up((response) => sendJson(response, [{ checkout_id: A.toUpperCase(), ws_id: B }]));
    expect(await ask(upper.url)).toEqual({ ok: true, rows: [{ checkoutId: A, workspaceId: B }] });
  });

  test.each([0, 1_001, 1.5, Number.NaN])("for %s rows is not made", async (limit) => {
    await expect(ask("http://127.0.0.1:1", { limit })).rejects.toThrow(RangeError);
  });

  test.each([0, -5, Number.NaN])("with %s ms left is not made", async (timeoutMs) => {
    const server = await up((response) => sendJson(response, []));
    expect(await ask(server.url, { timeoutMs })).toMatchObject({ ok: false, kind: "timed_out" });
    expect(server.asked).toEqual([]);
  });
});

describe("an answer that never comes whole", () => {
  test.each(["hang", "drip"] as const)("%s: given up at the limit, once", async (how) => {
    const server = await up(BAD_ANSWERS[how]);
    const started = performance.now();
    const answer = await ask(server.url, { timeoutMs: 150 });
    expect(performance.now() - started).toBeLessThan(2_000);
    expect(answer).toMatchObject({ ok: false, kind: "timed_out", detail: expect.stringContaining("150 ms") });
    expect(server.asked).toHaveLength(1);
  });

  test.each(["cut", "hangUp"] as const)("%s: unreachable", async (how) => {
    const server = await up(BAD_ANSWERS[how]);
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "unreachable" });
  });

  test("nobody listens: unreachable", async () => {
    const server = await serve(() => {});
    await server.close();
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "unreachable" });
  });
});

describe("a redirect", () => {
  test.each([301, 302, 303, 307, 308])("%i is not followed, and the key goes nowhere", async (status) => {
    const elsewhere = await up((response) => sendJson(response, []));
    const server = await up((response) => response.writeHead(status, { location: elsewhere.url }).end());
    expect(await ask(server.url)).toEqual({
      ok: false,
      kind: "redirected",
      detail: `answered ${status}: redirects are not followed`,
    });
    expect(elsewhere.asked).toEqual([]);
  });
});

describe("a refusal", () => {
  test.each([
    [500, "no body's business", "answered 500"],
    [403, { code: "42501", message: `permission denied for ${KEY}` }, "answered 403 (42501)"],
    [300, {}, "answered 300: redirects are not followed"],
    [404, { code: KEY }, "answered 404 ([secret])"],
    [400, { code: { nested: 1 } }, "answered 400"],
    [401, null, "answered 401"],
  ])("%i says its status and its code", async (status, body, detail) => {
    const server = await up((response) => sendJson(response, body, status));
    expect(await ask(server.url)).toMatchObject({ ok: false, detail });
  });

  test("never tells the key, though the network's own error does", async () => {
    const fails = () => Promise.reject(new TypeError(`bad header: ${KEY}\n${"x".repeat(5_000)}`));
    const answer = await expireOverRpc(
      fails,
      { url: "https://a.example", serviceKey: KEY },
      { now: NOW, limit: 1, key: "a" },
      1_000,
    );
    expect(answer).toMatchObject({ kind: "unreachable", detail: expect.stringContaining("bad header: [secret] xxx") });
    expect((answer as { detail: string }).detail).toHaveLength(200);
  });
});

describe("an answer of the wrong shape is taken as none", () => {
  test.each([
    ["HTML", BAD_ANSWERS.html],
    ["not UTF-8", BAD_ANSWERS.latin],
  ])("%s", async (_, answer) => {
    const server = await up(answer);
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "malformed" });
  });

  test("10 MB", async () => {
    const server = await up(BAD_ANSWERS.huge);
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "too_large" });
  });

  test.each<[string, unknown]>([
    ["null", null],
    ["a number", 3],
    ["an object", { rows: [] }],
    ["a list of ids", [A]],
    ["a row without its workspace", [{ checkout_id: A }]],
    ["a row with more", [{ checkout_id: A, ws_id: B, status: "expired" }]],
    ["ids that are not UUIDs", [{ checkout_id: "1", ws_id: B }]],
    ["a null id", [{ checkout_id: A, ws_id: null }]],
    ["one good row and one bad", [{ checkout_id: A, ws_id: B }, {}]],
    [
      "a checkout twice",
      [
        { checkout_id: A, ws_id: B },
        { checkout_id: A.toUpperCase(), ws_id: A },
      ],
    ],
    ["more rows than a batch has", Array.from({ length: 1_001 }, row)],
  ])("%s", async (_, value) => {
    const server = await up((response) => sendJson(response, value));
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "malformed" });
  });

  test("more rows than were asked for", async () => {
    const server = await up((response) => sendJson(response, [row(), row(), row()]));
    expect(await ask(server.url, { limit: 2 })).toEqual({
      ok: false,
      kind: "malformed",
      detail: "3 rows, but 2 were asked for",
    });
  });
});
