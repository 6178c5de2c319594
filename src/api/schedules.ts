import * as v from "valibot";
import type { Refusal } from "../core/errors.ts";
import { isoInstant } from "../core/time.ts";
import { type FiringRow, listFirings } from "../schedules/firings.ts";
import { readPage } from "./page.ts";
import { listSchema } from "./request.ts";

export const firingsQuery = v.strictObject({
  ...listSchema.entries,
  schedule: v.optional(v.pipe(v.string(), v.nonEmpty(), v.maxLength(63))),
});

/** A page of firings, newest first; of one schedule's name, also after it was removed. */
export function readFirings(db: D1Database, query: v.InferOutput<typeof firingsQuery>): Promise<object | Refusal> {
  const { schedule = null } = query;
  return readPage(
    query,
    { list: "firings", of: schedule ?? "all" },
    (from, limit) => listFirings(db, schedule, from, limit),
    (row: FiringRow) => ({ at: row.claimed_at, tail: row.id }),
    firingView,
  );
}

function firingView(row: FiringRow) {
  return {
    id: row.id,
    schedule: row.name,
    slot: isoInstant(row.slot),
    claimedAt: isoInstant(row.claimed_at),
    missed: row.missed,
    lateMs: Math.max(0, row.claimed_at - row.slot),
    cron: row.cron,
    timeZone: row.time_zone,
    firedBy: row.fired_by,
    outcome: row.outcome,
    detail: row.detail,
    thread: row.thread,
    runId: row.run,
    refiredBy: row.refired_by,
    refires: row.refires,
  };
}
