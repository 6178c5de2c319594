import type { MiddlewareHandler } from "hono";
import { actorOf } from "../commands/actor.ts";
import type { Served } from "./app.ts";
import { problem } from "./problem.ts";
import type { Env } from "./request.ts";

/** Lets in whoever says who he is, and puts him into the request's context. */
export function signedIn(served: Served): MiddlewareHandler<Env> {
  return async (c, next) => {
    if (served.tokens === null) return problem(c, "misconfigured", "DUEWORK_TOKENS is missing or malformed");
    const bearer = /^Bearer ([\x21-\x7e]+)$/.exec(c.req.header("authorization") ?? "")?.[1];
    const actor = bearer === undefined ? null : await actorOf(bearer, served.tokens);
    if (actor === null) {
      return problem(c, "unauthorized", "send the header Authorization: Bearer <token>, with a token of this runtime");
    }
    if (served.runtime === null) return problem(c, "misconfigured", "see /healthz", { problems: served.problems });
    c.set("actor", actor);
    c.set("runtime", served.runtime);
    return next();
  };
}
