import { type Context, Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import type * as v from "valibot";
import { actorOf, type Token } from "../commands/actor.ts";
import type { Registered } from "../commands/define.ts";
import { execute } from "../commands/execute.ts";
import { may } from "../commands/policy.ts";
import { refuse } from "../core/errors.ts";
import { errorText } from "../core/text.ts";
import { readScheduleViews } from "../schedules/views.ts";
import { isoInstant, MINUTE, SECOND } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Selection } from "../jobs/selection.ts";
import type { Problem } from "../outbox/configure.ts";
import { beginInvocation, type Runtime } from "../outbox/runtime.ts";
import { viewCommands } from "./commands.ts";
import { itemsQuery, lettersQuery, listDeadLetters, listItems, showItem } from "./items.ts";
import {
  obligationsPage,
  readJobViews,
  readObligationViews,
  readSettlementViews,
  readSlotViews,
  settlementsPage,
} from "./jobs.ts";
import { problem } from "./problem.ts";
import { foreignCursor, pageOfCode, readLastTick, readTicks, readTopics } from "./reads.ts";
import { type Env, listSchema, noQuery, notGranted, pageSchema, part, read, readQuery } from "./request.ts";
import { firingsQuery, readFirings } from "./schedules.ts";
import { readRun, readRuns, readThread, readThreads, runInstances } from "./threads.ts";
import { type InstanceSource, jobInstances, listWorkflows, showWorkflow, workflowsQuery } from "./workflows.ts";

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
  /** The Workflow that runs are instances of; null = not bound. */
  runs: Workflow | null;
  clock(): number;
}

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
    if (actor === null)
      return problem(c, "unauthorized", "send the header Authorization: Bearer <token>, with a token of this runtime");
    if (served.runtime === null) return problem(c, "misconfigured", "see /healthz", { problems: served.problems });
    c.set("actor", actor);
    c.set("runtime", served.runtime);
    return next();
  });
  app.get(
    "/api/topics",
    read("topic:read", listSchema, (page, c) => readTopics(dbOf(c), c.get("runtime"), page)),
  );
  app.get(
    "/api/ticks",
    read("tick:read", pageSchema, (page, c) => readTicks(dbOf(c), served.clock(), page)),
  );
  serveItems(app, served);
  serveJobs(app, served);
  serveSchedules(app, served);
  serveThreads(app);
  serveWorkflows(app, [jobInstances(served.catalog, served.jobs), runInstances(served.runs)]);
  app.get("/api/commands", (c) => c.json({ items: viewCommands(served.registry), nextCursor: null }));
  app.post(
    "/api/commands/:name",
    bodyLimit({
      maxSize: BODY_MAX,
      onError: (c) => problem(c, "body_too_large", `a body is at most ${BODY_MAX} bytes`),
    }),
    (c) => runCommand(c, served),
  );
  app.notFound((c) => {
    const allow = methodsAt(app, c.req.path);
    if (allow.length === 0) return problem(c, "not_found", "there is nothing here");
    return problem(c, "method_not_allowed", `this takes ${allow.join(" and ")}`, { allow });
  });
  return app;
}

/** Items and dead letters. */
function serveItems(app: Hono<Env>, { clock }: Served): void {
  app.get(
    "/api/items",
    read("item:read", itemsQuery, (query, c) => listItems(dbOf(c), c.get("runtime"), query, clock())),
  );
  app.get(
    "/api/items/:id",
    read("item:read", noQuery, (_, c) => showItem(dbOf(c), c.get("runtime"), part(c, "id"), clock())),
  );
  app.get(
    "/api/dead-letters",
    read("item:read", lettersQuery, (query, c) => listDeadLetters(dbOf(c), c.get("runtime"), query)),
  );
}

/** Jobs of the catalog, and what each has done. */
function serveJobs(app: Hono<Env>, { catalog, jobs, clock }: Served): void {
  const ofJob = <Schema extends v.GenericSchema>(
    schema: Schema,
    answer: (db: D1Database, job: Job, query: v.InferOutput<Schema>) => Promise<object>,
  ) =>
    read("job:read", schema, async (query, c) => {
      const job = catalog.find(({ id }) => id === part(c, "id"));
      return job === undefined ? refuse("not_found", "id", "there is no such job") : answer(dbOf(c), job, query);
    });
  app.get(
    "/api/jobs",
    read("job:read", listSchema, async (query, c) => {
      const page = pageOfCode(catalog, ({ id }) => id, query);
      if (page === null) return foreignCursor();
      return { items: await readJobViews(dbOf(c), page.shown, jobs, clock()), nextCursor: page.nextCursor };
    }),
  );
  app.get(
    "/api/jobs/:id",
    ofJob(noQuery, async (db, job) => (await readJobViews(db, [job], jobs, clock()))[0] ?? {}),
  );
  app.get(
    "/api/jobs/:id/slots",
    ofJob(pageSchema, (db, { id }, page) => readSlotViews(db, id, page)),
  );
  app.get(
    "/api/jobs/:id/obligations",
    ofJob(obligationsPage, (db, { id }, page) => readObligationViews(db, id, page)),
  );
  app.get(
    "/api/jobs/:id/settlements",
    ofJob(settlementsPage, (db, { id }, page) => readSettlementViews(db, id, page)),
  );
}

/** Schedules of both kinds, and what stored ones have fired. */
function serveSchedules(app: Hono<Env>, { catalog, jobs, clock }: Served): void {
  const views = (c: Context<Env>) => readScheduleViews(dbOf(c), catalog, jobs, clock());
  app.get(
    "/api/schedules",
    read("schedule:read", listSchema, async (query, c) => {
      const page = pageOfCode(await views(c), ({ name }) => name, query);
      return page === null ? foreignCursor() : { items: page.shown, nextCursor: page.nextCursor };
    }),
  );
  app.get(
    "/api/schedules/:name",
    read("schedule:read", noQuery, async (_, c) => {
      const found = (await views(c)).filter(({ name }) => name === part(c, "name"));
      return found.at(-1) ?? refuse("not_found", "name", "there is no such schedule");
    }),
  );
  app.get(
    "/api/firings",
    read("schedule:read", firingsQuery, (query, c) => readFirings(dbOf(c), query)),
  );
}

/** Threads with their messages, and runs. */
function serveThreads(app: Hono<Env>): void {
  app.get(
    "/api/threads",
    read("thread:read", listSchema, (query, c) => readThreads(dbOf(c), query)),
  );
  app.get(
    "/api/threads/:id",
    read("thread:read", listSchema, (query, c) => readThread(dbOf(c), part(c, "id"), query)),
  );
  app.get(
    "/api/runs",
    read("run:read", listSchema, (query, c) => readRuns(dbOf(c), query)),
  );
  app.get(
    "/api/runs/:id",
    read("run:read", noQuery, (_, c) => readRun(dbOf(c), part(c, "id"))),
  );
}

/** Workflow instances, of whatever starts them. */
function serveWorkflows(app: Hono<Env>, sources: readonly InstanceSource[]): void {
  app.get(
    "/api/workflows",
    read("workflow:read", workflowsQuery, (query, c) => listWorkflows(dbOf(c), sources, query)),
  );
  app.get(
    "/api/workflows/:workflow/:id",
    read("workflow:read", noQuery, (_, c) => showWorkflow(dbOf(c), sources, part(c, "workflow"), part(c, "id"))),
  );
}

const dbOf = (c: Context<Env>): D1Database => c.get("runtime").db;

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
  const query = readQuery(c, noQuery);
  if (!query.ok) return problem(c, "bad_arguments", query.message, { field: query.field });
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
