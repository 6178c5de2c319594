import { errorText } from "../core/text.ts";
import { DAY, MINUTE, SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { ActorKind } from "./actor.ts";

/**
 * Every statement that writes `runs`, and the instances they become.
 *
 * A run is claimed before anything slow: its row takes its thread's one live place. Its id is its instance's, so that
 * making the instance anew, as often as need be, makes it once.
 */

/** A run that no instance began within this long is closed as `not_started`, ms. */
export const START_WITHIN_MS = 10 * MINUTE;
/** A run of this age is made good by the tick, ms: whoever admitted it has had time to make its instance himself. */
const MAKE_GOOD_AFTER_MS = 15 * SECOND;
/** Longest a run may take, ms: longer than an honest command, and its thread is busy meanwhile. */
export const RUN_MS = 30 * MINUTE;
/** How often the tick asks whether a running instance is still there, ms, and how many of them. */
const CHECK_AFTER_MS = 5 * MINUTE;
export const CHECKS_A_TICK = 1;
/** Runs that a tick makes good at a time, which is also what one call to the Workflow takes. */
const INSTANCES_A_CALL = 100;
/** A Workflow that takes longer counts as refusing, ms. What was asked may still land: its id is the run's. */
const CREATE_MS = 5 * SECOND;
/** The platform's code for an instance that exists already. */
const INSTANCE_EXISTS = 10_405;
/** How long ended runs are kept, ms, and how many are deleted when another ends. */
export const KEEP_RUNS_MS = 90 * DAY;
const FORGET_RUNS = 20;
/** Longest result that is kept, UTF-16 units of JSON. */
export const RESULT_CHARS = 64 * 1024;

/** The Workflow's name, as `wrangler.jsonc` has it. */
export const RUN_WORKFLOW = "run";

export type RunStatus = "admitted" | "running" | "succeeded" | "failed" | "cancelled" | "lost" | "not_started";

/** What must hold for a run to be admitted: asked inside the batch. */
export type AdmitIf =
  | { claim: { schedule: string; firing: string } }
  | { refire: { firing: string; run: string | null } }
  | { confirmation: string };

export interface NewRun {
  id: string;
  actor: string;
  actorKind: Exclude<ActorKind, "service">;
  /** JSON of what the actor holds. */
  grants: string;
  command: string;
  args: Record<string, unknown>;
  scope: string | null;
  channel: string;
  /** Null: a channel without threads. */
  thread: string | null;
  firing: string | null;
  admitIf?: AdmitIf;
}

export interface RunRow {
  id: string;
  actor: string;
  actor_kind: "user" | "schedule";
  grants: string;
  command: string;
  args: string;
  scope: string | null;
  channel: string;
  thread: string | null;
  firing: string | null;
  status: RunStatus;
  admitted_at: number;
  started_at: number | null;
  executing: 0 | 1;
  checked_at: number | null;
  ended_at: number | null;
  result: string | null;
  error: string | null;
}

/**
 * Admits runs: each takes its thread's live place, or is not written. Answers the ids of those that were.
 * A run that is there already is not admitted again.
 */
export function admit(db: D1Database, runs: readonly NewRun[], now: number): D1PreparedStatement {
  const rows = runs.map(({ admitIf, args, ...run }) => ({ ...run, args: JSON.stringify(args), ...guardOf(admitIf) }));
  return db
    .prepare(
      `INSERT INTO runs (id, actor, actor_kind, grants, command, args, scope, channel, thread, firing, status, admitted_at)
       SELECT j.value->>'id', j.value->>'actor', j.value->>'actorKind', j.value->>'grants', j.value->>'command',
         j.value->>'args', j.value->>'scope', j.value->>'channel', j.value->>'thread', j.value->>'firing', 'admitted', ?2
       FROM json_each(?1) j
       WHERE CASE j.value->>'guard'
         WHEN 'claim' THEN EXISTS (SELECT 1 FROM schedules WHERE id = j.value->>'ref' AND claim = j.value->>'with')
         WHEN 'refire' THEN EXISTS (SELECT 1 FROM firings f JOIN schedules s ON s.id = f.schedule AND s.claim = f.id
           WHERE f.id = j.value->>'ref' AND f.run IS j.value->>'with' AND f.outcome <> 'admitted')
         WHEN 'confirmation' THEN EXISTS (SELECT 1 FROM confirmations c
           WHERE c.id = j.value->>'ref' AND ${mayBeConfirmed("?2")})
         ELSE 1 END
       ON CONFLICT DO NOTHING RETURNING id`,
    )
    .bind(JSON.stringify(rows), now);
}

/** Of the confirmation `c`: it is still asked for, and nobody has confirmed the same message. */
function mayBeConfirmed(now: string): string {
  return `c.confirmed_at IS NULL AND c.expires_at > ${now}
    AND NOT EXISTS (SELECT 1 FROM confirmations d WHERE d.message = c.message AND d.confirmed_at IS NOT NULL)`;
}

function guardOf(admitIf: AdmitIf | undefined): { guard: string | null; ref: string | null; with: string | null } {
  if (admitIf === undefined) return { guard: null, ref: null, with: null };
  if ("claim" in admitIf) return { guard: "claim", ref: admitIf.claim.schedule, with: admitIf.claim.firing };
  if ("refire" in admitIf) return { guard: "refire", ref: admitIf.refire.firing, with: admitIf.refire.run };
  return { guard: "confirmation", ref: admitIf.confirmation, with: null };
}

/** Begins a run, or finds it begun; nothing when it has ended, or was never admitted. */
export function beginRun(db: D1Database, id: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE runs SET status = 'running', started_at = coalesce(started_at, ?2), checked_at = ?2
       WHERE id = ?1 AND ended_at IS NULL RETURNING *`,
    )
    .bind(id, now);
}

/** Says that a run's command may have had its effect from now on. Nothing when that was said before, or it has ended. */
export function beginEffect(db: D1Database, id: string): D1PreparedStatement {
  return db
    .prepare("UPDATE runs SET executing = 1 WHERE id = ?1 AND status = 'running' AND executing = 0 RETURNING id")
    .bind(id);
}

export interface RunEnd {
  status: "succeeded" | "failed" | "lost" | "cancelled";
  result: string | null;
  error: string | null;
}

/** Ends a live run, once. @param only `running` keeps a run that never began from ending by its own instance */
export function endRun(db: D1Database, id: string, end: RunEnd, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE runs SET status = ?2, result = ?3, error = ?4, ended_at = ?5
       WHERE id = ?1 AND ended_at IS NULL RETURNING *`,
    )
    .bind(id, end.status, end.result, end.error, now);
}

