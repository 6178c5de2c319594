import { type Context, Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import * as v from "valibot";
import { type Actor, actorOf, mayDo, type Token } from "../commands/actor.ts";
import type { Registered } from "../commands/define.ts";
import { execute } from "../commands/execute.ts";
import { may } from "../commands/policy.ts";
import { errorText } from "../core/text.ts";
import { isoInstant, MINUTE, SECOND } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Selection } from "../jobs/selection.ts";
import type { Problem } from "../outbox/configure.ts";
import { beginInvocation, type Runtime } from "../outbox/runtime.ts";
import { problem } from "./problem.ts";
import { obligationsPage, readJobViews, readObligationViews, readSlotViews } from "./jobs.ts";
import { pageSchema, readLastTick, readTicks, readTopics } from "./reads.ts";

/** Largest request body, bytes. */
const BODY_MAX = 256 * 1024;
/** Without a tick for this long the runtime is degraded, ms: three minutes of a cron that fires each minute. */
const DEGRADED_MS = 3 * MINUTE;

/** What the API serves: a runtime, or why there is none. */
export interface Served {
  runtime: Runtime | null;
  problems: readonly Problem[];
  tokens: readonly Token[] | null;
  registry: ReadonlyMap<string, Registered>;
  /** All jobs of the code, and those that are on. */
  catalog: readonly Job[];
  jobs: Selection;
  clock(): number;
}

type Env = { Variables: { actor: Actor; runtime: Runtime } };

/** The HTTP surface. It has no rule of its own: commands come from the registry. */
export function createApi(served: Served): Hono<Env> {
  const app = new Hono<Env>();
  app.onError((error, c) => {
    served.runtime?.ports.log({ event: "request_failed", level: "error", error: errorText(error) });
    return problem(c, "broken", "the request could not be served");
  });
  app.get("/healthz", (c) => health(c, served));
  app.use("/api/*", async (c, next) => {
    if (served.tokens === null) return problem(c, "misconfigured", "DUEWORK_TOKENS is missing or malformed");
    const bearer = /^Bearer ([\x21-\x7e]+)$/.exec(c.req.header("authorization") ?? "")?.[1];
    const actor = bearer === undefined ? null : await actorOf(bearer, served.tokens);
    if (actor === null) return problem(c, "unauthorized", "a bearer token is needed");
    if (served.runtime === null) return problem(c, "misconfigured", "see /healthz", { problems: served.problems });
    c.set("actor", actor);
    c.set("runtime", served.runtime);
    return next();
  });
  app.get("/api/topics", granted("topic:read"), async (c) => {
    const runtime = c.get("runtime");
    return c.json({ items: await readTopics(runtime.db, runtime), nextCursor: null });
  });
  app.get("/api/ticks", granted("tick:read"), async (c) => {
    const page = v.safeParse(pageSchema, c.req.query());
    if (!page.success) return badInput(c, page.issues[0]);
    return c.json(await readTicks(c.get("runtime").db, served.clock(), page.output));
  });
  app.get("/api/jobs", granted("job:read"), async (c) => {
    const items = await readJobViews(c.get("runtime").db, served.catalog, served.jobs, served.clock());
    return c.json({ items, nextCursor: null });
  });
  app.get("/api/jobs/:id", granted("job:read"), async (c) => {
    const catalog = served.catalog.filter(({ id }) => id === c.req.param("id"));
    const [view] = await readJobViews(c.get("runtime").db, catalog, served.jobs, served.clock());
    return view === undefined ? problem(c, "not_found", "there is no such job") : c.json(view);
  });
  app.get("/api/jobs/:id/slots", granted("job:read"), async (c) => {
    const page = v.safeParse(pageSchema, c.req.query());
    if (!page.success) return badInput(c, page.issues[0]);
    return c.json(await readSlotViews(c.get("runtime").db, c.req.param("id") ?? "", page.output));
  });
  app.get("/api/jobs/:id/obligations", granted("job:read"), async (c) => {
    const page = v.safeParse(obligationsPage, c.req.query());
    if (!page.success) return badInput(c, page.issues[0]);
    return c.json(await readObligationViews(c.get("runtime").db, c.req.param("id") ?? "", page.output));
  });
  app.post(
    "/api/commands/:name",
    bodyLimit({
      maxSize: BODY_MAX,
      onError: (c) => problem(c, "body_too_large", `a body is at most ${BODY_MAX} bytes`),
    }),
    (c) => runCommand(c, served),
  );
  app.notFound((c) => problem(c, "not_found", "there is nothing here"));
  return app;
}

function granted(action: string) {
  return async (c: Context<Env>, next: () => Promise<void>) => {
    if (!mayDo(c.get("actor"), action)) return notGranted(c, action);
    return next();
  };
}

const notGranted = (c: Context, grant: string) => problem(c, "not_granted", `this needs the grant ${grant}`, { grant });

function badInput(c: Context, issue: v.BaseIssue<unknown>): Response {
  const field = v.getDotPath(issue) ?? "body";
  return problem(c, "bad_arguments", `${field}: ${issue.message}`, { field });
}

async function runCommand(c: Context<Env>, served: Served): Promise<Response> {
  const name = c.req.param("name") ?? "";
  const command = served.registry.get(name);
  if (command === undefined) return problem(c, "unknown_command", `there is no command ${name}`);
  const allowed = may(c.get("actor"), command);
  if (!allowed.ok) {
    return allowed.code === "not_granted"
      ? notGranted(c, allowed.field)
      : problem(c, allowed.code, allowed.message, { field: allowed.field });
  }
  if (!/^application\/json\b/i.test(c.req.header("content-type") ?? "")) {
    return problem(c, "unsupported_media_type", "the arguments are a JSON object (content-type application/json)");
  }
  let body: unknown;
  try {
    body = await c.req.json();
  } catch {
    return problem(c, "bad_arguments", "the body is not JSON", { field: "body" });
  }
  const invocation = beginInvocation(c.get("runtime"), served.clock());
  const answer = await execute(command, body, invocation, c.get("actor"), null);
  return answer.ok
    ? c.json({ ok: true, result: answer.result })
    : problem(c, answer.code, answer.message, { field: answer.field || "body" });
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
