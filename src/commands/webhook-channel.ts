import { parseRetryAfter } from "../core/backoff.ts";
import { exchange } from "../core/exchange.ts";
import { done, type Outcome, retryLater } from "../core/outcomes.ts";
import { signatures } from "../core/signature.ts";
import { errorText } from "../core/text.ts";
import { isoInstant, SECOND } from "../core/time.ts";
import type { ItemContext } from "../outbox/context.ts";
import { type MessageRow, markPosted } from "./threads.ts";

/** For one call, from the request to the answer's last byte that is read, ms. */
export const WEBHOOK_CALL_MS = 15 * SECOND;
/** Bytes of an answer's body that are read: its status decides. */
const BODY_BYTES = 1_024;

/** Where a channel's results go. */
export interface WebhookChannel {
  url: string;
  /** `whsec_…` */
  secret: string;
}

/** Posts a run's result, signed by the Standard Webhooks convention under the message's id. */
export async function postResult(
  ctx: ItemContext,
  channel: string,
  { url, secret }: WebhookChannel,
  message: MessageRow,
  callMs: number,
): Promise<Outcome> {
  const body = JSON.stringify({
    type: "run.ended",
    timestamp: isoInstant(message.at),
    channel,
    run: JSON.parse(message.data),
    text: message.text,
  });
  const timestamp = Math.floor(ctx.clock() / SECOND);
  const headers = {
    "content-type": "application/json",
    "user-agent": "duework",
    "webhook-id": message.id,
    "webhook-timestamp": String(timestamp),
    "webhook-signature": await signatures([secret], { id: message.id, timestamp, body }),
  };
  try {
    const bounds = { limitMs: callMs, maxBytes: BODY_BYTES };
    const { status, headers: answered } = await exchange(ctx.fetch, url, { method: "POST", headers, body }, bounds);
    if (status < 200 || status >= 300) {
      const why = status >= 300 && status < 400 ? ": redirects are not followed" : "";
      const notBefore = parseRetryAfter(answered.get("retry-after"), ctx.clock());
      return retryLater(`answered ${status}${why}`, { notBefore });
    }
  } catch (error) {
    return retryLater(errorText(error));
  }
  await markPosted(ctx.db, message.id, ctx.clock()).run();
  return done();
}
