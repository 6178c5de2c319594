import { tellOfJob } from "../jobs/alerts.ts";
import { completeSlot, type SlotResult } from "../jobs/slots.ts";
import { HELD_ALERT } from "./limits.ts";
import { completionOf, type Progress } from "./progress.ts";
import { askLedger, keepStep, nowOf, type Sweep } from "./sweep.ts";

/** How a slot ended; null: not by this sweep. It was too late, or a later claim was given. */
export interface Completed {
  result: SlotResult | null;
}

/**
 * Ends the slot. What cannot be confirmed is not claimed to be done: then the next claim charges the slot `unknown`.
 * @throws Ended when the ledger does not answer
 */
export async function complete(sweep: Sweep, done: Progress): Promise<Completed> {
  const { db, slot, ports } = sweep;
  if (nowOf(sweep) >= slot.deadline || done.stoppedBy === "lost") return { result: null };
  const calls = { ...done.calls, ledger: done.calls.ledger + 1 };
  const completion = completionOf({ ...done, calls });
  const { job, slot: minute, generation } = slot;
  const results = await askLedger(
    sweep,
    structuredClone(done),
    [
      ...completeSlot(db, slot, completion, nowOf(sweep)),
      keepStep(sweep, done, "complete"),
      db
        .prepare("SELECT result FROM slots WHERE job = ?1 AND slot = ?2 AND generation = ?3")
        .bind(job, minute, generation),
    ],
    slot.deadline,
  );
  const result = (results.at(-1)?.results[0]?.result ?? null) as SlotResult | null;
  const level = result === "succeeded" ? "info" : "warn";
  ports.log({ event: "slot_completed", level, job, slot: minute, result, detail: completion.detail });
  tellOfJob(ports, slot, results[0]);
  const held = done.owed + done.quarantined;
  if (held >= HELD_ALERT) ports.log({ event: "ledger_filling", level: "error", job, held });
  return { result };
}
