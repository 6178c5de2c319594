import * as v from "valibot";
import { nextFire } from "../core/calendar.ts";
import { parseJson } from "../core/payload.ts";
import { isoInstant } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import { listObligations, type ObligationRow } from "../jobs/obligations.ts";
import type { Selection } from "../jobs/selection.ts";
import { type JobRow, listSlots, readJobs } from "../jobs/slots.ts";
import { pageSchema } from "./request.ts";

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
      detail: detailOf(row.detail),
    })),
    nextCursor: results.length > page.limit ? String(shown.at(-1)?.slot) : null,
  };
}

/** What a slot's completion kept: JSON, unless it was written by hand. */
function detailOf(text: string): unknown {
  const json = parseJson(text);
  return json.ok ? json.value : text;
}

export const obligationsPage = v.strictObject({
  ...pageSchema.entries,
  state: v.optional(v.picklist(["owed", "quarantined"]), "owed"),
  /** `<since>.<workspace>` of the last row that was seen. */
  cursor: v.optional(v.pipe(v.string(), v.regex(/^\d{1,15}\.[0-9a-f-]{36}$/, "not a cursor of this list"))),
});

/** A page of what a job owes, or holds in quarantine, oldest first. */
export async function readObligationViews(db: D1Database, job: string, page: v.InferOutput<typeof obligationsPage>) {
  const [since, workspace] = (page.cursor ?? "").split(".");
  const after = workspace === undefined ? null : { since: Number(since), workspace };
  const { results } = await listObligations(db, job, page.state, after, page.limit + 1).all<ObligationRow>();
  const shown = results.slice(0, page.limit);
  const last = shown.at(-1);
  return {
    items: shown.map((row) => ({
      workspace: row.workspace,
      version: row.version,
      state: row.state,
      since: isoInstant(row.since),
      charges: row.charges,
      quarantinedAt: instant(row.quarantined_at),
      error: row.error,
    })),
    nextCursor: results.length > page.limit && last !== undefined ? `${last.since}.${last.workspace}` : null,
  };
}

export const settlementsPage = v.strictObject({
  ...pageSchema.entries,
  /** `<settledAt>.<workspace>` of the last row that was seen. */
  cursor: v.optional(v.pipe(v.string(), v.regex(/^\d{1,15}\.[0-9a-f-]{36}$/, "not a cursor of this list"))),
});

interface SettlementRow {
  settled_at: number;
  workspace: string;
  version: number;
  since: number;
  how: string;
  settled_by: string;
  reason: string;
  error: string | null;
}

/** A page of what people settled out of a job's quarantine, the newest first. */
export async function readSettlementViews(db: D1Database, job: string, page: v.InferOutput<typeof settlementsPage>) {
  const [at, workspace] = (page.cursor ?? "").split(".");
  const { results } = await db
    .prepare(
      `SELECT settled_at, workspace, version, since, how, settled_by, reason, error FROM settlements
       WHERE job = ?1 AND (settled_at, workspace) < (?2, ?3) ORDER BY settled_at DESC, workspace DESC LIMIT ?4`,
    )
    .bind(job, workspace === undefined ? Number.MAX_SAFE_INTEGER : Number(at), workspace ?? "", page.limit + 1)
    .all<SettlementRow>();
  const shown = results.slice(0, page.limit);
  const last = shown.at(-1);
  return {
    items: shown.map((row) => ({
      workspace: row.workspace,
      version: row.version,
      since: isoInstant(row.since),
      settledAt: isoInstant(row.settled_at),
      settledBy: row.settled_by,
      how: row.how,
      reason: row.reason,
      error: row.error,
    })),
    nextCursor: results.length > page.limit && last !== undefined ? `${last.settled_at}.${last.workspace}` : null,
  };
}

const instant = (ms: number | null) => (ms === null ? null : isoInstant(ms));
