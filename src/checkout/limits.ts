import { SECOND } from "../core/time.ts";

/** Every number of checkout expiry. The slot's own (lease, deadline) stand in `jobs/slots.ts`. */

/** Checkouts that one batch asks for, and the room that is reserved before it: each may be of a workspace of its own. */
export const BATCH_ROWS = 1_000;
/** Expiry calls in one sweep, replays among them. */
export const EXPIRY_CALLS = 10;
/** Workspaces in one request to the storefront. */
export const CHUNK = 100;
/** Requests about owed work, and about fresh work, in one sweep. */
export const CHUNKS = { owed: 50, fresh: 50 };
/** The owed phase ends by then, ms, so that fresh work is not kept waiting for ever by a slow storefront. */
export const OWED_MS = 120 * SECOND;
/** One call to the ledger, ms. */
export const LEDGER_MS = 30 * SECOND;
/** One call to the database that expires, ms. */
export const EXPIRY_MS = 30 * SECOND;
/** One request to the storefront, ms. */
export const STOREFRONT_MS = 15 * SECOND;
/** Kept before the slot's deadline for its completion, ms. */
export const COMPLETE_MARGIN_MS = 5 * SECOND;
/** Held work at which a person is told: beyond it no batch has room to begin. */
export const HELD_ALERT = 4_000;
