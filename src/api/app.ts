import { type Context, Hono, type MiddlewareHandler } from "hono";
import { mayDo } from "../commands/actor.ts";
import { mayTick } from "../commands/policy.ts";
import { errorText, safeText } from "../core/text.ts";
import { isoInstant, SECOND } from "../core/time.ts";
import { DEGRADED_MS } from "../tick/needs.ts";
import { runCommand, viewCommands } from "./commands.ts";
import { docsFile, docsPage } from "./docs.ts";
import { METRICS_TYPE } from "./exposition.ts";
import { readMetrics } from "./metrics.ts";
import { openApi } from "./openapi.ts";
import { problem } from "./problem.ts";
import { readLastTick } from "./reads.ts";
import { bodyUpTo, type Env, noQuery, notGranted, readQuery } from "./request.ts";
import { readRoutes } from "./routes.ts";
import type { Served } from "./served.ts";
import { signedIn } from "./sign-in.ts";

/** Largest request body, bytes. */
const BODY_MAX = 256 * 1024;

/** Of a failed request's path that is logged. */
const PATH_CHARS = 200;

/** Behind the sign-in. */
const SIGNED_IN = ["/api/*", "/openapi.json", "/metrics", "/docs", "/docs/*"];

/** The HTTP surface. It has no rule of its own: commands come from the registry. */
export function createApi(served: Served): Hono<Env> {
  const app = new Hono<Env>();
  app.onError((_, c) => problem(c, "broken", "the request could not be served"));
  app.use(logFailures(served));
  app.get("/healthz", (c) => health(c, served));
  // A person who types the bare address looks for the panel. A Worker with a `fetch` of its own answers there itself.
  app.get("/", (c) => c.redirect("/panel", 302));
  if (served.events !== null) app.route("/", served.events);
  for (const path of SIGNED_IN) app.use(path, signedIn(served));
  const reads = readRoutes(served);
  for (const { path, handler } of reads) app.get(path, handler);
  let document: string | null = null;
  app.get("/openapi.json", (c) => {
    // Made once an isolate: neither list changes while it lives.
    document ??= JSON.stringify(openApi(reads, served.registry));
    return c.body(document, 200, { "content-type": "application/json" });
  });
  app.get("/metrics", (c) => metrics(c, served));
  for (const path of ["/docs", "/docs/"]) app.get(path, (c) => docsPage(c, served.assets));
  app.get("/docs/:file", (c) => docsFile(c, served.assets));
  app.post("/api/tick", (c) => fireTick(c, served));
  app.get("/api/commands", (c) => c.json({ items: viewCommands(served.registry), nextCursor: null }));
  app.post("/api/commands/:name", bodyUpTo(BODY_MAX), (c) => runCommand(c, served));
  app.notFound((c) => {
    const allow = methodsAt(app, c.req.path);
    if (allow.length === 0) return problem(c, "not_found", "there is nothing here");
    return problem(c, "method_not_allowed", `this takes ${allow.join(" and ")}`, { allow });
  });
  return app;
}

/** A line for each request that failed here or behind us, and none for others: what a caller did wrong, he is told. */
function logFailures({ runtime }: Served): MiddlewareHandler<Env> {
  return async (c, next) => {
    await next();
    const { status } = c.res;
    if (status !== 500 && status !== 502) return;
    const path = safeText(c.req.path, PATH_CHARS);
    const error = c.error === undefined ? null : errorText(c.error);
    runtime?.ports.log({ event: "request_failed", level: "error", method: c.req.method, path, status, error });
  };
}

/** The methods that some route takes at a path. */
function methodsAt(app: Hono<Env>, path: string): string[] {
  const here = app.routes.filter(({ method, path: pattern }) => method !== "ALL" && matches(pattern, path));
  const methods = new Set(here.flatMap(({ method }) => (method === "GET" ? ["GET", "HEAD"] : [method])));
  return [...methods];
}

/** True when a route's pattern of plain parts and `:names` fits a path. */
function matches(pattern: string, path: string): boolean {
  const [parts, given] = [pattern.split("/"), path.split("/")];
  return (
    parts.length === given.length && parts.every((one, n) => (one.startsWith(":") ? given[n] !== "" : one === given[n]))
  );
}

/** `GET /metrics` */
async function metrics(c: Context<Env>, { catalog, jobs, clock }: Served): Promise<Response> {
  if (!mayDo(c.get("actor"), "metrics:read")) return notGranted(c, "metrics:read");
  const query = readQuery(c, noQuery);
  if (!query.ok) return problem(c, "bad_arguments", query.message, { field: query.field });
  const text = await readMetrics({ runtime: c.get("runtime"), catalog, jobs, now: clock() });
  return c.body(text, 200, { "content-type": METRICS_TYPE });
}

/** `POST /api/tick`: the tick for a clock outside, should the platform's stop. */
async function fireTick(c: Context<Env>, served: Served): Promise<Response> {
  const allowed = mayTick(c.get("actor"));
  if (!allowed.ok) return notGranted(c, allowed.field);
  const query = readQuery(c, noQuery);
  if (!query.ok) return problem(c, "bad_arguments", query.message, { field: query.field });
  return c.json(await served.tick(c.get("runtime")));
}

async function health(c: Context, { runtime, problems, clock }: Served): Promise<Response> {
  if (runtime === null) {
    return c.json({ status: "misconfigured", lastTickAt: null, tickAgeSeconds: null, problems }, 503);
  }
  const last = await readLastTick(runtime.db).catch(() => undefined);
  if (last === undefined) {
    const unreadable = {
      code: "database_unreadable",
      setting: "DB",
      detail: "the database cannot be read: are its migrations applied?",
    };
    return c.json({ status: "misconfigured", lastTickAt: null, tickAgeSeconds: null, problems: [unreadable] }, 503);
  }
  const age = last === null ? null : Math.max(0, clock() - last);
  return c.json({
    status: age === null ? "starting" : age > DEGRADED_MS ? "degraded" : "ok",
    lastTickAt: last === null ? null : isoInstant(last),
    tickAgeSeconds: age === null ? null : Math.floor(age / SECOND),
    problems,
  });
}
