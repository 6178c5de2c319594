import type * as v from "valibot";
import { nextFire } from "../core/calendar.ts";
import { isoInstant } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Selection } from "../jobs/selection.ts";
import { type JobRow, listSlots, readJobs } from "../jobs/slots.ts";
import type { pageSchema } from "./reads.ts";

/** Each job of the catalog: whether it is on, who works it, how it stands. */
export async function readJobViews(db: D1Database, catalog: readonly Job[], { active }: Selection, now: number) {
  const ids = catalog.map(({ id }) => id);
  const { results } = await readJobs(db, ids).all<JobRow>();
  return catalog.map(({ id, cron, timeZone }) => {
    const row = results.find((one) => one.id === id);
    const on = active.find(({ job }) => job.id === id);
    const next = nextFire(cron, now, timeZone);
    return {
      id,
      cron: cron.text,
      timeZone,
      enabled: on !== undefined,
      processor: on?.kind ?? null,
      generation: row?.generation ?? 0,
      stopped: row !== undefined && row.stopped_at !== null,
      stopReason: row?.stop_reason ?? null,
      failures: row?.failures ?? 0,
      stalled: row?.stalled ?? 0,
      lastSlot: instant(row?.last_slot ?? null),
      nextAt: instant(next),
    };
  });
}

interface SlotRow {
  slot: number;
  generation: number;
  processor: string;
  result: string | null;
  missed: number;
  claimed_at: number;
  completed_at: number | null;
  instance_id: string | null;
  detail: string;
}

/** A page of a job's slots, newest first. */
export async function readSlotViews(db: D1Database, job: string, page: v.InferOutput<typeof pageSchema>) {
  const { results } = await listSlots(db, job, page.cursor ?? null, page.limit + 1).all<SlotRow>();
  const shown = results.slice(0, page.limit);
  return {
    items: shown.map((row) => ({
      slot: isoInstant(row.slot),
      generation: row.generation,
      processor: row.processor,
      result: row.result,
      missed: row.missed,
      claimedAt: isoInstant(row.claimed_at),
      completedAt: instant(row.completed_at),
      instanceId: row.instance_id,
      detail: JSON.parse(row.detail) as unknown,
    })),
    nextCursor: results.length > page.limit ? String(shown.at(-1)?.slot) : null,
  };
}

const instant = (ms: number | null) => (ms === null ? null : isoInstant(ms));
