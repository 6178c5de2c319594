import { exchange } from "../core/exchange.ts";
import type { Ports } from "../core/ports.ts";
import { safeText } from "../core/text.ts";

/**
 * Why a call brought nothing. `timed_out` may still land on the other side: never repeat it at once. `refused` is a
 * status that is no success, `malformed` a success whose body is not what was agreed.
 */
export type CallProblem = "timed_out" | "unreachable" | "refused" | "redirected" | "malformed" | "too_large";

export interface CallFailed {
  ok: false;
  kind: CallProblem;
  /** One short line for a person, without the secret that was sent. */
  detail: string;
}

/** One POST of JSON. */
export interface JsonCall {
  url: string;
  headers: Record<string, string>;
  /** What must not appear in a detail, whatever the other side answers. */
  secret: string;
  body: string;
  /** For all of it, to the answer's last byte, ms. Below 1 nothing is sent. */
  timeoutMs: number;
  /** Largest answer, bytes. */
  maxBytes: number;
}

/** Longest detail, characters. */
const DETAIL_MAX_CHARS = 200;
/** What is read of a failure before the secret is taken out of it: a secret is never cut in two first. */
const FAILURE_MAX_CHARS = 16 * 1_024;

/** Sends a call and reads its whole answer as JSON. Redirects are not followed, so the secret goes nowhere else. */
export async function postJson(
  fetch: Ports["fetch"],
  { url, headers, secret, body, timeoutMs, maxBytes }: JsonCall,
): Promise<{ ok: true; value: unknown } | CallFailed> {
  const failed = (kind: CallProblem, text: string): CallFailed => ({ ok: false, kind, detail: detail(text, secret) });
  if (!(timeoutMs >= 1)) return failed("timed_out", "there was no time left: nothing was sent");

  // Set before the exchange's own timer of the same length, so it has fired whenever that one ended the call.
  let late = false;
  const timer = setTimeout(() => {
    late = true;
  }, timeoutMs);
  const init = { method: "POST", headers: { ...headers, "content-type": "application/json" }, body };
  let answer: Awaited<ReturnType<typeof exchange>>;
  try {
    answer = await exchange(fetch, url, init, { limitMs: timeoutMs, maxBytes });
  } catch (error) {
    if (!late) return failed("unreachable", safeText(error, FAILURE_MAX_CHARS));
    return failed("timed_out", `no answer within ${timeoutMs} ms: it may still land`);
  } finally {
    clearTimeout(timer);
  }

  const { status, cut } = answer;
  if (status >= 300 && status < 400) return failed("redirected", `answered ${status}: redirects are not followed`);
  if (status < 200 || status >= 300) return failed("refused", `answered ${status}${codeOf(answer.body)}`);
  if (cut !== null) {
    if (late) return failed("timed_out", `answered ${status}, but not to the end within ${timeoutMs} ms`);
    const whole = answer.body.length >= maxBytes;
    return failed(whole ? "too_large" : "unreachable", `answered ${status}, but ${cut}`);
  }
  const value = parse(answer.body);
  return value === undefined ? failed("malformed", `answered ${status} with what is not JSON`) : { ok: true, value };
}

/** The value of a body of JSON in UTF-8; undefined = it is neither. */
function parse(body: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(body));
  } catch {
    return undefined;
  }
}

/** The stable code that a JSON refusal carries, in brackets: PostgREST and problem documents have one. */
function codeOf(body: Uint8Array): string {
  const code = (parse(body) as { code?: unknown } | null | undefined)?.code;
  return typeof code === "string" && /^[\w-]{1,40}$/.test(code) ? ` (${code})` : "";
}

function detail(text: string, secret: string): string {
  const safe = secret === "" ? text : text.replaceAll(secret, "[secret]");
  return safeText(safe.replace(/\s+/g, " "), DETAIL_MAX_CHARS);
}
