import { createServer, request as open } from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createStorefrontApp } from "../../src/checkout/storefront-app.ts";
import { revalidate } from "../../src/checkout/storefront-client.ts";

const TOKEN = "storefront-t0ken";
const READ_MS = 200;
const A = "0b7f1c9e-1111-4222-8333-0123456789ab";

let dropped: string[] = [];
let url = "";
let close: () => Promise<void>;

/** The app under Node's own server, by plain requests and responses. */
beforeEach(async () => {
  dropped = [];
  const app = createStorefrontApp({
    token: TOKEN,
    readMs: READ_MS,
    invalidate: (wsId) => {
      dropped.push(wsId);
    },
  });
  const server = createServer(async (incoming, outgoing) => {
    const body = Readable.toWeb(incoming) as ReadableStream<Uint8Array>;
    const headers = new Headers(incoming.headers as Record<string, string>);
    const init: RequestInit & { duplex: "half" } = { method: "POST", headers, body, duplex: "half" };
    const response = await app.fetch(new Request("http://127.0.0.1/any/path", init));
    outgoing.writeHead(response.status, { "content-type": "application/json" }).end(await response.text());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(() => resolve()));
  };
});
afterEach(() => close());

/** Posts a body a piece at a time; the status, or that the connection was ended without one. */
function drip(piece: string, everyMs: number): Promise<{ status: number | null; ms: number }> {
  const started = performance.now();
  return new Promise((resolve) => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
    const request = open(url, { method: "POST", headers });
    const timer = setInterval(() => request.write(piece), everyMs);
    const end = (status: number | null) => {
      clearInterval(timer);
      resolve({ status, ms: performance.now() - started });
      request.destroy();
    };
    request.on("response", (response) => end(response.statusCode ?? null));
    request.on("error", () => end(null));
    request.flushHeaders();
  });
}

describe("under Node", () => {
  test("it answers what our client asks", async () => {
    expect(await revalidate(fetch, { url, token: TOKEN }, [A], 5_000)).toEqual({
      ok: true,
      confirmed: [A],
      unconfirmed: [],
    });
    expect(dropped).toEqual([A]);
  });

  test("a body that drips has the same time as any: 408", async () => {
    const { status, ms } = await drip(" ", 20);
    expect(status).toBe(408);
    expect(ms).toBeGreaterThanOrEqual(READ_MS - 10);
    expect(ms).toBeLessThan(2_000);
    expect(dropped).toEqual([]);
  });

  test("a body that never begins: 408", async () => {
    const { status, ms } = await drip(" ", 60_000);
    expect(status).toBe(408);
    expect(ms).toBeLessThan(2_000);
  });

  test("a body without an end is over at 8 KiB: 413", async () => {
    const { status } = await drip(" ".repeat(4_000), 5);
    expect(status).toBe(413);
    expect(dropped).toEqual([]);
  });
});
