import { findRun, listRuns, RUN_WORKFLOW, type RunRow } from "../commands/runs.ts";
import { findThread, listMessages, listThreads, type MessageRow, type ThreadRow } from "../commands/threads.ts";
import { type Refusal, refuse } from "../core/errors.ts";
import { parseJson } from "../core/payload.ts";
import { isoInstant } from "../core/time.ts";
import { type PageQuery, readPage } from "./page.ts";
import type { Instance, InstanceSource } from "./workflows.ts";

/** What a person sees of runs, threads and messages. */

/** A page of runs, newest first. */
export function readRuns(db: D1Database, query: PageQuery): Promise<object | Refusal> {
  const mark = (row: RunRow) => ({ at: row.admitted_at, tail: row.id });
  return readPage(query, { list: "runs" }, (from, limit) => listRuns(db, from, limit), mark, runView);
}

/** One run. */
export async function readRun(db: D1Database, id: string): Promise<object | Refusal> {
  const row = await findRun(db, id).first<RunRow>();
  return row === null ? refuse("not_found", "id", `there is no run ${id}`) : runView(row);
}

/** A page of threads, the latest first. */
export function readThreads(db: D1Database, query: PageQuery): Promise<object | Refusal> {
  const mark = (row: ThreadRow) => ({ at: row.latest_at, tail: row.id });
  return readPage(query, { list: "threads" }, (from, limit) => listThreads(db, from, limit), mark, threadView);
}

/** A thread and a page of its messages, the oldest first. */
export async function readThread(db: D1Database, id: string, query: PageQuery): Promise<object | Refusal> {
  const thread = await findThread(db, { id }).first<ThreadRow>();
  if (thread === null) return refuse("not_found", "id", `there is no thread ${id}`);
  const mark = (row: MessageRow) => ({ at: row.at, tail: row.id });
  const messages = await readPage(
    query,
    { list: "messages", of: id },
    (from, limit) => listMessages(db, id, from, limit),
    mark,
    messageView,
  );
  return "ok" in messages ? messages : { ...threadView(thread), ...messages };
}

/** The instances that runs become, under the name that the binding `RUN` has. */
export function runInstances(workflow: Workflow | null): InstanceSource {
  const instanceOf = (row: RunRow): Instance => ({
    workflow: RUN_WORKFLOW,
    id: row.id,
    status: row.status,
    startedAt: row.admitted_at,
    endedAt: row.ended_at,
    works: { runId: row.id },
  });
  return {
    async list(db, before, limit) {
      const { results } = await listRuns(db, before, limit).all<RunRow>();
      return { instances: results.map(instanceOf), readTo: null };
    },
    async find(db, name, id) {
      if (name !== RUN_WORKFLOW) return null;
      const row = await findRun(db, id).first<RunRow>();
      return row === null ? null : instanceOf(row);
    },
    binding: (name) => (name === RUN_WORKFLOW ? workflow : null),
  };
}

function runView(row: RunRow) {
  return {
    id: row.id,
    actor: row.actor,
    command: row.command,
    args: json(row.args),
    scope: row.scope,
    channel: row.channel,
    thread: row.thread,
    firing: row.firing,
    status: row.status,
    admittedAt: isoInstant(row.admitted_at),
    startedAt: instant(row.started_at),
    endedAt: instant(row.ended_at),
    result: row.result === null ? null : json(row.result),
    error: row.error,
  };
}

function threadView(row: ThreadRow) {
  return {
    id: row.id,
    channel: row.channel,
    title: row.title,
    openedAt: isoInstant(row.opened_at),
    openedBy: row.opened_by,
    latestAt: isoInstant(row.latest_at),
  };
}

function messageView(row: MessageRow) {
  return {
    id: row.id,
    at: isoInstant(row.at),
    author: row.author,
    kind: row.kind,
    text: row.text,
    data: json(row.data),
  };
}

const instant = (ms: number | null) => (ms === null ? null : isoInstant(ms));

/** Stored JSON as a value; what is none, as the text it is. */
function json(text: string): unknown {
  const value = parseJson(text);
  return value.ok ? value.value : text;
}
