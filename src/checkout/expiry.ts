import { errorText } from "../core/text.ts";
import { withDeadline } from "../db/deadline.ts";
import {
  type BatchRow,
  LEDGER_BOUND,
  type NewBatch,
  openBatch,
  putRows,
  readBatch,
  readOpenBatches,
  readStanding,
  recordRows,
  selectRows,
  type Standing,
} from "../jobs/obligations.ts";
import { instanceIdOf } from "../jobs/slots.ts";
import { BATCH_ROWS, CHUNKS, EXPIRY_CALLS, EXPIRY_MS, OWED_MS } from "./limits.ts";
import type { Progress } from "./progress.ts";
import { revalidateOwed } from "./revalidate.ts";
import {
  askLedger,
  batchOf,
  beginPhase,
  Ended,
  type Expiry,
  type ExpiredRow,
  heed,
  keepStep,
  nowOf,
  phase,
  type Sweep,
  timeLeft,
  workUntil,
} from "./sweep.ts";

/**
 * The phases of a sweep, one step of the Workflow each. A phase reads the ledger before it does anything, so that one
 * that runs again finds what it has done, and asks only for what is open.
 */

/** Reads how the job stands, and asks again under a key whose effect may have happened and is not recorded. */
export function reconcile(sweep: Sweep, before: Progress): Promise<Progress> {
  const { db, slot } = sweep;
  return phase(before, async (progress) => {
    const reads = [readStanding(db, slot), readOpenBatches(db, slot.job)];
    const [standing, open] = await beginPhase(sweep, progress, "reconcile", reads);
    if (heed(progress, standing).stopped === 1) throw new Ended("stop");
    const batch = batchOf(open);
    if (batch === undefined) return;
    if (sweep.expiry.kind === "d1" || batch.adapter !== sweep.expiry.kind) {
      throw new Ended("expiry", `batch ${batch.key} is open with the adapter ${batch.adapter}: set it up again`);
    }
    await expireOverCall(sweep, progress, sweep.expiry, batch, "reconcile");
  });
}

/** Asks the storefront about what was owed before this sweep. */
export function revalidate(sweep: Sweep, before: Progress): Promise<Progress> {
  return phase(before, async (progress) => {
    const until = Math.min(nowOf(sweep) + OWED_MS, workUntil(sweep));
    await revalidateOwed(sweep, progress, { which: "owed", name: "owed", until, begins: true });
    if (progress.owed > 0) throw new Ended("owed", progress.error);
  });
}

/** Expires a batch, records what is owed for it, and asks the storefront. Nothing is expired while anything is owed. */
export function expireBatch(sweep: Sweep, before: Progress, number: number): Promise<Progress> {
  const { slot, expiry } = sweep;
  const name = `batch-${number}`;
  return phase(before, async (progress) => {
    const key = `${instanceIdOf(slot)}-${number}`;
    const batch: NewBatch = { key, number, adapter: expiry.kind, now: slot.claimedAt, limit: BATCH_ROWS };
    const expired =
      expiry.kind === "d1"
        ? await expireInLedger(sweep, progress, expiry, batch, name)
        : await openAndExpire(sweep, progress, expiry, batch, name);
    if (progress.owed > 0) {
      const part = { which: "fresh", name, until: workUntil(sweep), begins: false } as const;
      await revalidateOwed(sweep, progress, part);
    }
    progress.drained = expired < BATCH_ROWS;
    if (progress.owed > 0) throw new Ended("owed", progress.error);
    if (progress.drained) return;
    if (progress.calls.expiry >= EXPIRY_CALLS) throw new Ended("batches");
    if (progress.chunks.fresh >= CHUNKS.fresh) throw new Ended("chunks");
  });
}

