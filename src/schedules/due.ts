import { type Due, latestDue } from "../core/calendar.ts";
import type { ReadRow } from "./rows.ts";

/**
 * The due minute of a row at `now`, or null: the latest after the last one claimed, and after it was added or last
 * enabled. It stands for all that were missed. Pure.
 */
export function dueOf({ row, when }: ReadRow, now: number): Due | null {
  if (when === null) return null;
  return latestDue(when.cron, sinceOf(row), now, when.zone);
}

/** What a row's due minutes are counted from, ms. */
export function sinceOf({ last_slot, anchored_at }: ReadRow["row"]): number {
  return Math.max(last_slot ?? anchored_at, anchored_at);
}
