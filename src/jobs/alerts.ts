import * as v from "valibot";
import type { Ports } from "../core/ports.ts";
import { type Slot, STALLED_ALERT } from "./slots.ts";

const countsRow = v.object({ stalled: v.number(), stopped: v.nullable(v.number()) });

/** Says what a person must know after a completion, from the first result of `completeSlot`. */
export function tellOfJob(
  { log }: Pick<Ports, "log">,
  { job, slot }: Pick<Slot, "job" | "slot">,
  result: D1Result | undefined,
): void {
  const counts = v.safeParse(countsRow, result?.results[0]);
  if (!counts.success) return;
  if (counts.output.stopped === 1)
    log({ event: "job_stopped", level: "error", job, slot, reason: "too many slots failed" });
  else if (counts.output.stalled >= STALLED_ALERT) log({ event: "job_stalled", level: "error", job, slot });
}
