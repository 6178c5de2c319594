import type { Slot } from "./slots.ts";

/**
 * Every statement that writes the ledger of owed work: `obligations`, `charges`, `settlements`, `expiry_batches`.
 *
 * Settling and charging are fenced by the claim: `(job, generation, slot)` that has not been completed. Recording what
 * an expiry did is fenced by its open key alone, since an effect that has happened must be recorded whoever learns of it.
 */

/** Obligations that a job may hold, owed and quarantined together. */
export const LEDGER_BOUND = 5_000;
/** Charges that quarantine. */
export const CHARGES_MAX = 3;

/** The claim that a statement is fenced by. */
export type Claim = Pick<Slot, "job" | "slot" | "generation">;

/** An obligation that is asked about: a receipt settles this version only. */
export interface Owed {
  workspace: string;
  version: number;
}

export interface OwedRow extends Owed {
  since: number;
}

/** Whether work may go on. */
export interface Fence {
  /** This claim is the newest and has not been completed. */
  mine: 0 | 1;
  stopped: 0 | 1;
}

/** How the job stands. */
export interface Standing extends Fence {
  owed: number;
  quarantined: number;
}

/** A batch as it is kept under its key. */
export interface BatchRow {
  key: string;
  number: number;
  adapter: "d1" | "supabase";
  expired_before: number;
  asked: number;
  closed_at: number | null;
  expired: number | null;
}

export interface ObligationRow extends OwedRow {
  state: "owed" | "quarantined";
  charges: number;
  quarantined_at: number | null;
  error: string | null;
}

/** The claim's own fence, over the parameters ?1 job, ?2 generation, ?3 slot. */
const MINE = "EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND generation = ?2 AND last_slot = ?3 AND claimed = 1)";

/** How the job stands; no row when it was never claimed. Reads as many rows as it holds. */
export function readStanding(db: D1Database, { job, generation, slot }: Claim): D1PreparedStatement {
  return db
    .prepare(
      `SELECT (generation = ?2 AND last_slot = ?3 AND claimed = 1) AS mine, stopped_at IS NOT NULL AS stopped,
         (SELECT count(*) FROM obligations WHERE job = ?1 AND state = 'owed') AS owed,
         (SELECT count(*) FROM obligations WHERE job = ?1 AND state = 'quarantined') AS quarantined
       FROM jobs WHERE id = ?1`,
    )
    .bind(job, generation, slot);
}

/** Whether the claim still holds and the job is not stopped: the check before each request. */
export function readFence(db: D1Database, { job, generation, slot }: Claim): D1PreparedStatement {
  return db
    .prepare(
      `SELECT (generation = ?2 AND last_slot = ?3 AND claimed = 1) AS mine, stopped_at IS NOT NULL AS stopped
       FROM jobs WHERE id = ?1`,
    )
    .bind(job, generation, slot);
}

/** The keys whose effect may have happened and is not recorded. At most one a job. */
export function readOpenBatches(db: D1Database, job: string): D1PreparedStatement {
  return db.prepare("SELECT * FROM expiry_batches WHERE job = ?1 AND closed_at IS NULL").bind(job);
}

export function readBatch(db: D1Database, key: string): D1PreparedStatement {
  return db.prepare("SELECT * FROM expiry_batches WHERE key = ?1").bind(key);
}

/** The oldest owed work that this sweep has not charged yet, after `after`. */
export function readOwed(
  db: D1Database,
  { job, slot }: Claim,
  after: OwedRow | null,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare(
      `SELECT workspace, version, since FROM obligations o
       WHERE job = ?1 AND state = 'owed' AND (since, workspace) > (?3, ?4)
         AND NOT EXISTS (SELECT 1 FROM charges c WHERE c.job = ?1 AND c.workspace = o.workspace AND c.slot = ?2)
       ORDER BY since, workspace LIMIT ?5`,
    )
    .bind(job, slot, after?.since ?? -1, after?.workspace ?? "", limit);
}

/** What {@link openBatch} opens. */
export interface NewBatch {
  key: string;
  number: number;
  adapter: "d1" | "supabase";
  /** What expires at or before it is asked for, ms: one for the whole sweep. */
  now: number;
  limit: number;
}

/**
 * Opens a batch: stores its key before anything is asked for under it, unless the job is stopped or claimed anew, owes
 * work, has another key open, or has no room left for `limit` workspaces. Opening again what is there changes nothing.
 */
