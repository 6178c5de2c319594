import type { Context, MiddlewareHandler } from "hono";
import { type Actor, actorOf, personByEmail, type Token } from "../commands/actor.ts";
import { problem } from "./problem.ts";
import type { Env } from "./request.ts";
import type { Served } from "./served.ts";

/** Lets in whoever says who he is, and puts him into the request's context. */
export function signedIn(served: Served): MiddlewareHandler<Env> {
  return async (c, next) => {
    const { tokens, runtime } = served;
    if (tokens === null) return problem(c, "misconfigured", "DUEWORK_TOKENS is missing or malformed");
    if (runtime === null && !c.req.header("authorization")) return nobody(c);
    const found = await whoAsks(c, served, tokens);
    if (found instanceof Response) return found;
    if (runtime === null) return problem(c, "misconfigured", "see /healthz", { problems: served.problems });
    c.set("actor", found);
    c.set("runtime", runtime);
    return next();
  };
}

const nobody = (c: Context) =>
  problem(c, "unauthorized", "send the header Authorization: Bearer <token>, with a token of this runtime");

/** A person with a browser is shown where to sign in; whoever else is told. */
function signInFirst(c: Context): Response {
  const browses = /^\/docs\/?$/.test(c.req.path) && /\btext\/html\b/.test(c.req.header("accept") ?? "");
  return browses ? c.redirect(`/panel/sign-in?next=${encodeURIComponent(c.req.path)}`, 302) : nobody(c);
}

/** A bearer token says it before anything else; then the panel's session, for reads; then Cloudflare Access. */
async function whoAsks(c: Context<Env>, served: Served, tokens: readonly Token[]): Promise<Actor | Response> {
  const { access, session } = served;
  const authorization = c.req.header("authorization");
  if (authorization !== undefined) {
    const bearer = /^Bearer ([\x21-\x7e]+)$/.exec(authorization)?.[1];
    return (bearer === undefined ? null : await actorOf(bearer, tokens)) ?? nobody(c);
  }
  // The panel's own forms write with its session; here it would be sent along by any page.
  const person = session !== null && isRead(c) ? await session(c) : null;
  if (person !== null) return person;
  const jwt = c.req.header("cf-access-jwt-assertion");
  if (jwt === undefined || access === null) return session === null ? nobody(c) : signInFirst(c);
  if (!isRead(c) && isForeign(c)) {
    return problem(c, "cross_site", "a page of another site may not write in this person's name");
  }
  const answer = await access.verify(jwt);
  switch (answer.kind) {
    case "refused":
      return problem(c, "unauthorized", answer.detail);
    case "unavailable":
      return problem(c, "unavailable", answer.detail);
    case "person":
      return (
        personByEmail(answer.email, tokens) ??
        problem(c, "not_granted", "no entry of DUEWORK_TOKENS has this e-mail address")
      );
  }
}

const isRead = (c: Context) => c.req.method === "GET" || c.req.method === "HEAD";

/** True when a browser says that another site's page sends the request: it brings Access's cookie along unasked. */
function isForeign(c: Context): boolean {
  const origin = c.req.header("origin");
  const site = c.req.header("sec-fetch-site") ?? "same-origin";
  const own = new URL(c.req.url).origin;
  return (origin !== undefined && origin !== own) || (site !== "same-origin" && site !== "none");
}
