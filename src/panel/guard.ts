import type { Context } from "hono";
import { deleteCookie, getCookie, setCookie } from "hono/cookie";
import type { Access } from "../api/access.ts";
import { type Actor, personByEmail, personById, sameText, type Token } from "../commands/actor.ts";
import { SECOND } from "../core/time.ts";
import { csrfOf, SESSION_MS, subjectOf } from "./sessions.ts";

/** Who is signed in, and whether a request comes from the panel's own pages. */

const COOKIE = "duework";
/** What Cloudflare Access puts on a request: its token, signed. */
const ASSERTION = "cf-access-jwt-assertion";

/**
 * What every answer carries. Nothing runs or is loaded but the Worker's own files, and nothing of others shows or posts
 * to these pages.
 */
export const HEADERS = {
  "content-security-policy": [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
  ].join("; "),
  "x-content-type-options": "nosniff",
  "referrer-policy": "same-origin",
  "cross-origin-opener-policy": "same-origin",
  "cache-control": "no-store",
} as const;

export interface SignedIn {
  /** What only his browser and this Worker know, and what his forms' token is made of: a session's id, or his assertion. */
  session: string;
  actor: Actor;
}

/** He comes by Cloudflare Access, and is not let in: why, and as which status. */
export interface NotLetIn {
  status: 401 | 403 | 503;
  detail: string;
}

/**
 * Whom Cloudflare Access names in a request, asked at each: nothing is kept of it. Null: the request bears no assertion,
 * or Access is not set up.
 */
export async function cameByAccess(
  c: Context,
  access: Access | null,
  tokens: readonly Token[],
): Promise<SignedIn | NotLetIn | null> {
  const session = c.req.header(ASSERTION);
  if (session === undefined || access === null) return null;
  const answer = await access.verify(session);
  if (answer.kind === "refused") return { status: 401, detail: answer.detail };
  if (answer.kind === "unavailable") return { status: 503, detail: answer.detail };
  const actor = personByEmail(answer.email, tokens);
  return actor === null
    ? { status: 403, detail: "no entry of DUEWORK_TOKENS has this e-mail address" }
    : { session, actor };
}

/**
 * Who a request's session is of, with the grants that his token has now. Null: nobody; his session has ended, or his
 * subject has no token any more.
 */
export async function signedIn(
  c: Context,
  db: D1Database,
  tokens: readonly Token[],
  now: number,
): Promise<SignedIn | null> {
  const session = readSession(c);
  if (session === undefined) return null;
  const subject = await subjectOf(db, session, now);
  const actor = subject === null ? null : personById(`http:${subject}`, tokens);
  return actor === null ? null : { session, actor };
}

/** For other surfaces: who is signed in on the panel. */
export function sessionReader(
  db: D1Database,
  tokens: readonly Token[],
  clock: () => number,
): (c: Context) => Promise<Actor | null> {
  return async (c) => (await signedIn(c, db, tokens, clock()))?.actor ?? null;
}

/** The session's id that a request brings. */
export function readSession(c: Context): string | undefined {
  const id = isSecure(c) ? getCookie(c, COOKIE, "host") : getCookie(c, COOKIE);
  return id !== undefined && /^[\w-]{43}$/.test(id) ? id : undefined;
}

export function keepSession(c: Context, id: string): void {
  const options = { httpOnly: true, sameSite: "Strict", path: "/", maxAge: SESSION_MS / SECOND } as const;
  // `__Host-` keeps neighbours under the same domain from setting it. Over plain http a browser would refuse it.
  if (isSecure(c)) setCookie(c, COOKIE, id, { ...options, prefix: "host", secure: true });
  else setCookie(c, COOKIE, id, options);
}

export function dropSession(c: Context): void {
  if (isSecure(c)) deleteCookie(c, COOKIE, { prefix: "host", path: "/", secure: true });
  else deleteCookie(c, COOKIE, { path: "/" });
}

export const isSecure = (c: Context): boolean => new URL(c.req.url).protocol === "https:";

/** True when a browser says that one of this site's own pages sends the request. One that says nothing is no browser. */
export function isOwn(c: Context): boolean {
  const origin = c.req.header("origin");
  const site = c.req.header("sec-fetch-site");
  if (origin === undefined && site === undefined) return false;
  return (
    (origin === undefined || origin === new URL(c.req.url).origin) && (site === undefined || site === "same-origin")
  );
}

/** True when a form carries what its session's pages were given. */
export async function carriesToken(session: string, given: unknown): Promise<boolean> {
  return typeof given === "string" && sameText(given, await csrfOf(session));
}
