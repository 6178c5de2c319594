import { describe, expect, test } from "vitest";
import { exchange } from "../../src/core/exchange.ts";
import type { Ports } from "../../src/core/ports.ts";

const URL_A = "https://a.example/";
const BOUNDS = { limitMs: 60, maxBytes: 1_000 };

/** The time it took, ms, and the answer or what was thrown. */
async function timed(fetch: Ports["fetch"], bounds: Parameters<typeof exchange>[3] = BOUNDS) {
  const started = performance.now();
  const answer = await exchange(fetch, URL_A, {}, bounds).catch((error: unknown) => error as Error);
  return { ms: performance.now() - started, answer };
}

const body = (pull: (controller: ReadableStreamDefaultController<Uint8Array>) => unknown, cancel = () => {}) =>
  new Response(new ReadableStream<Uint8Array>({ pull: (controller) => pull(controller) as Promise<void>, cancel }));

describe("an exchange", () => {
  test("answers status, headers and the whole body", async () => {
    const { answer } = await timed(async () => new Response("hello", { status: 418, headers: { "x-a": "1" } }));
    expect(answer).toMatchObject({ status: 418, body: new TextEncoder().encode("hello"), cut: null });
    expect((answer as { headers: Headers }).headers.get("x-a")).toBe("1");
  });

  test("asks that no redirect be followed, whatever the caller says", async () => {
    let redirect: string | undefined;
    const fetch: Ports["fetch"] = async (_, init) => {
      redirect = init?.redirect;
      return new Response(null, { status: 302 });
    };
    await exchange(fetch, URL_A, { redirect: "follow" }, BOUNDS);
    expect(redirect).toBe("manual");
  });

  test("that gets no answer ends at its limit, and the request is aborted", async () => {
    let aborted = false;
    const { ms, answer } = await timed((_, init) => {
      init?.signal?.addEventListener("abort", () => {
        aborted = true;
      });
      return new Promise<Response>(() => {});
    });
    expect(answer).toBeInstanceOf(Error);
    expect((answer as Error).message).toBe("no answer within 60 ms");
    expect(ms).toBeLessThan(1_000);
    expect(aborted).toBe(true);
  });

  test("that answers after its limit has its body dropped", async () => {
    const late = Promise.withResolvers<Response>();
    await timed(() => late.promise);
    const cancelled = Promise.withResolvers<void>();
    late.resolve(body(() => {}, cancelled.resolve));
    await cancelled.promise;
  });

  test("that fails throws what fetch threw", async () => {
    const { answer } = await timed(() => Promise.reject(new TypeError("refused")));
    expect(answer).toEqual(new TypeError("refused"));
  });

  test("is not held by a body that never ends: it stops at its bytes and cancels the rest", async () => {
    let cancelled = false;
    const { answer } = await timed(async () =>
      body(
        (controller) => controller.enqueue(new Uint8Array(300)),
        () => {
          cancelled = true;
        },
      ),
    );
    expect(answer).toMatchObject({ cut: "the body is over 1000 bytes" });
    expect((answer as { body: Uint8Array }).body).toHaveLength(1_000);
    expect(cancelled).toBe(true);
  });

  test("takes a body of exactly its bytes as whole", async () => {
    const { answer } = await timed(async () => new Response(new Uint8Array(1_000)));
    expect(answer).toMatchObject({ cut: null });
  });

  test.each([
    ["never begins", () => new Promise(() => {})],
    ["is all empty pieces", (controller: ReadableStreamDefaultController) => controller.enqueue(new Uint8Array())],
    [
      "drips",
      async (controller: ReadableStreamDefaultController) => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        controller.enqueue(new Uint8Array(1));
      },
    ],
  ])("is not held by a body that %s", async (_, pull) => {
    const { ms, answer } = await timed(async () => body(pull));
    expect(ms).toBeLessThan(1_000);
    expect(answer).toMatchObject({ status: 200 });
    expect((answer as { cut: string | null }).cut).not.toBeNull();
  });

  test("gives the body a limit of its own", async () => {
    const { ms, answer } = await timed(async () => body(() => new Promise(() => {})), {
      ...BOUNDS,
      limitMs: 60_000,
      bodyMs: 30,
    });
    expect(ms).toBeLessThan(1_000);
    expect(answer).toMatchObject({ cut: "the body did not end in time" });
  });

  test("keeps what came of a body that breaks off", async () => {
    let pulls = 0;
    const { answer } = await timed(async () =>
      body((controller) => {
        pulls += 1;
        if (pulls > 1) throw new Error("reset");
        controller.enqueue(new TextEncoder().encode("part"));
      }),
    );
    expect(answer).toMatchObject({ body: new TextEncoder().encode("part"), cut: "the body broke off: reset" });
  });
});
