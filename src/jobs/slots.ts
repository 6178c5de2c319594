import * as v from "valibot";
import { MINUTE, SECOND } from "../core/time.ts";
import type { ProcessorKind } from "./catalog.ts";

/**
 * Every statement that writes `jobs` or `slots`: the claim of a due minute, its completion, the stop.
 *
 * The fence is `(job, slot, generation)`: a completion of an older generation changes nothing. While a claim's lease
 * lives the job's next due minute is not claimed; it coalesces into the one after.
 */

/** A claim's lease, ms: longer than everything that may be done under it. */
export const SLOT_LEASE_MS = 270 * SECOND;
/** Everything under a claim ends by this long after it, ms. */
export const SLOT_DEADLINE_MS = 240 * SECOND;
/** Slots in a row that failed, or ended unknown, until the job is stopped. */
export const STOP_AFTER = 5;
/** Degraded slots in a row without progress until a person is told. */
export const STALLED_ALERT = 12;

/** A slot that was claimed, as its processor gets it. Instants in ms. */
export interface Slot {
  job: string;
  slot: number;
  generation: number;
  /** Due minutes that were passed over since the last one. */
  missed: number;
  claimedAt: number;
  /** No dependent operation starts at or after it. */
  deadline: number;
}

export type SlotResult = "succeeded" | "degraded" | "failed";

/** How a slot ended. `progress`: it was degraded and still settled or expired something. */
export interface Completion {
  result: SlotResult;
  progress: boolean;
  detail: Record<string, unknown>;
}

export interface DueSlot {
  job: string;
  slot: number;
  missed: number;
  /**
   * The job's last slot when this was found due, null: none. Claimed only while it still is, since `missed` counts from
   * it. Absent: whatever it is by now.
   */
  since?: number | null;
  processor: ProcessorKind;
}

export interface JobRow {
  id: string;
  generation: number;
  last_slot: number | null;
  claimed: 0 | 1;
  lease_until: number | null;
  failures: number;
  stalled: number;
  stopped_at: number | null;
  stop_reason: string | null;
  stopped_by: string | null;
}

/** The Workflow instance that a slot becomes: the same however often it is made. At most 100 of `a-z 0-9 -`. */
export function instanceIdOf({ job, slot, generation }: Pick<Slot, "job" | "slot" | "generation">): string {
  return `${job}-${slot / MINUTE}-${generation}`;
}

/** The rows of these jobs; a job that was never claimed has none. */
export function readJobs(db: D1Database, ids: readonly string[]): D1PreparedStatement {
  return db.prepare("SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(?1))").bind(JSON.stringify(ids));
}

/** What became of one due minute. `not claimed`: another has it, a lease lives, or the job was stopped before. */
export type SlotClaim = { kind: "claimed"; slot: Slot } | { kind: "stopped" } | { kind: "not claimed" };

/**
 * Claims due minutes, each of another job: three statements in one call, however many there are, of which the second
 * decides. A claim before that never completed is charged `unknown` by the same call, and the fifth such charge stops
 * the job instead of claiming. Answers in the order of `due`.
 * @throws what D1 throws: then nothing is known, and what was claimed all the same is charged by the next claim
 */
export async function claimSlots(db: D1Database, due: readonly DueSlot[], now: number): Promise<SlotClaim[]> {
  if (due.length === 0) return [];
  const list = JSON.stringify(due);
  const asFound = "(json_type(due.value, '$.since') IS NULL OR last_slot IS due.value ->> 'since')";
  const deadline = now + SLOT_DEADLINE_MS;
  const [, decided] = await db.batch([
    db
      .prepare(
        `UPDATE slots SET result = 'unknown', completed_at = ?2
         WHERE result IS NULL AND job IN (
           SELECT jobs.id FROM json_each(?1) AS due CROSS JOIN jobs ON jobs.id = due.value ->> 'job'
           WHERE stopped_at IS NULL AND last_slot < due.value ->> 'slot' AND claimed = 1 AND lease_until <= ?2 AND ${asFound})`,
      )
      .bind(list, now),
    db
      .prepare(
        `INSERT INTO jobs (id, generation, last_slot, claimed, lease_until)
         SELECT due.value ->> 'job', 1, due.value ->> 'slot', 1, ?3
         FROM json_each(?1) AS due LEFT JOIN jobs ON jobs.id = due.value ->> 'job' WHERE ${asFound}
         ON CONFLICT (id) DO UPDATE SET
           generation = generation + 1,
           last_slot = excluded.last_slot,
           failures = failures + claimed,
           stopped_at = iif(failures + claimed >= ?4, ?2, NULL),
           stop_reason = iif(failures + claimed >= ?4, 'too many slots failed or ended unknown', NULL),
           stopped_by = iif(failures + claimed >= ?4, 'service:tick', NULL),
           claimed = (failures + claimed < ?4),
           lease_until = excluded.lease_until
         WHERE stopped_at IS NULL AND coalesce(last_slot < excluded.last_slot, 1) AND (claimed = 0 OR lease_until <= ?2)
         RETURNING id, generation, stopped_at IS NOT NULL AS stopped`,
      )
      .bind(list, now, now + SLOT_LEASE_MS, STOP_AFTER),
    db
      .prepare(
        `INSERT INTO slots (job, slot, generation, processor, missed, claimed_at, deadline, instance_id)
         SELECT jobs.id, last_slot, generation, due.value ->> 'processor', due.value ->> 'missed', ?2, ?3,
           iif(due.value ->> 'processor' = 'workflow', jobs.id || '-' || (last_slot / 60000) || '-' || generation, NULL)
         FROM json_each(?1) AS due CROSS JOIN jobs ON jobs.id = due.value ->> 'job'
         WHERE last_slot = due.value ->> 'slot' AND claimed = 1 AND stopped_at IS NULL
         ON CONFLICT (job, slot) DO NOTHING`,
      )
      .bind(list, now, deadline),
  ]);
  const rows = new Map(v.parse(claimRows, decided?.results).map((row) => [row.id, row]));
  return due.map(({ job, slot, missed }): SlotClaim => {
    const row = rows.get(job);
    if (row === undefined) return { kind: "not claimed" };
    if (row.stopped === 1) return { kind: "stopped" };
    return { kind: "claimed", slot: { job, slot, generation: row.generation, missed, claimedAt: now, deadline } };
  });
}

