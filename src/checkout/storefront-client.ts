import type { Ports } from "../core/ports.ts";
import { type CallFailed, postJson } from "./json-call.ts";
import { type Receipts, readReceipts } from "./receipts.ts";

export interface StorefrontConfig {
  url: string;
  token: string;
}

/** Most workspaces of one request. */
export const CHUNK_MAX_WORKSPACES = 100;
/** Largest request, bytes: what every storefront takes. */
const REQUEST_MAX_BYTES = 8 * 1_024;
/** Largest answer, bytes: 100 receipts with a reason of 200 characters each, four bytes a character. */
const ANSWER_MAX_BYTES = 128 * 1_024;

/**
 * Asks the storefront to drop what it has cached of these workspaces, in one request. An answer without receipts is
 * `malformed`: it failed as a whole, and no workspace of it did.
 *
 * @throws RangeError when the request itself is out of bounds.
 */
export async function revalidate(
  fetch: Ports["fetch"],
  { url, token }: StorefrontConfig,
  workspaceIds: readonly string[],
  timeoutMs: number,
): Promise<({ ok: true } & Receipts) | CallFailed> {
  const body = JSON.stringify({ workspaceIds });
  const bytes = new TextEncoder().encode(body).length;
  if (workspaceIds.length < 1 || workspaceIds.length > CHUNK_MAX_WORKSPACES || bytes > REQUEST_MAX_BYTES) {
    throw new RangeError(
      `a request is 1 to ${CHUNK_MAX_WORKSPACES} workspaces in ${REQUEST_MAX_BYTES} bytes, not ${workspaceIds.length} in ${bytes}`,
    );
  }
  const answer = await postJson(fetch, {
    url,
    headers: { authorization: `Bearer ${token}`, accept: "application/json", "user-agent": "duework-checkout" },
    secret: token,
    body,
    timeoutMs,
    maxBytes: ANSWER_MAX_BYTES,
  });
  if (!answer.ok) return answer;
  const receipts = readReceipts(workspaceIds, answer.value);
  if (receipts === null) return { ok: false, kind: "malformed", detail: "the answer has no list of receipts" };
  const unconfirmed = receipts.unconfirmed.map(({ wsId, error }) => ({
    wsId,
    error: error.replaceAll(token, "[secret]"),
  }));
  return { ok: true, confirmed: receipts.confirmed, unconfirmed };
}
