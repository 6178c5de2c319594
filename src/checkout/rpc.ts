import * as v from "valibot";
import type { Ports } from "../core/ports.ts";
import { isoInstant } from "../core/time.ts";
import { type CallFailed, postJson } from "./json-call.ts";

/** Where the database's functions are served, and the key that may call this one. */
export interface SupabaseConfig {
  /** The project's address, `/rest/v1` not included. */
  url: string;
  serviceKey: string;
}

/**
 * A batch that happens once. Asked again with its key and its limit it answers the same rows, for 30 days, whether the
 * first call had landed or not.
 */
export interface ExpiryBatch {
  /** Sessions due until then expire, ms. */
  now: number;
  /** Most rows, 1 to {@link RPC_MAX_ROWS}. */
  limit: number;
  key: string;
}

export interface ExpiredCheckout {
  checkoutId: string;
  workspaceId: string;
}

/** Most rows of a batch. */
export const RPC_MAX_ROWS = 1_000;
/** Largest answer, bytes: 1,000 rows of two UUIDs are some 110 KB as PostgREST writes them. */
const ANSWER_MAX_BYTES = 256 * 1_024;

const uuid = v.pipe(v.string(), v.uuid(), v.toLowerCase());
const rowsSchema = v.pipe(
  v.array(v.strictObject({ checkout_id: uuid, ws_id: uuid })),
  v.maxLength(RPC_MAX_ROWS),
  v.check((rows) => new Set(rows.map((row) => row.checkout_id)).size === rows.length),
);

/**
 * Expires due checkout sessions by the database's own function (`postgres/002_create_expiry.sql`), over PostgREST's
 * protocol. Takes an answer whole or not at all.
 *
 * @throws RangeError when the batch itself is out of bounds.
 */
export async function expireOverRpc(
  fetch: Ports["fetch"],
  { url, serviceKey }: SupabaseConfig,
  { now, limit, key }: ExpiryBatch,
  timeoutMs: number,
): Promise<{ ok: true; rows: ExpiredCheckout[] } | CallFailed> {
  if (!Number.isInteger(limit) || limit < 1 || limit > RPC_MAX_ROWS) {
    throw new RangeError(`a batch is 1 to ${RPC_MAX_ROWS} rows, not ${limit}`);
  }
  const answer = await postJson(fetch, {
    url: `${url.replace(/\/+$/, "")}/rest/v1/rpc/expire_inventory_checkout_sessions`,
    headers: { apikey: serviceKey, accept: "application/json", "user-agent": "duework-checkout" },
    secret: serviceKey,
    body: JSON.stringify({ p_now: isoInstant(now), p_limit: limit, p_key: key }),
    timeoutMs,
    maxBytes: ANSWER_MAX_BYTES,
  });
  if (!answer.ok) return answer;
  const parsed = v.safeParse(rowsSchema, answer.value);
  if (!parsed.success) return malformed("the answer is not a list of rows of two UUIDs, each checkout once");
  const rows = parsed.output.map((row) => ({ checkoutId: row.checkout_id, workspaceId: row.ws_id }));
  return rows.length > limit ? malformed(`${rows.length} rows, but ${limit} were asked for`) : { ok: true, rows };
}

const malformed = (detail: string): CallFailed => ({ ok: false, kind: "malformed", detail });