/** The checkouts are in the ledger's database: key, expiry, obligations and the key's closing are one call. */
async function expireInLedger(
  sweep: Sweep,
  progress: Progress,
  expiry: Extract<Expiry, { kind: "d1" }>,
  batch: NewBatch,
  name: string,
): Promise<number> {
  const { db, slot } = sweep;
  const at = nowOf(sweep);
  timeLeft(sweep, workUntil(sweep), EXPIRY_MS);
  progress.calls.expiry += 1;
  const results = await beginPhase(sweep, progress, name, [
    openBatch(db, slot, batch, at),
    selectRows(db, batch, expiry.candidates),
    expiry.expire(db, batch),
    ...recordRows(db, slot.job, batch.key, slot.claimedAt),
    readBatch(db, batch.key),
    readStanding(db, slot),
  ]);
  const [row, standing] = results.slice(-2);
  return count(progress, batchOf(row), heed(progress, standing));
}

/** The checkouts are elsewhere: the key is stored open, the call is made under it, and what it answered is recorded. */
async function openAndExpire(
  sweep: Sweep,
  progress: Progress,
  expiry: Extract<Expiry, { kind: "supabase" }>,
  batch: NewBatch,
  name: string,
): Promise<number> {
  const { db, slot } = sweep;
  const [, row, standing] = await beginPhase(sweep, progress, name, [
    openBatch(db, slot, batch, nowOf(sweep)),
    readBatch(db, batch.key),
    readStanding(db, slot),
  ]);
  const opened = batchOf(row);
  const now = heed(progress, standing);
  if (opened === undefined || opened.closed_at !== null) return count(progress, opened, now);
  if (now.stopped === 1) throw new Ended("stop");
  return expireOverCall(sweep, progress, expiry, opened, name);
}

/**
 * Asks under an open key and records the answer. When there is none, or none that can be read, the key stays open: the
 * call may have landed, and the next claim asks again under the same key.
 */
async function expireOverCall(
  sweep: Sweep,
  progress: Progress,
  expiry: Extract<Expiry, { kind: "supabase" }>,
  batch: BatchRow,
  name: string,
): Promise<number> {
  const { db, slot } = sweep;
  const { key, asked: limit, expired_before: now } = batch;
  const timeout = timeLeft(sweep, workUntil(sweep), EXPIRY_MS);
  progress.calls.expiry += 1;
  const rows = await askExpiry(expiry, { key, limit, now }, timeout);
  progress.batches += 1;
  progress.expired += rows.length;
  progress.lastBatch = name === "reconcile" ? 0 : batch.number;
  const results = await askLedger(sweep, progress, [
    putRows(db, key, rows),
    ...recordRows(db, slot.job, key, slot.claimedAt),
    keepStep(sweep, progress, name),
    readStanding(db, slot),
  ]);
  heed(progress, results.at(-1));
  return rows.length;
}

async function askExpiry(
  expiry: Extract<Expiry, { kind: "supabase" }>,
  ask: Parameters<typeof expiry.ask>[0],
  timeout: number,
): Promise<readonly ExpiredRow[]> {
  let answer: Awaited<ReturnType<typeof expiry.ask>>;
  try {
    answer = await withDeadline(expiry.ask(ask, timeout), timeout, "the expiry");
  } catch (error) {
    throw new Ended("expiry", errorText(error));
  }
  if (!answer.ok) throw new Ended("expiry", `${answer.kind}: ${answer.detail}`);
  if (answer.rows.length > ask.limit) throw new Ended("expiry", `malformed: more than the ${ask.limit} rows asked for`);
  return answer.rows;
}

/** Takes in a closed batch, once. @throws Ended saying why there is none */
function count(progress: Progress, batch: BatchRow | undefined, standing: Standing): number {
  if (batch === undefined) throw refusal(standing);
  if (batch.expired === null) throw new Ended("expiry", `batch ${batch.key} is open`);
  if (progress.lastBatch < batch.number) {
    progress.batches += 1;
    progress.expired += batch.expired;
    progress.lastBatch = batch.number;
  }
  return batch.expired;
}

/** Why the ledger opened no batch. */
function refusal({ stopped, owed, quarantined }: Standing): Ended {
  if (stopped === 1) return new Ended("stop");
  if (owed > 0) return new Ended("owed");
  if (owed + quarantined + BATCH_ROWS > LEDGER_BOUND) return new Ended("room");
  return new Ended("expiry", "another batch is open");
}
