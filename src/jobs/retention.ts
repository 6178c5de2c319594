import { DAY } from "../core/time.ts";
import { job, type SlotContext } from "./catalog.ts";
import { forgetBatches } from "./obligations.ts";
import { type Completion, forgetSlots, readJobIds, type Slot } from "./slots.ts";
import { forgetSteps } from "./steps.ts";

/** How long the records of slots, steps and closed batches are kept, ms. The newest slot of each job stays. */
export const KEEP_SLOTS_MS = 30 * DAY;
/** Rows of one kind deleted in one run; slots, of one job. A job of every five minutes makes 12 slots in an hour. */
const FORGET_ROWS = 500;

/** Keeps the runtime's own records of jobs from growing. Bounded in each run; what is left is taken by the next. */
export const recordsRetention = job({
  id: "records-retention",
  cron: "17 * * * *",
  processor: { kind: "module", handle: forgetOldRecords },
});

async function forgetOldRecords(_: Slot, { db, now, mayGoOn }: SlotContext): Promise<Completion> {
  const before = now - KEEP_SLOTS_MS;
  const { results } = await readJobIds(db).all<{ id: string }>();
  const statements = [
    ...results.map(({ id }) => forgetSlots(db, id, before, FORGET_ROWS)),
    forgetSteps(db, before, FORGET_ROWS),
    forgetBatches(db, before, FORGET_ROWS),
  ];
  let forgotten = 0;
  for (const statement of statements) {
    if (!(await mayGoOn())) break;
    forgotten += (await statement.run()).meta.changes;
  }
  return { result: "succeeded", progress: true, detail: { forgotten } };
}
