import { latestDue, MISSED_MAX } from "../core/calendar.ts";
import { MINUTE } from "../core/time.ts";
import type { ActiveJob } from "./selection.ts";
import type { DueSlot, JobRow } from "./slots.ts";

/**
 * The present minute of a job, for a hand that fires it, whether the cron has it or not. It stands for what was due since
 * the last one claimed, as a tick's claim does. Pure.
 */
export function presentSlot({ job, kind }: ActiveJob, row: JobRow | undefined, now: number): DueSlot {
  const slot = Math.floor(now / MINUTE) * MINUTE;
  const since = row?.last_slot ?? null;
  const before = since === null ? null : latestDue(job.cron, since, slot - 1, job.timeZone);
  const missed = before === null ? 0 : Math.min(before.missed + 1, MISSED_MAX);
  return { job: job.id, slot, missed, since, processor: kind };
}

/**
 * The due minute of a job that a tick may claim, or null: the latest at or before `now` that is after the last one
 * claimed, with how many were passed over. A job that was never claimed counts from the minute before, so that it does
 * not make up for the time before it was there. While a claim's lease lives nothing is due: it coalesces. Pure.
 */
export function dueSlot({ job, kind }: ActiveJob, row: JobRow | undefined, now: number): DueSlot | null {
  if (row !== undefined && row.stopped_at !== null) return null;
  if (row !== undefined && row.claimed === 1 && (row.lease_until ?? 0) > now) return null;
  const due = latestDue(job.cron, row?.last_slot ?? now - MINUTE, now, job.timeZone);
  if (due === null) return null;
  return { job: job.id, slot: due.slot, missed: due.missed, since: row?.last_slot ?? null, processor: kind };
}
