import * as v from "valibot";
import { grantsSchema } from "../commands/actor.ts";
import { START_WITHIN_MS } from "../commands/runs.ts";
import { nextFire } from "../core/calendar.ts";
import { parseJson } from "../core/payload.ts";
import { isoInstant } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { JobsAtWork } from "../jobs/selection.ts";
import { type JobRow, readJobs } from "../jobs/slots.ts";
import { sinceOf } from "./due.ts";
import { findLast, type LastFiring } from "./firings.ts";
import { instantText, type ReadRow, readRow, readSchedules, type ScheduleRow } from "./rows.ts";

export type ScheduleState = "waiting" | "starting" | "claimed_not_started" | "refused" | "invalid" | "disabled";

/** A schedule as every surface shows it: a job of the catalog, or a stored row. Instants are ISO 8601 in UTC. */
export interface ScheduleView {
  kind: "catalog" | "stored";
  name: string;
  cron: string;
  timeZone: string;
  text: string | null;
  channel: string | null;
  thread: string | null;
  standingThread: string | null;
  grants: unknown;
  enabled: boolean;
  createdAt: string | null;
  createdBy: string | null;
  lastFiring: {
    id: string;
    slot: string;
    claimedAt: string;
    outcome: string;
    detail: string;
    runId: string | null;
    runStatus: string | null;
  } | null;
  state: ScheduleState;
  /** Why it is invalid. */
  problem: string | null;
  nextAt: string | null;
  /** The same by the clock on the wall of its zone. */
  nextLocal: string | null;
}

/** Both kinds, the catalog's first. */
export async function readScheduleViews(
  db: D1Database,
  catalog: readonly Job[],
  jobs: Pick<JobsAtWork, "active">,
  now: number,
): Promise<ScheduleView[]> {
  const [stored, rows] = await db.batch([
    readSchedules(db),
    readJobs(
      db,
      catalog.map(({ id }) => id),
    ),
  ]);
  const jobRows = (rows?.results ?? []) as unknown as JobRow[];
  const read = ((stored?.results ?? []) as unknown as ScheduleRow[]).map((row) => readRow(row, now));
  const last = await readLast(db, read);
  return [
    ...catalog.map((job) => viewOfJob(job, jobs, jobRows, now)),
    ...read.map((one) => viewOfRow(one, last.get(one.row.id) ?? null, now)),
  ];
}

/** The latest firing of each row, by the row's id. */
async function readLast(db: D1Database, rows: readonly ReadRow[]): Promise<Map<string, LastFiring>> {
  const claims = rows.flatMap(({ row }) => row.claim ?? []);
  if (claims.length === 0) return new Map();
  const { results } = await findLast(db, claims).all<LastFiring>();
  return new Map(results.map((firing) => [firing.schedule, firing]));
}

function viewOfJob(
  { id, cron, timeZone }: Job,
  { active }: Pick<JobsAtWork, "active">,
  rows: readonly JobRow[],
  now: number,
): ScheduleView {
  const enabled = active.some(({ job }) => job.id === id);
  const row = rows.find((one) => one.id === id);
  const next = enabled && row?.stopped_at == null ? nextFire(cron, now, timeZone) : null;
  return {
    kind: "catalog",
    name: id,
    cron: cron.text,
    timeZone,
    text: null,
    channel: null,
    thread: null,
    standingThread: null,
    grants: null,
    enabled,
    createdAt: null,
    createdBy: null,
    lastFiring: null,
    state: enabled && row?.stopped_at == null ? "waiting" : "disabled",
    problem: null,
    nextAt: next === null ? null : isoInstant(next),
    nextLocal: next === null ? null : localTime(next, timeZone),
  };
}

function viewOfRow(read: ReadRow, last: LastFiring | null, now: number): ScheduleView {
  const { row, when, problem } = read;
  const next = row.enabled === 1 && when !== null ? nextFire(when.cron, sinceOf(row), when.zone) : null;
  const grants = parseJson(row.grants);
  const known = v.safeParse(grantsSchema, grants.ok ? grants.value : null);
  return {
    kind: "stored",
    name: row.name,
    cron: row.cron,
    timeZone: row.time_zone,
    text: row.text,
    channel: row.channel,
    thread: row.thread,
    standingThread: row.standing_thread,
    grants: known.success ? known.output : row.grants,
    enabled: row.enabled === 1,
    createdAt: instantText(row.created_at),
    createdBy: row.created_by,
    lastFiring:
      last === null
        ? null
        : {
            id: last.id,
            slot: isoInstant(last.slot),
            claimedAt: isoInstant(last.claimed_at),
            outcome: last.outcome,
            detail: last.detail,
            runId: last.run,
            runStatus: last.run_status,
          },
    state: stateOf(read, last, now),
    problem,
    nextAt: next === null ? null : isoInstant(next),
    nextLocal: next === null || when === null ? null : localTime(next, when.zone),
  };
}

function stateOf({ row, problem }: ReadRow, last: LastFiring | null, now: number): ScheduleState {
  if (problem !== null) return "invalid";
  if (row.enabled === 0) return "disabled";
  if (last === null) return "waiting";
  const { outcome, run_status, run_admitted_at } = last;
  if (outcome === "claimed") return "claimed_not_started";
  if (outcome !== "admitted") return "refused";
  if (run_status !== "admitted") return "waiting";
  return (run_admitted_at ?? now) > now - START_WITHIN_MS ? "starting" : "claimed_not_started";
}

const FORMATS = new Map<string, Intl.DateTimeFormat>();

/** An instant by the clock on the wall of a zone that `parseZone` gave, with its offset: `2026-03-29 03:30 GMT+2`. */
export function localTime(at: number, zone: string): string {
  const format =
    FORMATS.get(zone) ??
    new Intl.DateTimeFormat("en-CA", {
      timeZone: zone,
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
      hourCycle: "h23",
      timeZoneName: "shortOffset",
    });
  FORMATS.set(zone, format);
  return format.format(at).replace(",", "");
}
