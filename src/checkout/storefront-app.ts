import { type Context, Hono } from "hono";
import * as v from "valibot";
import { DueworkError } from "../core/errors.ts";
import { errorText, safeText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";

export interface StorefrontOptions {
  /** The secret that callers send as a bearer token: printable ASCII without a space. */
  token: string;
  /**
   * Drops what is cached of one workspace. Throws when it failed: only what returned is confirmed. It is called for all
   * workspaces of a request at once.
   */
  invalidate(wsId: string): Promise<void> | void;
  /** For reading the request, from its arrival to its last byte, ms. A drip does not renew it. Default: 10 s. */
  readMs?: number;
  /** For all calls of `invalidate` of a request, ms; what has not returned then is not confirmed. Default: 10 s. */
  invalidateMs?: number;
}

/** Largest request, bytes: 100 UUIDs take half of it. */
const BODY_MAX_BYTES = 8 * 1_024;
/** Longest reason in a receipt, characters. */
const ERROR_MAX_CHARS = 200;
/** A caller gives up after 15 s: before that it is told who is done. */
const INVALIDATE_MS = 10 * SECOND;

const requestSchema = v.strictObject({
  workspaceIds: v.pipe(
    v.array(v.pipe(v.string(), v.uuid("a workspace id is a UUID"), v.toLowerCase())),
    v.minLength(1, "at least one workspace"),
    v.maxLength(100, "at most 100 workspaces"),
  ),
});

/**
 * What the app that owns the storefront's cache mounts where `STOREFRONT_URL` points: in a hono app by
 * `app.route(path, createStorefrontApp(…))`, elsewhere by its `fetch(request)`. It answers a POST of
 * `{workspaceIds: [uuid, …]}` with a receipt each, `{results: [{wsId, ok, error?}]}`, in the order asked. One workspace
 * that fails is told as such, beside the others.
 *
 * @throws DueworkError when the token cannot be one.
 */
export function createStorefrontApp(options: StorefrontOptions): Hono {
  const { token, readMs = 10 * SECOND } = options;
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new DueworkError("bad_token", "token", "the storefront's token is printable ASCII without a space");
  }
  const app = new Hono();
  app.post("*", async (c) => {
    if (!(await holdsToken(c.req.header("authorization"), token))) return refusal(c, 401, "unauthorized");
    if (!/^application\/json\s*(;|$)/i.test(c.req.header("content-type") ?? "")) {
      return refusal(c, 400, "not_json", "the content type is application/json");
    }
    const body = await readBody(c.req.raw.body, readMs);
    if (body === "late") return refusal(c, 408, "too_slow", `a request is read within ${readMs} ms`);
    if (body === "large") return refusal(c, 413, "body_too_large", `a request is at most ${BODY_MAX_BYTES} bytes`);
    const parsed = v.safeParse(requestSchema, body === "broken" ? undefined : parse(body));
    if (!parsed.success) return refusal(c, 400, "bad_request", parsed.issues[0].message);
    return c.json({ results: await receipts([...new Set(parsed.output.workspaceIds)], options) });
  });
  app.all("*", (c) => {
    c.header("allow", "POST");
    return refusal(c, 405, "method_not_allowed");
  });
  return app;
}

function refusal(c: Context, status: 400 | 401 | 405 | 408 | 413, code: string, detail = code): Response {
  return c.json({ status, code, detail }, status, { "content-type": "application/problem+json" });
}

/** Compares digests, in full: how long it takes says nothing of the token. */
async function holdsToken(header: string | undefined, token: string): Promise<boolean> {
  const bearer = /^Bearer ([\x21-\x7e]+)$/i.exec(header ?? "")?.[1];
  if (bearer === undefined) return false;
  const [given, held] = await Promise.all([digest(bearer), digest(token)]);
  let difference = 0;
  for (let i = 0; i < held.length; i += 1) difference |= (given[i] ?? 0) ^ (held[i] ?? 0);
  return difference === 0;
}

async function digest(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

const LATE = Symbol("late");

function after(ms: number): { passed: Promise<typeof LATE>; clear(): void } {
  const { promise, resolve } = Promise.withResolvers<typeof LATE>();
  const timer = setTimeout(() => resolve(LATE), ms);
  return { passed: promise, clear: () => clearTimeout(timer) };
}

async function readBody(
  stream: ReadableStream<Uint8Array> | null,
  limitMs: number,
): Promise<Uint8Array | "late" | "large" | "broken"> {
  if (stream === null) return "broken";
  const reader = stream.getReader();
  const limit = after(limitMs);
  const body = new Uint8Array(BODY_MAX_BYTES);
  let length = 0;
  try {
    // A piece may be empty: bounded too, since pieces that come without a pause let no timer run.
    for (let pieces = 0; pieces <= BODY_MAX_BYTES; pieces += 1) {
      const step = await Promise.race([limit.passed, reader.read()]);
      if (step === LATE) return "late";
      if (step.done) return body.slice(0, length);
      if (length + step.value.length > BODY_MAX_BYTES) return "large";
      body.set(step.value, length);
      length += step.value.length;
    }
    return "large";
  } catch {
    return "broken";
  } finally {
    limit.clear();
    reader.cancel().catch(() => {});
  }
}

/** The value of a body of JSON in UTF-8; undefined = it is neither. */
function parse(body: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(body));
  } catch {
    return undefined;
  }
}

async function receipts(
  workspaceIds: readonly string[],
  { token, invalidate, invalidateMs = INVALIDATE_MS }: StorefrontOptions,
): Promise<{ wsId: string; ok: boolean; error?: string }[]> {
  const limit = after(invalidateMs);
  const receipt = async (wsId: string) => {
    try {
      const end = await Promise.race([limit.passed, (async () => invalidate(wsId))()]);
      return end === LATE ? { wsId, ok: false, error: `not done within ${invalidateMs} ms` } : { wsId, ok: true };
    } catch (error) {
      return { wsId, ok: false, error: safeText(errorText(error).replaceAll(token, "[secret]"), ERROR_MAX_CHARS) };
    }
  };
  try {
    return await Promise.all(workspaceIds.map(receipt));
  } finally {
    limit.clear();
  }
}
