import type { Context, Handler } from "hono";
import * as v from "valibot";
import { refuse } from "../core/errors.ts";
import type { Job } from "../jobs/catalog.ts";
import { readScheduleViews } from "../schedules/views.ts";
import * as answers from "./answers.ts";
import { itemsQuery, lettersQuery, listDeadLetters, listItems, showItem } from "./items.ts";
import {
  obligationsPage,
  readJobViews,
  readObligationViews,
  readSettlementViews,
  readSlotViews,
  settlementsPage,
} from "./jobs.ts";
import { viewNeeds } from "./needs.ts";
import { foreignCursor, pageOfCode, readTicks, readTopics } from "./reads.ts";
import { type Env, listSchema, noQuery, pageSchema, part, read } from "./request.ts";
import { firingsQuery, readFirings } from "./schedules.ts";
import type { Served } from "./served.ts";
import { readRun, readRuns, readThread, readThreads, runInstances } from "./threads.ts";
import { jobInstances, listWorkflows, showWorkflow, workflowsQuery } from "./workflows.ts";

/** A read: the router serves it, the OpenAPI document describes it, and the test of grants tries it, all from this. */
export interface ReadRoute {
  /** `/api/jobs/:id` */
  readonly path: string;
  /** Null: whoever is signed in may ask, and is shown what his grants let him see. */
  readonly grant: string | null;
  readonly summary: string;
  readonly query: v.GenericSchema;
  readonly answer: v.GenericSchema;
  readonly handler: Handler<Env>;
}

type Answer<Query> = (query: Query, c: Context<Env>) => Promise<object>;

function at<Query extends v.GenericSchema>(
  path: string,
  grant: string | null,
  summary: string,
  query: Query,
  answer: v.GenericSchema,
  run: Answer<v.InferOutput<Query>>,
): ReadRoute {
  return { path, grant, summary, query, answer, handler: read(grant, query, run) };
}

/** All reads of a deployment. */
export function readRoutes(served: Served): readonly ReadRoute[] {
  const { catalog, clock } = served;
  return [
    at("/api/needs", null, "What needs a person, the gravest first", noQuery, answers.needsView, (_, c) =>
      viewNeeds(c.get("actor"), c.get("runtime"), catalog, clock()),
    ),
    at(
      "/api/topics",
      "topic:read",
      "Topics: path and backlog",
      listSchema,
      answers.pageOf(answers.topicEntries),
      (page, c) => readTopics(dbOf(c), c.get("runtime"), page),
    ),
    at(
      "/api/ticks",
      "tick:read",
      "Records of ticks, the newest first",
      pageSchema,
      answers.pageOf(answers.tickEntries),
      (page, c) => readTicks(dbOf(c), clock(), page),
    ),
    ...itemRoutes(served),
    ...jobRoutes(served),
    ...scheduleRoutes(served),
    ...threadRoutes(),
    ...workflowRoutes(served),
  ];
}

/** Items and dead letters. */
function itemRoutes({ clock }: Served): ReadRoute[] {
  const item = v.strictObject(answers.itemEntries);
  const letters = answers.pageOf(answers.letterEntries);
  return [
    at("/api/items", "item:read", "Items of a topic", itemsQuery, answers.pageOf(answers.itemEntries), (query, c) =>
      listItems(dbOf(c), c.get("runtime"), query, clock()),
    ),
    at("/api/items/:id", "item:read", "One item, and why it is not running", noQuery, item, (_, c) =>
      showItem(dbOf(c), c.get("runtime"), part(c, "id"), clock()),
    ),
    at(
      "/api/dead-letters",
      "item:read",
      "Dead letters of a topic, the newest first",
      lettersQuery,
      letters,
      (query, c) => listDeadLetters(dbOf(c), c.get("runtime"), query),
    ),
  ];
}