export function openBatch(db: D1Database, claim: Claim, batch: NewBatch, at: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO expiry_batches (key, job, slot, generation, number, adapter, expired_before, asked, opened_at)
       SELECT ?4, ?1, ?3, ?2, ?5, ?6, ?7, ?8, ?9
       WHERE ${MINE} AND (SELECT stopped_at FROM jobs WHERE id = ?1) IS NULL
         AND NOT EXISTS (SELECT 1 FROM expiry_batches WHERE job = ?1 AND closed_at IS NULL)
         AND NOT EXISTS (SELECT 1 FROM obligations WHERE job = ?1 AND state = 'owed')
         AND (SELECT count(*) FROM obligations WHERE job = ?1) + ?8 <= ?10
       ON CONFLICT (key) DO NOTHING`,
    )
    .bind(
      claim.job,
      claim.generation,
      claim.slot,
      batch.key,
      batch.number,
      batch.adapter,
      batch.now,
      batch.limit,
      at,
      LEDGER_BOUND,
    );
}

/** Keeps, for the rest of the same call, what an expiry answered under an open key. */
export function putRows(
  db: D1Database,
  key: string,
  rows: readonly { checkoutId: string; workspaceId: string }[],
): D1PreparedStatement {
  return db
    .prepare("UPDATE expiry_batches SET rows = ?2 WHERE key = ?1 AND closed_at IS NULL")
    .bind(key, JSON.stringify(rows.map(({ checkoutId, workspaceId }) => [checkoutId, workspaceId])));
}

/**
 * The same for tables of this database: `candidates` is a SELECT of `id` and `workspace` with ?2 = the instant and
 * ?3 = the limit.
 */
export function selectRows(db: D1Database, { key, now, limit }: NewBatch, candidates: string): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE expiry_batches SET rows = (SELECT coalesce(json_group_array(json_array(id, workspace)), '[]') FROM (${candidates}))
       WHERE key = ?1 AND closed_at IS NULL`,
    )
    .bind(key, now, limit);
}

/** The ids that {@link selectRows} kept under the key ?1, for the statement that changes them. */
export const KEPT_IDS =
  "SELECT j.value ->> 0 FROM expiry_batches b, json_each(b.rows) j WHERE b.key = ?1 AND b.closed_at IS NULL";

/**
 * Records the kept rows as owed, refuses the whole batch beyond the bound, and closes the key: statements for one
 * batch, to which a key that is closed already makes no difference. A workspace that is held already has its version
 * raised; quarantined, it stays so.
 * @throws when run, `ledger_full` by the constraint of that name
 */
export function recordRows(db: D1Database, job: string, key: string, at: number): D1PreparedStatement[] {
  return [
    db
      .prepare(
        `INSERT INTO obligations (job, workspace, state, version, since)
         SELECT DISTINCT ?1, j.value ->> 1, 'owed', 1, ?3 FROM expiry_batches b, json_each(b.rows) j
         WHERE b.key = ?2 AND b.closed_at IS NULL
         ON CONFLICT (job, workspace) DO UPDATE SET version = version + 1`,
      )
      .bind(job, key, at),
    db
      .prepare(
        "INSERT INTO ledger_bounds (room) SELECT ?2 - count(*) FROM obligations WHERE job = ?1 HAVING count(*) > ?2",
      )
      .bind(job, LEDGER_BOUND),
    db
      .prepare(
        `UPDATE expiry_batches SET expired = json_array_length(rows), rows = NULL, closed_at = ?2
         WHERE key = ?1 AND closed_at IS NULL AND rows IS NOT NULL`,
      )
      .bind(key, at),
  ];
}

/** What one request told: who is confirmed, and who is to be charged for not having been. */
export interface Findings {
  confirmed: readonly Owed[];
  charged: readonly { workspace: string; error: string }[];
}

/**
 * Settles the versions that were confirmed and charges the rest, once a sweep; the third charge quarantines. At most
 * four statements for one batch, which do nothing under any other claim; with somebody confirmed, the first answers in
 * its `changes` how many were settled.
 */
export function settleAndCharge(
  db: D1Database,
  claim: Claim,
  { confirmed, charged }: Findings,
  at: number,
): D1PreparedStatement[] {
  return [
    ...(confirmed.length > 0 ? settle(db, claim, confirmed) : []),
    ...(charged.length > 0 ? charge(db, claim, charged, at) : []),
  ];
}

function settle(db: D1Database, { job, generation, slot }: Claim, confirmed: Findings["confirmed"]) {
  const settled = JSON.stringify(confirmed.map(({ workspace, version }) => [workspace, version]));
  return [
    db
      .prepare(
        `DELETE FROM obligations WHERE job = ?1 AND state = 'owed' AND ${MINE}
           AND (workspace, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?4))`,
      )
      .bind(job, generation, slot, settled),
    dropCharges(db, job, settled),
  ];
}

