import type { Context } from "../../index.ts";
import { dayOf, expireDeliveries } from "./store.ts";

/** Whole days that the delivery log is kept. */
export const KEEP_DAYS = 30;
/** Rows deleted in one tick: 720,000 a day. */
const EXPIRE_ROWS = 500;

/** Drops the log's oldest rows. One statement a tick, which reads next to nothing when nothing is old. */
export async function expireLog(ctx: Context): Promise<void> {
  if (!ctx.budget.trySpend({ queries: 1 })) return;
  const expired = await expireDeliveries(ctx.db, dayOf(ctx.now) - KEEP_DAYS, EXPIRE_ROWS);
  if (expired > 0) ctx.log("webhook_log_expired", { rows: expired });
}