/** Jobs of the catalog, and what each has done. */
function jobRoutes({ catalog, jobs, clock }: Served): ReadRoute[] {
  const ofJob =
    <Query>(answer: (db: D1Database, job: Job, query: Query) => Promise<object>): Answer<Query> =>
    async (query, c) => {
      const job = catalog.find(({ id }) => id === part(c, "id"));
      return job === undefined ? refuse("not_found", "id", "there is no such job") : answer(dbOf(c), job, query);
    };
  const { jobEntries, slotEntries, obligationEntries, settlementEntries, pageOf } = answers;
  return [
    at("/api/jobs", "job:read", "Jobs of the catalog", listSchema, pageOf(jobEntries), async (query, c) => {
      const page = pageOfCode(catalog, ({ id }) => id, query);
      if (page === null) return foreignCursor();
      return { items: await readJobViews(dbOf(c), page.shown, jobs, clock()), nextCursor: page.nextCursor };
    }),
    at(
      "/api/jobs/:id",
      "job:read",
      "One job",
      noQuery,
      v.strictObject(jobEntries),
      ofJob(async (db, job) => (await readJobViews(db, [job], jobs, clock()))[0] ?? {}),
    ),
    at(
      "/api/jobs/:id/slots",
      "job:read",
      "A job's slots, the newest first",
      pageSchema,
      pageOf(slotEntries),
      ofJob((db, { id }, page) => readSlotViews(db, id, page)),
    ),
    at(
      "/api/jobs/:id/obligations",
      "job:read",
      "What a job owes or holds in quarantine, the oldest first",
      obligationsPage,
      pageOf(obligationEntries),
      ofJob((db, { id }, page) => readObligationViews(db, id, page)),
    ),
    at(
      "/api/jobs/:id/settlements",
      "job:read",
      "What people settled out of a job's quarantine, the newest first",
      settlementsPage,
      pageOf(settlementEntries),
      ofJob((db, { id }, page) => readSettlementViews(db, id, page)),
    ),
  ];
}

/** Schedules of both kinds, and what stored ones have fired. */
function scheduleRoutes({ catalog, jobs, clock }: Served): ReadRoute[] {
  const views = (c: Context<Env>) => readScheduleViews(dbOf(c), catalog, jobs, clock());
  const { scheduleEntries, firingEntries, pageOf } = answers;
  return [
    at(
      "/api/schedules",
      "schedule:read",
      "Schedules of both kinds",
      listSchema,
      pageOf(scheduleEntries),
      async (query, c) => {
        const page = pageOfCode(await views(c), ({ name }) => name, query);
        return page === null ? foreignCursor() : { items: page.shown, nextCursor: page.nextCursor };
      },
    ),
    at(
      "/api/schedules/:name",
      "schedule:read",
      "One schedule",
      noQuery,
      v.strictObject(scheduleEntries),
      async (_, c) => {
        const found = (await views(c)).filter(({ name }) => name === part(c, "name"));
        return found.at(-1) ?? refuse("not_found", "name", "there is no such schedule");
      },
    ),
    at("/api/firings", "schedule:read", "Firings, the newest first", firingsQuery, pageOf(firingEntries), (query, c) =>
      readFirings(dbOf(c), query),
    ),
  ];
}

/** Threads with their messages, and runs. */
function threadRoutes(): ReadRoute[] {
  const { runEntries, threadEntries, threadView, pageOf } = answers;
  return [
    at("/api/threads", "thread:read", "Threads, the latest first", listSchema, pageOf(threadEntries), (query, c) =>
      readThreads(dbOf(c), query),
    ),
    at(
      "/api/threads/:id",
      "thread:read",
      "A thread and its messages, the oldest first",
      listSchema,
      threadView,
      (query, c) => readThread(dbOf(c), part(c, "id"), query),
    ),
    at("/api/runs", "run:read", "Runs, the newest first", listSchema, pageOf(runEntries), (query, c) =>
      readRuns(dbOf(c), query),
    ),
    at("/api/runs/:id", "run:read", "One run", noQuery, v.strictObject(runEntries), (_, c) =>
      readRun(dbOf(c), part(c, "id")),
    ),
  ];
}

/** Workflow instances, of whatever starts them. */
function workflowRoutes({ catalog, jobs, runs }: Served): ReadRoute[] {
  const sources = [jobInstances(catalog, jobs), runInstances(runs)];
  const { instanceEntries, instanceView, pageOf } = answers;
  return [
    at(
      "/api/workflows",
      "workflow:read",
      "Workflow instances, the newest first",
      workflowsQuery,
      pageOf(instanceEntries),
      (query, c) => listWorkflows(dbOf(c), sources, query),
    ),
    at("/api/workflows/:workflow/:id", "workflow:read", "One instance with its steps", noQuery, instanceView, (_, c) =>
      showWorkflow(dbOf(c), sources, part(c, "workflow"), part(c, "id")),
    ),
  ];
}

const dbOf = (c: Context<Env>): D1Database => c.get("runtime").db;
