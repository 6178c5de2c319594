import { Hono } from "hono";
import { describe, expect, test } from "vitest";
import { createStorefrontApp, type StorefrontOptions } from "../../src/checkout/storefront-app.ts";
import { revalidate } from "../../src/checkout/storefront-client.ts";

const TOKEN = "storefront-t0ken";
const A = "0b7f1c9e-1111-4222-8333-0123456789ab";
const B = "1b7f1c9e-1111-4222-8333-0123456789ab";
const C = "2b7f1c9e-1111-4222-8333-0123456789ab";

/** An app, the workspaces it has dropped, and a way to post to it. */
function storefront(options: Partial<StorefrontOptions> = {}) {
  const dropped: string[] = [];
  const invalidate = (wsId: string) => {
    dropped.push(wsId);
  };
  const app = createStorefrontApp({ token: TOKEN, invalidate, ...options });
  const post = async (body: BodyInit, headers: Record<string, string> = {}) => {
    const init = { method: "POST", body, headers: { ...BEARER, "content-type": "application/json", ...headers } };
    const response = await app.fetch(new Request("https://shop.example/", init));
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  };
  return { app, dropped, post, ask: (workspaceIds: unknown) => post(JSON.stringify({ workspaceIds })) };
}

const BEARER = { authorization: `Bearer ${TOKEN}` };

describe("a request", () => {
  test("is answered with a receipt each, in the order asked, each once", async () => {
    const { ask, dropped } = storefront();
    expect(await ask([C, A, C.toUpperCase(), B])).toEqual({
      status: 200,
      body: {
        results: [
          { wsId: C, ok: true },
          { wsId: A, ok: true },
          { wsId: B, ok: true },
        ],
      },
    });
    expect(dropped).toEqual([C, A, B]);
  });

  test("one workspace that fails, at once or later, is told beside the others", async () => {
    const { ask } = storefront({
      invalidate: (wsId) => {
        if (wsId === A) throw new Error(`no tag\0 for ${TOKEN}`);
        return wsId === B ? Promise.reject(new TypeError("store down")) : undefined;
      },
    });
    expect((await ask([A, B, C])).body).toEqual({
      results: [
        { wsId: A, ok: false, error: "Error: no tag\uFFFD for [secret]" },
        { wsId: B, ok: false, error: "TypeError: store down" },
        { wsId: C, ok: true },
      ],
    });
  });

  test("whatever is thrown, the reason is a short text", async () => {
    const thrown = [undefined, "", "x".repeat(999)];
    const { ask } = storefront({
      invalidate: () => {
        throw thrown.shift();
      },
    });
    const { results } = (await ask([A, B, C])).body as { results: { error: string }[] };
    expect(results.map(({ error }) => error.length)).toEqual([9, 24, 200]);
  });

  test("a workspace that hangs costs the others nothing", async () => {
    const invalidate = (wsId: string) => (wsId === A ? new Promise<void>(() => {}) : undefined);
    const { ask } = storefront({ invalidate, invalidateMs: 50 });
    expect((await ask([A, B])).body).toEqual({
      results: [
        { wsId: A, ok: false, error: "not done within 50 ms" },
        { wsId: B, ok: true },
      ],
    });
  });

  test("of 100 workspaces fits; of 101, or none, is refused", async () => {
    const { ask, dropped } = storefront();
    const many = (count: number) => Array.from({ length: count }, () => crypto.randomUUID());
    expect(await ask(many(100))).toMatchObject({ status: 200 });
    expect(await ask(many(101))).toMatchObject({ status: 400, body: { detail: "at most 100 workspaces" } });
    expect(await ask([])).toMatchObject({ status: 400, body: { detail: "at least one workspace" } });
    expect(dropped).toHaveLength(100);
  });
});

