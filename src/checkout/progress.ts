import type { Completion } from "../jobs/slots.ts";

/**
 * What kept a sweep from going on: `stop` the job was stopped, `lost` a later claim was given, `deadline`, `room` no
 * room for a batch, `owed` work is owed still, `chunks` and `batches` as many as a sweep may ask for, `expiry` and
 * `ledger` failed.
 */
export type StoppedBy = "stop" | "lost" | "deadline" | "room" | "owed" | "chunks" | "batches" | "expiry" | "ledger";

/** What a sweep has done so far. Travels from step to step, so it is plain data. */
export interface Progress {
  expired: number;
  batches: number;
  /** The last batch that is in `expired`. */
  lastBatch: number;
  /** A batch came back shorter than asked. */
  drained: boolean;
  chunks: { owed: number; fresh: number };
  /** The storefront answered about some chunk. */
  reached: boolean;
  revalidated: number;
  /** Held, as last read. */
  owed: number;
  quarantined: number;
  stoppedBy: StoppedBy | null;
  error: string | null;
  calls: { ledger: number; expiry: number; storefront: number };
}

/** The tick's claim is the first call to the ledger. */
const CLAIM_CALLS = 1;

export function newProgress(): Progress {
  return {
    expired: 0,
    batches: 0,
    lastBatch: 0,
    drained: false,
    chunks: { owed: 0, fresh: 0 },
    reached: false,
    revalidated: 0,
    owed: 0,
    quarantined: 0,
    stoppedBy: null,
    error: null,
    calls: { ledger: CLAIM_CALLS, expiry: 0, storefront: 0 },
  };
}

/** How the slot ends. Work that remains is never a success; a storefront that nobody reached is a failure. Pure. */
export function completionOf(progress: Progress): Completion {
  const { expired, batches, chunks, revalidated, owed, quarantined, stoppedBy, error, calls } = progress;
  const asked = chunks.owed + chunks.fresh;
  const broken = stoppedBy === "expiry" || stoppedBy === "ledger" || stoppedBy === "lost";
  const detail = {
    expired,
    batches,
    chunks: asked,
    revalidated,
    owed,
    quarantined,
    stoppedBy,
    calls,
    ...(error !== null && { error }),
  };
  if (broken || (asked > 0 && !progress.reached)) return { result: "failed", progress: false, detail };
  const whole = stoppedBy === null && owed === 0 && quarantined === 0;
  return whole
    ? { result: "succeeded", progress: true, detail }
    : { result: "degraded", progress: expired + revalidated > 0, detail };
}
