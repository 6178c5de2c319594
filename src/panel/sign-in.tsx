import type { Context } from "hono";
import { actorOf, type Token } from "../commands/actor.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { dropSession, isOwn, keepSession, readSession } from "./guard.ts";
import { renderOutside } from "./layout.tsx";
import { beginSession, countTry, endSession, forgiveTry } from "./sessions.ts";
import { ownPath } from "./visit.ts";

/** The sign-in: a token is given once and kept nowhere; what stays is a session. */

/** Longest token that is looked at, characters. */
const TOKEN_CHARS = 1_000;

interface Asked {
  next: string;
  problem?: string;
}

function Form({ next, problem }: Asked) {
  return (
    <form method="post" action="/panel/sign-in" class="stack">
      {problem === undefined ? null : (
        <p class="notice bad" role="alert" id="problem">
          {problem}
        </p>
      )}
      <label for="token">Token</label>
      <input
        id="token"
        name="token"
        type="password"
        autocomplete="current-password"
        required
        maxlength={TOKEN_CHARS}
        aria-describedby={problem === undefined ? "hint" : "problem hint"}
      />
      <p id="hint" class="hint">
        A token whose digest is in DUEWORK_TOKENS. After npm run dev it is in .dev.token.
      </p>
      <input type="hidden" name="next" value={next} />
      <button type="submit" class="primary">
        Sign in
      </button>
    </form>
  );
}

const page = (asked: Asked) => renderOutside("Sign in", <Form {...asked} />);

/** The form. */
export function showSignIn(c: Context): Response | Promise<Response> {
  return c.html(page({ next: ownPath(c.req.query("next")) }));
}

/** Signs in, or says why not: never which part of a token was wrong. */
export async function signIn(
  c: Context,
  { db, ports: { bytes, clock, log } }: Runtime,
  tokens: readonly Token[],
  body: Record<string, unknown>,
): Promise<Response> {
  const next = ownPath(body.next);
  if (!isOwn(c)) return c.html(page({ next, problem: "Sign in from this page." }), 403);
  const now = clock();
  const address = c.req.header("cf-connecting-ip") ?? "";
  const wait = await countTry(db, address, now);
  if (wait !== null) {
    log({ event: "sign_in_held_off", level: "warn", seconds: wait });
    const problem = `Too many tries. Wait ${Math.ceil(wait / 60)} min.`;
    return c.html(page({ next, problem }), 429, { "retry-after": String(wait) });
  }
  const token = typeof body.token === "string" ? body.token.trim() : "";
  const actor = token === "" || token.length > TOKEN_CHARS ? null : await actorOf(token, tokens);
  if (actor === null) {
    log({ event: "sign_in_refused", level: "warn" });
    return c.html(page({ next, problem: "No such token." }), 401);
  }
  await forgiveTry(db, address);
  const before = readSession(c);
  if (before !== undefined) await endSession(db, before);
  keepSession(c, await beginSession(db, bytes, actor.id.replace(/^http:/, ""), now));
  log({ event: "signed_in", level: "info", actor: actor.id });
  return c.redirect(next, 303);
}

/** Ends the session, here and in the database; for who came by Cloudflare Access, that one too. */
export async function signOut(c: Context, db: D1Database, session: string): Promise<Response> {
  const byAccess = readSession(c) !== session;
  await endSession(db, session);
  dropSession(c);
  return c.redirect(byAccess ? "/cdn-cgi/access/logout" : "/panel/sign-in", 303);
}