describe("who may ask", () => {
  test.each([
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    `Bearer ${TOKEN}x`,
    `Bearer ${TOKEN.toUpperCase()}`,
    `Basic ${TOKEN}`,
    TOKEN,
  ])("%j may not: 401, and nothing is read or dropped", async (authorization) => {
    const { post, dropped } = storefront();
    expect(await post("not JSON", { authorization })).toMatchObject({ status: 401, body: { code: "unauthorized" } });
    expect(dropped).toEqual([]);
  });

  test.each(["", "two words", "tab\t", "é"])("%j cannot be the token", (token) => {
    expect(() => storefront({ token })).toThrow("printable ASCII");
  });
});

describe("a body that is refused drops nothing", () => {
  test.each<[string, string]>([
    ["nothing", ""],
    ["not JSON", "{"],
    ["a list", `["${A}"]`],
    ["no list", `{"workspaceIds":"${A}"}`],
    ["something else too", `{"workspaceIds":["${A}"],"all":true}`],
    ["an id that is no UUID", `{"workspaceIds":["${A}","main"]}`],
    ["an id that is no text", `{"workspaceIds":["${A}",7]}`],
  ])("%s: 400", async (_, body) => {
    const { post, dropped } = storefront();
    expect(await post(body)).toMatchObject({ status: 400 });
    expect(dropped).toEqual([]);
  });

  test("not UTF-8: 400", async () => {
    const { post } = storefront();
    expect(await post(new Uint8Array([0x22, 0xe9, 0x22]))).toMatchObject({ status: 400 });
  });

  test.each(["text/plain", "application/jsonp", "multipart/form-data"])("%s: 400", async (type) => {
    const { post } = storefront();
    const body = JSON.stringify({ workspaceIds: [A] });
    expect(await post(body, { "content-type": type })).toMatchObject({ status: 400, body: { code: "not_json" } });
    expect(await post(body, { "content-type": "application/json; charset=utf-8" })).toMatchObject({ status: 200 });
  });

  test("8 KiB fit, a byte more is 413, also in pieces and without a length", async () => {
    const { post } = storefront();
    const body = (bytes: number) => JSON.stringify({ workspaceIds: [A] }).padEnd(bytes);
    expect(await post(body(8_192))).toMatchObject({ status: 200 });
    expect(await post(body(8_193))).toMatchObject({ status: 413 });
    const pieces = new Response(body(100_000)).body;
    expect(await post(pieces as ReadableStream)).toMatchObject({ status: 413 });
  });

  test("a drip is given up in the time that any body has: 408, and the rest is not read", async () => {
    const { post } = storefront({ readMs: 60 });
    let cancelled = false;
    let timer: ReturnType<typeof setInterval>;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        timer = setInterval(() => controller.enqueue(new Uint8Array([0x20])), 10);
      },
      cancel: () => {
        cancelled = true;
        clearInterval(timer);
      },
    });
    expect(await post(body)).toMatchObject({ status: 408, body: { code: "too_slow" } });
    expect(cancelled).toBe(true);
  });

  test("one that breaks off: 400", async () => {
    const { post } = storefront();
    const body = new ReadableStream<Uint8Array>({ pull: (controller) => controller.error(new Error("reset")) });
    expect(await post(body)).toMatchObject({ status: 400 });
  });

  test("another method: 405", async () => {
    const { app } = storefront();
    const response = await app.fetch(new Request("https://shop.example/", { headers: BEARER }));
    expect([response.status, response.headers.get("allow")]).toEqual([405, "POST"]);
  });
});

describe("mounted", () => {
  test("in another app, it answers what our client asks", async () => {
    const { app, dropped } = storefront();
    const shop = new Hono().route("/hooks/revalidate", app);
    const fetch = async (input: string | URL | Request, init?: RequestInit) => shop.fetch(new Request(input, init));
    const config = { url: "https://shop.example/hooks/revalidate", token: TOKEN };
    expect(await revalidate(fetch, config, [A, B], 5_000)).toEqual({ ok: true, confirmed: [A, B], unconfirmed: [] });
    expect(await revalidate(fetch, { ...config, token: "wrong" }, [A], 5_000)).toEqual({
      ok: false,
      kind: "refused",
      detail: "answered 401 (unauthorized)",
    });
    expect(dropped).toEqual([A, B]);
  });
});
