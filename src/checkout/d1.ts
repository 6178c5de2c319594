import { KEPT_IDS } from "../jobs/obligations.ts";
import type { Expiry } from "./sweep.ts";

/**
 * The user's own table of checkouts, in this database, by two statements that run in one batch with the ledger's.
 *
 * `candidates` SELECTs `id` and `workspace` (a UUID) of reservations that ended at or before ?2 (ms), oldest first, at
 * most ?3. `expire` moves exactly those whose id is among `ids`, from reserved only; ?2 is the same instant. Both must
 * use ?2, and `expire` must hold the text of `ids` (it uses ?1).
 */
export interface CheckoutStatements {
  candidates: string;
  expire(ids: string): string;
}

/** The embedded table, `checkouts` of the migrations. */
export const CHECKOUTS: CheckoutStatements = {
  candidates: `SELECT id, workspace FROM checkouts WHERE status = 'reserved' AND expires_at <= ?2
    ORDER BY expires_at, id LIMIT ?3`,
  expire: (ids) =>
    `UPDATE checkouts SET status = 'expired', expired_at = ?2 WHERE status = 'reserved' AND id IN (${ids})`,
};

/** Expires checkouts of this database. */
export function d1Expiry({ candidates, expire }: CheckoutStatements = CHECKOUTS): Expiry {
  const sql = expire(KEPT_IDS);
  return { kind: "d1", candidates, expire: (db, { key, now }) => db.prepare(sql).bind(key, now) };
}