/**
 * Ends the run that gives a confirmation by a text in the very thread that asked for it, if the confirmation may still
 * be given: what is confirmed takes its place. In front of {@link admit}, in the same batch.
 */
export function yieldPlace(
  db: D1Database,
  { thread, confirmation, result }: { thread: string; confirmation: string; result: unknown },
  now: number,
): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE runs SET status = 'succeeded', result = ?3, ended_at = ?4
       WHERE thread = ?1 AND ended_at IS NULL AND command = 'run.confirm' AND args->>'id' = ?2
         AND EXISTS (SELECT 1 FROM confirmations c WHERE c.id = ?2 AND c.requester = runs.actor
           AND ${mayBeConfirmed("?4")})`,
    )
    .bind(thread, confirmation, JSON.stringify(result), now);
}

/**
 * Runs that need the tick: admitted and perhaps without an instance, or running and not looked at for a while. And those
 * whose instants are to come: a clock that was ahead and stepped back keeps nobody waiting until it is there again.
 */
export function readOpenRuns(db: D1Database, now: number): D1PreparedStatement {
  const columns = "id, status, admitted_at, started_at, thread, firing, command, actor";
  return db
    .prepare(
      `SELECT * FROM (SELECT ${columns} FROM runs WHERE ended_at IS NULL AND status = 'admitted'
           AND (admitted_at <= ?1 OR admitted_at > ?3) ORDER BY admitted_at LIMIT ${INSTANCES_A_CALL})
       UNION ALL
       SELECT * FROM (SELECT ${columns} FROM runs WHERE ended_at IS NULL AND status = 'running'
           AND (checked_at <= ?2 OR checked_at > ?4) ORDER BY checked_at LIMIT ${CHECKS_A_TICK})`,
    )
    .bind(now - MAKE_GOOD_AFTER_MS, now - CHECK_AFTER_MS, now + MAKE_GOOD_AFTER_MS, now + CHECK_AFTER_MS);
}

export type OpenRun = Pick<
  RunRow,
  "id" | "status" | "admitted_at" | "started_at" | "thread" | "firing" | "command" | "actor"
>;

/** Closes the runs that nobody began in time. Answers them. */
export function closeNotStarted(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE runs SET status = 'not_started', ended_at = ?1
       WHERE ended_at IS NULL AND status = 'admitted' AND admitted_at <= ?2 RETURNING id, command`,
    )
    .bind(now, now - START_WITHIN_MS);
}

