import { randomUUID } from "node:crypto";
import { afterEach, describe, expect, test } from "vitest";
import { revalidate } from "../../src/checkout/storefront-client.ts";
import { BAD_ANSWERS, sendJson, serve, type TestServer } from "./servers.node.ts";

const TOKEN = "storefront-t0ken";
const servers: TestServer[] = [];

const up = async (...args: Parameters<typeof serve>) => {
  const server = await serve(...args);
  servers.push(server);
  return server;
};
afterEach(() => Promise.all(servers.splice(0).map((server) => server.close())));

const ids = (count: number): string[] => Array.from({ length: count }, () => randomUUID());
const ask = (url: string, workspaceIds = ids(2), timeoutMs = 5_000) =>
  revalidate(fetch, { url, token: TOKEN }, workspaceIds, timeoutMs);

describe("asking the storefront", () => {
  test("is one POST of the ids, with the token as bearer", async () => {
    const asked = ids(100);
    const server = await up((response) => sendJson(response, { results: asked.map((wsId) => ({ wsId, ok: true })) }));
    expect(await ask(`${server.url}/revalidate`, asked)).toEqual({ ok: true, confirmed: asked, unconfirmed: [] });
    expect(server.asked).toMatchObject([
      {
        method: "POST",
        path: "/revalidate",
        headers: {
          authorization: `Bearer ${TOKEN}`,
          "content-type": "application/json",
          "user-agent": "duework-checkout",
        },
        body: JSON.stringify({ workspaceIds: asked }),
      },
    ]);
  });

  test("confirms some and tells why not the others, without the token", async () => {
    const asked = ids(3);
    const [a, b, c] = asked as [string, string, string];
    const server = await up((response) =>
      sendJson(response, {
        results: [
          { wsId: a, ok: true },
          { wsId: b, ok: false, error: `401 for ${TOKEN}` },
          { wsId: randomUUID(), ok: true },
        ],
      }),
    );
    expect(await ask(server.url, asked)).toEqual({
      ok: true,
      confirmed: [a],
      unconfirmed: [
        { wsId: b, error: "401 for [secret]" },
        { wsId: c, error: "the answer has no receipt for it" },
      ],
    });
  });

  test("100 reasons of the longest fit", async () => {
    const asked = ids(100);
    const results = asked.map((wsId) => ({ wsId, ok: false, error: "\u{1F9E8}".repeat(100) }));
    const server = await up((response) => sendJson(response, { results }));
    expect(await ask(server.url, asked)).toMatchObject({ ok: true, confirmed: [] });
  });

  test("nobody, 101 at once, or more than 8 KiB is not asked", async () => {
    for (const wrong of [[], ids(101), ["x".repeat(9_000)]]) {
      await expect(ask("http://127.0.0.1:1", wrong)).rejects.toThrow(RangeError);
    }
  });
});

describe("a storefront that misbehaves confirms nobody", () => {
  test.each([
    ["hang", "timed_out"],
    ["drip", "timed_out"],
    ["cut", "unreachable"],
    ["hangUp", "unreachable"],
    ["html", "malformed"],
    ["latin", "malformed"],
    ["huge", "too_large"],
  ] as const)("%s: %s", async (how, kind) => {
    const server = await up(BAD_ANSWERS[how]);
    const slow = kind === "timed_out";
    const started = performance.now();
    expect(await ask(server.url, ids(2), slow ? 150 : 5_000)).toMatchObject({ ok: false, kind });
    if (slow) expect(performance.now() - started).toBeLessThan(2_000);
    expect(server.asked).toHaveLength(1);
  });

  test.each([302, 307, 308])("%i: the token is not sent on", async (status) => {
    const elsewhere = await up((response) => sendJson(response, { results: [] }));
    const server = await up((response) => response.writeHead(status, { location: elsewhere.url }).end());
    expect(await ask(server.url)).toMatchObject({ ok: false, kind: "redirected" });
    expect(elsewhere.asked).toEqual([]);
  });

  test.each([400, 401, 408, 413, 500, 503])("%i: refused", async (status) => {
    const server = await up((response) => sendJson(response, { code: "unauthorized" }, status));
    expect(await ask(server.url)).toEqual({ ok: false, kind: "refused", detail: `answered ${status} (unauthorized)` });
  });

  test.each([{ ok: true }, { revalidated: 2 }, [], null, "ok"])("%j: no word about anyone", async (value) => {
    const server = await up((response) => sendJson(response, value));
    expect(await ask(server.url)).toEqual({
      ok: false,
      kind: "malformed",
      detail: "the answer has no list of receipts",
    });
  });
});
