import { complete, type Completed } from "./complete.ts";
import { expireBatch, reconcile, revalidate } from "./expiry.ts";
import { EXPIRY_CALLS } from "./limits.ts";
import { newProgress, type Progress } from "./progress.ts";
import type { Sweep } from "./sweep.ts";

/** Runs one named step, and keeps its answer: plain data. */
export type RunStep = <T extends Progress | Completed>(name: string, work: () => Promise<T>) => Promise<T>;

/**
 * One slot of checkout expiry: first what is owed, then fresh batches while nothing is. An instance that begins at or
 * after its deadline makes no call.
 */
export async function runSweep(sweep: Sweep, step: RunStep): Promise<Completed> {
  let progress = await step("reconcile", () => reconcile(sweep, newProgress()));
  if (goesOn(progress) && progress.owed > 0) {
    const before = progress;
    progress = await step("owed", () => revalidate(sweep, before));
  }
  for (let number = 1; number <= EXPIRY_CALLS && goesOn(progress); number += 1) {
    const before = progress;
    progress = await step(`batch-${number}`, () => expireBatch(sweep, before, number));
  }
  const done = progress;
  return step("complete", () => complete(sweep, done));
}

function goesOn({ stoppedBy, drained }: Progress): boolean {
  return stoppedBy === null && !drained;
}
