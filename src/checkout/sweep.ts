import { errorText } from "../core/text.ts";
import { laterOf } from "../core/time.ts";
import type { Ports } from "../core/ports.ts";
import { withDeadline } from "../db/deadline.ts";
import { isConstraint } from "../db/client.ts";
import type { BatchRow, Fence, Standing } from "../jobs/obligations.ts";
import type { AskStorefront } from "../jobs/quarantine.ts";
import { instanceIdOf, type Slot } from "../jobs/slots.ts";
import { beginStep, putStep, type StepOf } from "../jobs/steps.ts";
import { COMPLETE_MARGIN_MS, LEDGER_MS } from "./limits.ts";
import type { Progress, StoppedBy } from "./progress.ts";

/** The Workflow's name, as `wrangler.jsonc` has it. */
export const WORKFLOW = "checkout-expiry";

/** A checkout that was expired, and whose storefront shows it still. */
export interface ExpiredRow {
  checkoutId: string;
  workspaceId: string;
}

/** What one keyed call is asked: what expires at or before `now`, at most `limit`. The same key, the same answer. */
export interface ExpiryAsk {
  now: number;
  limit: number;
  key: string;
}

export type ExpiryAnswer = { ok: true; rows: readonly ExpiredRow[] } | { ok: false; kind: string; detail: string };

/** Where checkouts are. `d1`: in this database, so that expiring and recording commit together. */
export type Expiry =
  | { kind: "d1"; candidates: string; expire(db: D1Database, ask: ExpiryAsk): D1PreparedStatement }
  | { kind: "supabase"; ask(ask: ExpiryAsk, timeoutMs: number): Promise<ExpiryAnswer> };

/** One slot's run over owed and expired work, and all that it touches. */
export interface Sweep {
  slot: Slot;
  db: D1Database;
  ports: Pick<Ports, "clock" | "log">;
  expiry: Expiry;
  storefront: AskStorefront;
}

/** Ends a phase early; {@link phase} turns it into the progress's `stoppedBy`. */
export class Ended extends Error {
  override readonly name = "Ended";
  readonly by: StoppedBy;
  readonly detail: string | null;

  constructor(by: StoppedBy, detail: string | null = null) {
    super(by);
    this.by = by;
    this.detail = detail;
  }
}

/** Runs a phase on a copy of the progress and answers the copy, whatever ended it. */
export async function phase(before: Progress, work: (progress: Progress) => Promise<void>): Promise<Progress> {
  const progress = structuredClone(before);
  try {
    await work(progress);
  } catch (error) {
    if (!(error instanceof Ended)) throw error;
    progress.stoppedBy = error.by;
    progress.error = error.detail;
  }
  return progress;
}

/** The later of the clock and the claim: a claim's `now` may be ahead of the clock. */
export function nowOf({ slot, ports }: Sweep): number {
  return laterOf(ports.clock(), slot.claimedAt);
}

/** When the sweep's work ends, ms: what follows is its completion. */
export function workUntil({ slot }: Sweep): number {
  return slot.deadline - COMPLETE_MARGIN_MS;
}

/** What is left until `until`, at most `most`, ms. @throws Ended when nothing is: nothing starts at or after it. */
export function timeLeft(sweep: Sweep, until: number, most: number): number {
  const left = until - nowOf(sweep);
  if (left <= 0) throw new Ended("deadline");
  return Math.min(left, most);
}

/**
 * One call to the ledger. It is never repeated: what timed out may still land, and the next claim finds it.
 * @throws Ended by `deadline` before it is made, by `ledger` when it fails, by `room` when the bound refused it
 */
export async function askLedger(
  sweep: Sweep,
  progress: Progress,
  statements: D1PreparedStatement[],
  until = workUntil(sweep),
): Promise<D1Result<Record<string, unknown>>[]> {
  const limit = timeLeft(sweep, until, LEDGER_MS);
  progress.calls.ledger += 1;
  try {
    return await withDeadline(sweep.db.batch<Record<string, unknown>>(statements), limit, "the ledger");
  } catch (error) {
    throw isConstraint(error, "ledger_full") ? new Ended("room") : new Ended("ledger", errorText(error));
  }
}

/** The steps of an instance in their order; a batch's place is its number after the first two. */
export function stepOf({ slot }: Sweep, name: string): StepOf {
  const batch = /^batch-(\d+)$/.exec(name)?.[1];
  const position = batch === undefined ? ["reconcile", "owed"].indexOf(name) : Number(batch) + 1;
  return { workflow: WORKFLOW, instance: instanceIdOf(slot), position: position < 0 ? 12 : position, name };
}

/** The first ledger call of a step: begins it, and goes on from what an earlier run of the same step has kept. */
export async function beginPhase(
  sweep: Sweep,
  progress: Progress,
  name: string,
  statements: D1PreparedStatement[],
  until = workUntil(sweep),
): Promise<D1Result<Record<string, unknown>>[]> {
  const begin = beginStep(sweep.db, stepOf(sweep, name), progress, nowOf(sweep));
  const [begun, ...results] = await askLedger(sweep, progress, [begin, ...statements], until);
  const kept = JSON.parse(String(begun?.results[0]?.progress)) as Progress;
  kept.calls.ledger += 1;
  Object.assign(progress, kept);
  return results;
}

/** @throws Ended when the claim is no longer this one's, or the job is stopped */
export function mayGoOn(result: D1Result | undefined): void {
  const fence = result?.results[0] as Fence | undefined;
  if (fence === undefined || fence.mine === 0) throw new Ended("lost", "a later claim was given");
  if (fence.stopped === 1) throw new Ended("stop");
}

/** Takes in how the job stands. @throws Ended when the claim is no longer this one's */
export function heed(progress: Progress, result: D1Result | undefined): Standing {
  const standing = result?.results[0] as Standing | undefined;
  if (standing === undefined || standing.mine === 0) throw new Ended("lost", "a later claim was given");
  progress.owed = standing.owed;
  progress.quarantined = standing.quarantined;
  return standing;
}

export function batchOf(result: D1Result | undefined): BatchRow | undefined {
  return result?.results[0] as BatchRow | undefined;
}

/** Keeps what the step has done so far, in the batch of the work itself; the call that carries it is counted. */
export function keepStep(sweep: Sweep, progress: Progress, name: string): D1PreparedStatement {
  const { calls } = progress;
  const kept = { ...progress, calls: { ...calls, ledger: calls.ledger + 1 } };
  return putStep(sweep.db, stepOf(sweep, name), kept, nowOf(sweep));
}