const claimRows = v.array(v.object({ id: v.string(), generation: v.number(), stopped: v.number() }));

/**
 * Begins a slot's work, once: a message that comes twice, a stopped job, a slot that has ended or whose deadline has
 * passed answers no row.
 */
export function startSlot(
  db: D1Database,
  { job, slot, generation }: Pick<Slot, "job" | "slot" | "generation">,
  now: number,
): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE slots SET started_at = ?4
       WHERE job = ?1 AND slot = ?2 AND generation = ?3 AND started_at IS NULL AND result IS NULL AND deadline > ?4
         AND EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND generation = ?3 AND stopped_at IS NULL)
       RETURNING job, slot, generation, missed, claimed_at AS claimedAt, deadline, processor`,
    )
    .bind(job, slot, generation, now);
}

/**
 * Ends a slot: two statements for one batch. The second is fenced by the generation alone, and ends the lease, so that
 * the next due minute may be claimed. Completing again what is completed changes nothing.
 */
export function completeSlot(
  db: D1Database,
  { job, slot, generation }: Pick<Slot, "job" | "slot" | "generation">,
  { result, progress, detail }: Completion,
  now: number,
): D1PreparedStatement[] {
  const failed = result === "failed" ? 1 : 0;
  const clear = result === "succeeded" || (result === "degraded" && progress) ? 1 : 0;
  return [
    db
      .prepare(
        `UPDATE jobs SET
           claimed = 0,
           failures = iif(?4, 0, failures + ?5),
           stalled = iif(?4, 0, stalled + ?6),
           stopped_at = iif(?5 AND failures + 1 >= ?7 AND stopped_at IS NULL, ?3, stopped_at),
           stop_reason = iif(?5 AND failures + 1 >= ?7 AND stopped_at IS NULL, 'too many slots failed or ended unknown', stop_reason),
           stopped_by = iif(?5 AND failures + 1 >= ?7 AND stopped_at IS NULL, 'service:tick', stopped_by)
         WHERE id = ?1 AND generation = ?2 AND claimed = 1
         RETURNING stalled, (stopped_at = ?3 AND ?5) AS stopped`,
      )
      .bind(job, generation, now, clear, failed, result === "degraded" && !progress ? 1 : 0, STOP_AFTER),
    db
      .prepare(
        `UPDATE slots SET result = ?4, completed_at = ?5, detail = ?6
         WHERE job = ?1 AND slot = ?2 AND generation = ?3 AND result IS NULL
           AND EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND generation = ?3)`,
      )
      .bind(job, slot, generation, result, now, JSON.stringify(detail)),
  ];
}

/** True while work may go on under this claim: the job is not stopped and no later claim has been given. */
export async function mayGoOn(db: D1Database, { job, generation }: Pick<Slot, "job" | "generation">): Promise<boolean> {
  const row = await db
    .prepare("SELECT 1 FROM jobs WHERE id = ?1 AND generation = ?2 AND stopped_at IS NULL")
    .bind(job, generation)
    .first();
  return row !== null;
}

/** Stops a job, durably. The first reason stays. Answers the rows it changed. */
export function stopJob(db: D1Database, job: string, reason: string, by: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO jobs (id, generation, claimed, stopped_at, stop_reason, stopped_by) VALUES (?1, 0, 0, ?2, ?3, ?4)
       ON CONFLICT (id) DO UPDATE SET stopped_at = ?2, stop_reason = ?3, stopped_by = ?4 WHERE stopped_at IS NULL`,
    )
    .bind(job, now, reason, by);
}

/** Lets a stopped job go on: its counts begin anew; quarantine, and a claim whose lease still lives, stay. */
export function resumeJob(db: D1Database, job: string): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE jobs SET stopped_at = NULL, stop_reason = NULL, stopped_by = NULL, failures = 0, stalled = 0
       WHERE id = ?1 AND stopped_at IS NOT NULL`,
    )
    .bind(job);
}

/** Deletes slots older than `before`, a bounded number a call; the newest of each job stays. */
export function forgetSlots(db: D1Database, job: string, before: number, limit: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM slots WHERE job = ?1 AND slot IN (SELECT slot FROM slots WHERE job = ?1 AND slot < ?2 ORDER BY slot LIMIT ?3)
         AND result IS NOT NULL AND slot < (SELECT coalesce(last_slot, 0) FROM jobs WHERE id = ?1)`,
    )
    .bind(job, before, limit);
}

/** Every job that was ever claimed or stopped, also those that the code has lost since. */
export function readJobIds(db: D1Database): D1PreparedStatement {
  return db.prepare("SELECT id FROM jobs");
}

/** A page of a job's slots, newest first, before the given one. */
export function listSlots(db: D1Database, job: string, before: number | null, limit: number): D1PreparedStatement {
  return db
    .prepare("SELECT * FROM slots WHERE job = ?1 AND slot < ?2 ORDER BY slot DESC LIMIT ?3")
    .bind(job, before ?? Number.MAX_SAFE_INTEGER, limit);
}
