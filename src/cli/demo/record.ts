import type { DatabaseSync } from "node:sqlite";
import type { Client } from "../client.ts";

/** The topics of a demo. */
export const DELIVER = "webhooks.deliver";
export const POLL = "merchants.poll";

/** Merchants' period: longer than all the time that a demo drives through, so that none is polled twice. */
export const POLL_EVERY_S = 30 * 86_400;
/** An item that is due longer than this after the demo began, ms, is a poller that has succeeded. */
const HORIZON_MS = 20 * 86_400_000;

/** What is neither settled nor dead. */
export interface Outbox {
  ready: number;
  /** Of the ready, those due at `now`. */
  due: number;
  /** Sent or running. */
  leased: number;
  /** When the first of the ready is due, ms; null = none is ready. */
  nextDue: number | null;
  /** Slots of jobs that have not ended. */
  slots: number;
  /** Pollers that have succeeded and wait for their next period: settled, for a demo. */
  pollers: number;
}

/**
 * Reads the outbox as it is stored.
 * @param now instant to count from, ms
 * @param began when the demo began, ms
 */
export function readOutbox(database: DatabaseSync, now: number, began: number): Outbox {
  return database
    .prepare(
      `SELECT count(*) FILTER (WHERE lane = 0 AND due_at < ?2) AS ready,
              count(*) FILTER (WHERE lane = 0 AND due_at <= ?1) AS due,
              count(*) FILTER (WHERE lane > 0) AS leased,
              min(due_at) FILTER (WHERE lane = 0 AND due_at < ?2) AS nextDue,
              count(*) FILTER (WHERE lane = 0 AND due_at >= ?2) AS pollers,
              (SELECT count(*) FROM slots WHERE result IS NULL) AS slots
       FROM items`,
    )
    .get(now, began + HORIZON_MS) as unknown as Outbox;
}

/** What has become of what a demo has put in. */
export interface Stored {
  outbox: Outbox;
  deadLetters: { topic: string; reason: string; attempts: number }[];
  /** Deliveries that the log calls delivered, each once. */
  delivered: number;
  /** Accounts whose last poll succeeded. */
  polled: number;
}

export function readStored(database: DatabaseSync, began: number): Stored {
  const count = (from: string) => Number(database.prepare(`SELECT count(*) AS n FROM ${from}`).get()?.n);
  return {
    outbox: readOutbox(database, began, began),
    deadLetters: database
      .prepare("SELECT topic, reason, attempts FROM dead_letters")
      .all() as unknown as Stored["deadLetters"],
    delivered: count("(SELECT DISTINCT event_id, endpoint_id FROM webhook_deliveries WHERE outcome = 'delivered')"),
    polled: count("merchant_accounts WHERE last_poll_at IS NOT NULL AND last_error IS NULL"),
  };
}

/** What the tick records add up to. */
export interface Ticks {
  ticks: number;
  drained: number;
  /** Parts of ticks that ended in an error, and ticks that never ended. */
  failed: number;
  maxPerTick: { subrequests: number; queries: number };
}

interface TickView {
  state: string;
  drained: number;
  failed: number;
  queries: number;
  subrequests: number;
}

/** Reads every tick record. */
export async function readTicks(client: Client): Promise<Ticks> {
  const sum: Ticks = { ticks: 0, drained: 0, failed: 0, maxPerTick: { subrequests: 0, queries: 0 } };
  type Page = { items: TickView[]; nextCursor: string | null };
  for (let cursor: string | null = ""; cursor !== null; ) {
    const page: Page = await client.read(`/api/ticks?limit=200${cursor === "" ? "" : `&cursor=${cursor}`}`);
    for (const { state, drained, failed, queries, subrequests } of page.items) {
      sum.ticks += 1;
      sum.drained += drained;
      sum.failed += failed + (state === "closed" ? 0 : 1);
      sum.maxPerTick.queries = Math.max(sum.maxPerTick.queries, queries);
      sum.maxPerTick.subrequests = Math.max(sum.maxPerTick.subrequests, subrequests);
    }
    cursor = page.nextCursor;
  }
  return sum;
}
