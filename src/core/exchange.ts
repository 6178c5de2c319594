import type { Ports } from "./ports.ts";

/** Bounds of one {@link exchange}. */
export interface ExchangeBounds {
  /** For all of it, from the request to the body's last byte, ms. A drip does not renew it. */
  limitMs: number;
  /** Bytes of the body that are read; what follows is dropped. */
  maxBytes: number;
  /** For the body alone, ms, when its end matters less than an early answer. Default: what is left of `limitMs`. */
  bodyMs?: number;
}

/** What came back. The body is as much as the bounds let through. */
export interface Exchanged {
  status: number;
  headers: Headers;
  body: Uint8Array;
  /** Why the body is not whole; null = it is. */
  cut: string | null;
}

/**
 * One request and its answer, held to a time and a size, whatever the other side does: a server that never answers,
 * drips or never ends holds nothing. Redirects are not followed: a destination that was checked stays the destination.
 *
 * @throws what `fetch` throws, and an Error when no status came within the limit. A body that fails after the status
 * is not an error: see `cut`.
 */
export async function exchange(
  fetch: Ports["fetch"],
  url: string,
  init: RequestInit,
  { limitMs, maxBytes, bodyMs = limitMs }: ExchangeBounds,
): Promise<Exchanged> {
  const aborter = new AbortController();
  const limit = after(limitMs);
  try {
    const answer = fetch(url, { ...init, redirect: "manual", signal: aborter.signal });
    const response = await Promise.race([answer, limit.passed]);
    if (response === PASSED) {
      answer.then(drop, () => {});
      throw new Error(`no answer within ${limitMs} ms`);
    }
    const { status, headers } = response;
    const bodyLimit = after(bodyMs);
    try {
      return { status, headers, ...(await readBody(response, maxBytes, [limit.passed, bodyLimit.passed])) };
    } finally {
      bodyLimit.clear();
    }
  } finally {
    limit.clear();
    // Frees the connection, one of the few an invocation may hold, also when the body was left unread.
    aborter.abort();
  }
}

const PASSED = Symbol("passed");

function after(ms: number): { passed: Promise<typeof PASSED>; clear(): void } {
  const { promise, resolve } = Promise.withResolvers<typeof PASSED>();
  const timer = setTimeout(() => resolve(PASSED), ms);
  return { passed: promise, clear: () => clearTimeout(timer) };
}

async function readBody(
  response: Response,
  maxBytes: number,
  limits: readonly Promise<typeof PASSED>[],
): Promise<Pick<Exchanged, "body" | "cut">> {
  const reader = response.body?.getReader();
  if (reader === undefined) return { body: new Uint8Array(), cut: null };
  const body = new Uint8Array(maxBytes);
  let length = 0;
  const end = (cut: string | null) => ({ body: body.slice(0, length), cut });
  try {
    // A piece may be empty: bounded too, since pieces that come without a pause let no timer run.
    for (let pieces = 0; pieces <= maxBytes; pieces += 1) {
      const step = await Promise.race([reader.read(), ...limits]);
      if (step === PASSED) return end("the body did not end in time");
      if (step.done) return end(null);
      const chunk = step.value.subarray(0, maxBytes - length);
      body.set(chunk, length);
      length += chunk.length;
      if (chunk.length < step.value.length) return end(`the body is over ${maxBytes} bytes`);
    }
    return end("the body comes in too many pieces");
  } catch (error) {
    return end(`the body broke off: ${error instanceof Error ? error.message : String(error)}`);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function drop(response: Response): void {
  response.body?.cancel().catch(() => {});
}
