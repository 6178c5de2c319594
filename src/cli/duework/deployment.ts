import { UsageError } from "../flags.ts";
import { visible } from "./visible.ts";

/** A deployment of duework over HTTP. Only this file holds the token. */

/** The deployment answered that it does not do it. */
export class RefusedError extends Error {
  override readonly name = "RefusedError";
}

/** Nothing answered, or nothing that is a deployment of duework. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}

export interface Deployment {
  /** `http://127.0.0.1:8787` */
  readonly url: string;
  /**
   * A read. `text` is the body as it came.
   * @throws RefusedError, UnreachableError
   */
  read(pathAndQuery: string): Promise<Body>;
  /**
   * Runs a command.
   * @throws RefusedError, UnreachableError
   */
  command(name: string, args: object, key: string | null): Promise<Body>;
  /** `/healthz`, whatever its status. The token is not sent. */
  health(): Promise<Body>;
}

export interface Body {
  value: unknown;
  text: string;
}

export interface Connection {
  url: string;
  token: string;
  /** For one request until the last byte of its body, ms. */
  deadlineMs: number;
  signal?: AbortSignal;
}

/** Longest sentence of a deployment's, and of a failed request's cause, that is shown, characters. */
const DETAIL_SHOWN = 500;
const CAUSE_SHOWN = 120;

/**
 * The address of a deployment: scheme and host, since its paths are fixed.
 * @throws UsageError
 */
export function readUrl(text: string, from: string): string {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !/^https?:$/.test(url.protocol)) throw new UsageError(`${from} takes an http or https address`);
  if (url.username !== "" || url.password !== "") throw new UsageError(`${from} takes no name and no password`);
  if (url.pathname !== "/" || url.search !== "" || url.hash !== "") {
    throw new UsageError(`${from} is the deployment's own address, without a path; a command's argument is url=…`);
  }
  return url.origin;
}

export function connect({ url, token, deadlineMs, signal }: Connection): Deployment {
  const ask = async (pathAndQuery: string, init: RequestInit): Promise<{ status: number; body: Body }> => {
    const timeout = AbortSignal.timeout(deadlineMs);
    try {
      const answer = await fetch(url + pathAndQuery, {
        ...init,
        redirect: "manual",
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      });
      if (answer.status >= 300 && answer.status < 400) throw new UnreachableError(redirected(url, answer));
      return { status: answer.status, body: await readBody(url, answer) };
    } catch (error) {
      if (error instanceof UnreachableError) throw error;
      signal?.throwIfAborted();
      const why = timeout.aborted ? `no answer within ${deadlineMs / 1_000} s` : causeOf(error);
      throw new UnreachableError(`${url} cannot be reached: ${why}`);
    }
  };
  const authorization = `Bearer ${token}`;
  const granted = async (pathAndQuery: string, init: RequestInit): Promise<Body> => {
    const { status, body } = await ask(pathAndQuery, init);
    if (status < 200 || status > 299) throw refusal(url, status, body.value);
    return body;
  };
  return {
    url,
    read: (pathAndQuery) => granted(pathAndQuery, { headers: { authorization } }),
    command: async (name, args, key) => {
      const headers = {
        authorization,
        "content-type": "application/json",
        ...(key !== null && { "idempotency-key": key }),
      };
      try {
        return await granted(`/api/commands/${name}`, { method: "POST", headers, body: JSON.stringify(args) });
      } catch (error) {
        if (!(error instanceof UnreachableError) || !/no answer within/.test(error.message)) throw error;
        const again = key === null ? "" : "; with the same --idempotency-key it runs once";
        throw new UnreachableError(`${error.message}; it may have been done all the same${again}`);
      }
    },
    health: async () => (await ask("/healthz", {})).body,
  };
}

function redirected(url: string, { status, headers }: Response): string {
  const to = headers.get("location") ?? "";
  const host = URL.canParse(to, url) ? ` to ${new URL(to, url).origin}` : "";
  return `${url} leads elsewhere (${status}${host}): is that the deployment's address, and does something stand before it?`;
}

async function readBody(url: string, answer: Response): Promise<Body> {
  const text = await answer.text();
  try {
    return { value: JSON.parse(text) as unknown, text };
  } catch {
    const type = visible((answer.headers.get("content-type") ?? "no type").slice(0, 80));
    throw new UnreachableError(
      `${url} answered ${answer.status} with a body that is not JSON (${type}): is it a deployment of duework?`,
    );
  }
}

function refusal(url: string, status: number, body: unknown): Error {
  const { code, detail, field, grant } = (body ?? {}) as Record<string, unknown>;
  if (typeof code !== "string" || typeof detail !== "string") {
    return new UnreachableError(`${url} answered ${status} and no reason: is it a deployment of duework?`);
  }
  if (status === 401) return new RefusedError(`${url} does not know this token (401 ${visible(code)})`);
  const said = visible(detail.slice(0, DETAIL_SHOWN));
  if (status === 403 && typeof grant === "string") {
    return new RefusedError(`not granted: this needs the grant ${visible(grant)} (403 ${visible(code)})`);
  }
  const named = typeof field === "string" && field !== "body" && !detail.includes(field) ? `${visible(field)}: ` : "";
  return new RefusedError(`${named}${said} (${status} ${visible(code)})`);
}

const CAUSES: Record<string, string> = {
  ECONNREFUSED: "nothing listens there",
  ECONNRESET: "the connection was cut",
  ENOTFOUND: "there is no such host",
  EAI_AGAIN: "the host's name could not be looked up",
  UND_ERR_SOCKET: "the connection was cut",
  CERT_HAS_EXPIRED: "its certificate has expired",
  DEPTH_ZERO_SELF_SIGNED_CERT: "its certificate is self-signed (NODE_EXTRA_CA_CERTS names one to trust)",
  SELF_SIGNED_CERT_IN_CHAIN: "its certificate is self-signed (NODE_EXTRA_CA_CERTS names one to trust)",
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: "its certificate cannot be verified",
  ERR_TLS_CERT_ALTNAME_INVALID: "its certificate is for another host",
};

/** Why a request failed, in words; the code stands behind them. */
function causeOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  const code = codeOf(cause);
  if (code === null)
    return cause instanceof Error ? visible(cause.message.slice(0, CAUSE_SHOWN)) : "the request failed";
  if (code.startsWith("ERR_SSL_")) return `no TLS is spoken there (${code})`;
  return CAUSES[code] === undefined ? `the request failed (${code})` : `${CAUSES[code]} (${code})`;
}

function codeOf(cause: unknown): string | null {
  const { code, errors } = (cause ?? {}) as { code?: unknown; errors?: unknown };
  if (typeof code === "string") return visible(code);
  return Array.isArray(errors) ? (errors.map(codeOf).find((one) => one !== null) ?? null) : null;
}
