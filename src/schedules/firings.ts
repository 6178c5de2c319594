import { type RunStatus, START_WITHIN_MS } from "../commands/runs.ts";
import { DAY } from "../core/time.ts";

/** Every statement that writes `firings`: what became of each claimed minute of a schedule. */

/**
 * How long firings are kept, ms; and the newest of each schedule that there is stay however old they are, so that a
 * weekly one has a history beside a minutely one's.
 */
export const KEEP_FIRINGS_MS = 30 * DAY;
export const KEEP_NEWEST = 50;
/** How many a schedule loses at most when it fires: more than it gains. */
const FORGET_FIRINGS = 3;
/** How many go of one that was removed, and among how many schedules it is looked for, the first added first. */
const FORGET_REMOVED = 20;
const SCHEDULES_LOOKED_AT = 300;

export interface NewFiring {
  id: string;
  schedule: string;
  name: string;
  slot: number;
  missed: number;
  cron: string;
  timeZone: string;
  firedBy: string;
  /** `refused:<code>`, or null: it is admitted if its run was, and `refused:thread_busy` if not. */
  refusal: string | null;
  detail: string;
  thread: string | null;
  run: string | null;
}

export interface FiringRow {
  id: string;
  schedule: string;
  name: string;
  slot: number;
  claimed_at: number;
  missed: number;
  cron: string;
  time_zone: string;
  fired_by: string;
  outcome: string;
  detail: string;
  thread: string | null;
  run: string | null;
  refired_by: string | null;
  refires: number;
}

const BUSY = "the thread had a live run";

/** Records claimed minutes, behind the claim and the admission in one batch: only where the claim is the firing's own. */
export function recordFirings(db: D1Database, firings: readonly NewFiring[], now: number): D1PreparedStatement {
  const admitted = "EXISTS (SELECT 1 FROM runs WHERE id = j.value->>'run')";
  return db
    .prepare(
      `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, detail,
         thread, run)
       SELECT j.value->>'id', j.value->>'schedule', j.value->>'name', j.value->>'slot', ?2, j.value->>'missed',
         j.value->>'cron', j.value->>'timeZone', j.value->>'firedBy',
         CASE WHEN j.value->>'refusal' IS NOT NULL THEN j.value->>'refusal'
           WHEN ${admitted} THEN 'admitted' ELSE 'refused:thread_busy' END,
         CASE WHEN j.value->>'refusal' IS NULL AND NOT ${admitted} THEN '${BUSY}' ELSE j.value->>'detail' END,
         j.value->>'thread', CASE WHEN ${admitted} THEN j.value->>'run' END
       FROM json_each(?1) j
       WHERE EXISTS (SELECT 1 FROM schedules WHERE id = j.value->>'schedule' AND claim = j.value->>'id')
       ON CONFLICT DO NOTHING RETURNING id, outcome, run`,
    )
    .bind(JSON.stringify(firings), now);
}

/** Gives a firing that never started, or was refused, its new run, if that was admitted behind it in the same batch. */
export function refire(
  db: D1Database,
  firing: { id: string; run: string | null },
  to: { run: string; thread: string; by: string },
): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE firings SET outcome = 'admitted', detail = '', run = ?3, thread = ?4, refired_by = ?5, refires = refires + 1
       WHERE id = ?1 AND run IS ?2 AND outcome <> 'admitted' AND EXISTS (SELECT 1 FROM runs WHERE id = ?3)
       RETURNING id`,
    )
    .bind(firing.id, firing.run, to.run, to.thread, to.by);
}

/**
 * Says of firings whose run nobody began in time that they were claimed and did not start. Before the statement that
 * closes those runs, in the same batch: of closed runs there are many.
 */
export function markClaimed(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE firings SET outcome = 'claimed', detail = 'its run never began'
       WHERE outcome = 'admitted' AND run IN (
         SELECT id FROM runs WHERE ended_at IS NULL AND status = 'admitted' AND admitted_at <= ?1)
       RETURNING id, name`,
    )
    .bind(now - START_WITHIN_MS);
}

/**
 * Deletes old firings of the schedules that fire: a few of each, so that it costs the schedule that fires. And some of
 * one schedule that was removed, which fires no more: of those none stay. It steps from one schedule to the next.
 */
export function forgetFirings(db: D1Database, schedules: readonly string[], now: number): D1PreparedStatement {
  return db
    .prepare(
      `WITH RECURSIVE known (schedule) AS (
         SELECT min(schedule) FROM firings
         UNION ALL
         SELECT (SELECT min(f.schedule) FROM firings f WHERE f.schedule > known.schedule) FROM known
         WHERE known.schedule IS NOT NULL LIMIT ${SCHEDULES_LOOKED_AT}),
       removed AS (
         SELECT schedule FROM known WHERE schedule NOT IN (SELECT id FROM schedules)
           AND (SELECT claimed_at FROM firings f WHERE f.schedule = known.schedule ORDER BY f.slot LIMIT 1) < ?2 LIMIT 1)
       DELETE FROM firings WHERE id IN (
         SELECT id FROM (SELECT id FROM firings WHERE schedule = (SELECT schedule FROM removed) AND claimed_at < ?2
           ORDER BY slot LIMIT ${FORGET_REMOVED})
         UNION ALL
         SELECT f.id FROM json_each(?1) j JOIN firings f ON f.id IN (
           SELECT id FROM firings WHERE schedule = j.value ORDER BY slot LIMIT ${FORGET_FIRINGS})
         WHERE f.claimed_at < ?2 AND EXISTS (SELECT 1 FROM firings g
           WHERE g.schedule = f.schedule AND g.slot > f.slot LIMIT 1 OFFSET ${KEEP_NEWEST - 1}))`,
    )
    .bind(JSON.stringify(schedules), now - KEEP_FIRINGS_MS);
}

/** A page of firings, newest first, before the given one; of one schedule's name, or of all. */
export function listFirings(
  db: D1Database,
  name: string | null,
  before: { at: number; id: string } | null,
  limit: number,
): D1PreparedStatement {
  const bound = [before?.at ?? Number.MAX_SAFE_INTEGER, before?.id ?? "", limit];
  const order = "ORDER BY claimed_at DESC, id DESC LIMIT ?3";
  return name === null
    ? db.prepare(`SELECT * FROM firings WHERE (claimed_at, id) < (?1, ?2) ${order}`).bind(...bound)
    : db.prepare(`SELECT * FROM firings WHERE name = ?4 AND (claimed_at, id) < (?1, ?2) ${order}`).bind(...bound, name);
}

/** A firing with its run, as far as there is one. */
export interface LastFiring extends FiringRow {
  run_status: RunStatus | null;
  run_admitted_at: number | null;
}

/** Firings by their ids, with their runs. */
export function findLast(db: D1Database, ids: readonly string[]): D1PreparedStatement {
  return db
    .prepare(
      `SELECT f.*, r.status AS run_status, r.admitted_at AS run_admitted_at
       FROM json_each(?1) j JOIN firings f ON f.id = j.value LEFT JOIN runs r ON r.id = f.run`,
    )
    .bind(JSON.stringify(ids));
}

/** The latest firing of a schedule by its name, with its run. */
export function findLastOf(db: D1Database, name: string): D1PreparedStatement {
  return db
    .prepare(
      `SELECT f.*, r.status AS run_status, r.admitted_at AS run_admitted_at
       FROM schedules s JOIN firings f ON f.id = s.claim LEFT JOIN runs r ON r.id = f.run WHERE s.name = ?1`,
    )
    .bind(name);
}
