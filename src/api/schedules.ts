import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { isoInstant } from "../core/time.ts";
import { readCursor, writeCursor } from "../outbox/cursor.ts";
import { type FiringRow, listFirings } from "../schedules/firings.ts";
import { listSchema } from "./request.ts";

export const firingsQuery = v.strictObject({
  ...listSchema.entries,
  schedule: v.optional(v.pipe(v.string(), v.nonEmpty(), v.maxLength(63))),
});

/** A page of firings, newest first; of one schedule's name, also after it was removed. */
export async function readFirings(
  db: D1Database,
  query: v.InferOutput<typeof firingsQuery>,
): Promise<object | Refusal> {
  const { schedule = null, limit, cursor } = query;
  const of = schedule ?? "all";
  const before = cursor === undefined ? null : readCursor("firings", of, cursor);
  if (cursor !== undefined && before === null) return refuse("bad_arguments", "cursor", "not a cursor of this list");
  const mark = before === null ? null : { at: before.at, id: before.tail };
  const { results } = await listFirings(db, schedule, mark, limit + 1).all<FiringRow>();
  const shown = results.slice(0, limit);
  const last = shown.at(-1);
  return {
    items: shown.map(firingView),
    nextCursor:
      results.length > limit && last !== undefined
        ? writeCursor("firings", of, { at: last.claimed_at, tail: last.id })
        : null,
  };
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