/** By key from the few that are charged: CROSS JOIN and +state keep SQLite from reading all that is owed instead. */
function charge(db: D1Database, { job, generation, slot }: Claim, charged: Findings["charged"], at: number) {
  const unconfirmed = JSON.stringify(charged.map(({ workspace, error }) => [workspace, error]));
  return [
    db
      .prepare(
        `INSERT INTO charges (job, workspace, slot, generation, charged_at, error)
         SELECT ?1, o.workspace, ?3, ?2, ?5, j.value ->> 1
         FROM json_each(?4) j CROSS JOIN obligations o ON o.job = ?1 AND o.workspace = j.value ->> 0 AND o.state = 'owed'
         WHERE ${MINE} ON CONFLICT (job, workspace, slot) DO NOTHING`,
      )
      .bind(job, generation, slot, unconfirmed, at),
    db
      .prepare(
        `UPDATE obligations SET (charges, state, quarantined_at, error) =
           (SELECT min(count(*), ?6), iif(count(*) >= ?6, 'quarantined', 'owed'), iif(count(*) >= ?6, ?5, NULL),
              max(iif(c.slot = ?3, c.error, NULL))
            FROM charges c WHERE c.job = ?1 AND c.workspace = obligations.workspace)
         WHERE job = ?1 AND +state = 'owed' AND ${MINE} AND workspace IN (SELECT value ->> 0 FROM json_each(?4))`,
      )
      .bind(job, generation, slot, unconfirmed, at, CHARGES_MAX),
  ];
}

/** The charges of workspaces that are held no more. @param items JSON: `[[workspace, …], …]` */
function dropCharges(db: D1Database, job: string, items: string): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM charges WHERE job = ?1 AND workspace IN (SELECT value ->> 0 FROM json_each(?2))
         AND NOT EXISTS (SELECT 1 FROM obligations o WHERE o.job = ?1 AND o.workspace = charges.workspace)`,
    )
    .bind(job, items);
}

/** Who settles quarantined work, and why. */
export interface Settler {
  how: "by hand" | "revalidated";
  by: string;
  reason: string;
}

/** Quarantined work among these workspaces. */
export function readQuarantined(db: D1Database, job: string, workspaces: readonly string[]): D1PreparedStatement {
  return db
    .prepare(
      `SELECT workspace, version, since, state, charges, quarantined_at, error FROM obligations
       WHERE job = ?1 AND state = 'quarantined' AND workspace IN (SELECT value FROM json_each(?2))`,
    )
    .bind(job, JSON.stringify(workspaces));
}

/**
 * Settles quarantined work of exactly these versions, and keeps who did it and why: three statements for one batch, the
 * first of which answers the workspaces it settled.
 */
export function settleQuarantined(
  db: D1Database,
  job: string,
  items: readonly Owed[],
  { how, by, reason }: Settler,
  at: number,
): D1PreparedStatement[] {
  const asked = JSON.stringify(items.map(({ workspace, version }) => [workspace, version]));
  return [
    db
      .prepare(
        `INSERT INTO settlements (job, settled_at, workspace, version, since, how, settled_by, reason, error)
         SELECT job, ?3, workspace, version, since, ?4, ?5, ?6, error FROM obligations
         WHERE job = ?1 AND state = 'quarantined'
           AND (workspace, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?2))
         ON CONFLICT (job, settled_at, workspace) DO UPDATE SET
           version = excluded.version, how = excluded.how, settled_by = excluded.settled_by, reason = excluded.reason
         RETURNING workspace`,
      )
      .bind(job, asked, at, how, by, reason),
    db
      .prepare(
        `DELETE FROM obligations WHERE job = ?1 AND state = 'quarantined'
           AND (workspace, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?2))`,
      )
      .bind(job, asked),
    dropCharges(db, job, asked),
  ];
}

/** A page of a job's obligations in one state, oldest first, after the given one. */
export function listObligations(
  db: D1Database,
  job: string,
  state: ObligationRow["state"],
  after: Pick<OwedRow, "since" | "workspace"> | null,
  limit: number,
): D1PreparedStatement {
  return db
    .prepare(
      `SELECT workspace, version, since, state, charges, quarantined_at, error FROM obligations
       WHERE job = ?1 AND state = ?2 AND (since, workspace) > (?3, ?4) ORDER BY since, workspace LIMIT ?5`,
    )
    .bind(job, state, after?.since ?? -1, after?.workspace ?? "", limit);
}

/** Deletes batches that were closed before `before`, a bounded number a call. An open key is never forgotten. */
export function forgetBatches(db: D1Database, before: number, limit: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM expiry_batches WHERE key IN (
         SELECT key FROM expiry_batches WHERE closed_at IS NOT NULL AND closed_at < ?1 ORDER BY closed_at LIMIT ?2)`,
    )
    .bind(before, limit);
}