/** Says that a running instance was looked at. */
export function putChecked(db: D1Database, ids: readonly string[], now: number): D1PreparedStatement {
  return db
    .prepare("UPDATE runs SET checked_at = ?2 WHERE id IN (SELECT value FROM json_each(?1)) AND status = 'running'")
    .bind(JSON.stringify(ids), now);
}

/** Deletes runs that ended long ago, a bounded number. */
export function forgetRuns(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE admitted_at < ?1 ORDER BY admitted_at, id LIMIT ?2)
         AND ended_at IS NOT NULL`,
    )
    .bind(now - KEEP_RUNS_MS, FORGET_RUNS);
}

/** One run. */
export function findRun(db: D1Database, id: string): D1PreparedStatement {
  return db.prepare("SELECT * FROM runs WHERE id = ?1").bind(id);
}

/** A page of runs, newest first, before the given one. */
export function listRuns(
  db: D1Database,
  before: { at: number; id: string } | null,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare("SELECT * FROM runs WHERE (admitted_at, id) < (?1, ?2) ORDER BY admitted_at DESC, id DESC LIMIT ?3")
    .bind(before?.at ?? Number.MAX_SAFE_INTEGER, before?.id ?? "", limit);
}

/** What became of making instances: the runs whose instance could not be made, and why. Those are made good later. */
export interface Started {
  failed: readonly { id: string; error: string }[];
  calls: number;
}

/**
 * Makes the runs' instances, a hundred a call. One that exists already is a success; one that is refused keeps none of
 * the others from being made. Never throws.
 */
export async function startInstances(workflow: Workflow | null, ids: readonly string[]): Promise<Started> {
  const failed: { id: string; error: string }[] = [];
  let calls = 0;
  for (let from = 0; from < ids.length; from += INSTANCES_A_CALL) {
    const part = ids.slice(from, from + INSTANCES_A_CALL);
    if (workflow === null) {
      failed.push(...part.map((id) => ({ id, error: "no Workflow is bound as RUN" })));
      continue;
    }
    calls += 1;
    try {
      const made = workflow.createBatch({ instances: part.map((id) => ({ id, params: { run: id } })) });
      const { errors } = await withDeadline(made, CREATE_MS, "the Workflow");
      const refused = errors.filter(({ code }) => code !== INSTANCE_EXISTS);
      failed.push(
        ...refused.map(({ id, index, code }) => ({
          id: id ?? part[index] ?? "",
          error: `the Workflow refused it: ${code}`,
        })),
      );
    } catch (error) {
      failed.push(...part.map((id) => ({ id, error: errorText(error) })));
    }
  }
  return { failed, calls };
}
