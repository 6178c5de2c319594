import { DAY } from "../core/time.ts";
import { job, type SlotContext } from "./catalog.ts";
import { type Completion, forgetSlots, readJobIds, type Slot } from "./slots.ts";

/** How long a slot's record is kept, ms. The newest of each job stays. */
export const KEEP_SLOTS_MS = 30 * DAY;
/** Slots of one job deleted in one run: twice what a job of every five minutes makes in an hour. */
const FORGET_SLOTS = 500;

/** Keeps the runtime's own records of jobs from growing. Bounded in each run; what is left is taken by the next. */
export const recordsRetention = job({
  id: "records-retention",
  cron: "17 * * * *",
  processor: { kind: "module", handle: forgetOldSlots },
});

async function forgetOldSlots(_: Slot, { db, now, signal }: SlotContext): Promise<Completion> {
  const { results } = await readJobIds(db).all<{ id: string }>();
  let forgotten = 0;
  for (const { id } of results) {
    if (signal.aborted) break;
    const { meta } = await forgetSlots(db, id, now - KEEP_SLOTS_MS, FORGET_SLOTS).run();
    forgotten += meta.changes;
  }
  return { result: "succeeded", progress: true, detail: { forgotten } };
}
