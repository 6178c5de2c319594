import {
  checkDestination,
  type Context,
  dead,
  done,
  errorText,
  exchange,
  type Item,
  type ItemContext,
  type Outcome,
  parseRetryAfter,
  retryLater,
  safeText,
  signatures,
  topic,
} from "../../index.ts";
import { type Delivery, delivery } from "./event.ts";
import { type Endpoint, readEndpoint } from "./find.ts";
import { logSettled, type Note } from "./log.ts";
import type { Settings } from "./settings.ts";

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** For one call, from the request to the answer's last byte that is read, ms. */
const CALL_MS = 15 * SECOND;
/** For the answer's body, ms: its status decides, the body is only for the log. */
const BODY_MS = 2 * SECOND;
/** Bytes of the body that are read. */
const BODY_BYTES = 4_096;
/** Characters of it that are kept. */
const RESPONSE_CHARS = 256;
/** How old the reading of an endpoint may be, ms, when another item of the same invocation uses it again. */
const ENDPOINT_MS = 5 * SECOND;
/**
 * Least waits before the second, third … eleventh attempt. Together 24 h 12 min 35 s: an endpoint may be down for a day
 * and loses nothing.
 */
const BACKOFF = [
  5 * SECOND,
  30 * SECOND,
  2 * MINUTE,
  10 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  4 * HOUR,
  8 * HOUR,
  8.5 * HOUR,
] as const;
/** The part of itself by which a wait is lengthened at most, so that what failed together does not return together. */
const JITTER = 0.1;

/** One event for one endpoint. */
export const deliver = topic("webhooks.deliver", {
  schema: delivery,
  backoff: BACKOFF,
  maxAttempts: BACKOFF.length + 1,
  // One POST; the endpoint, the settle and the log. A dead letter takes a statement more, a 410 two: both are rare.
  cost: { subrequests: 1, queries: 3 },
  handle: deliverOne,
  onSettle: logSettled,
});

async function deliverOne(item: Item<Delivery>, ctx: ItemContext<Settings>): Promise<Outcome> {
  const { endpointId } = item.payload;
  const endpoint = await endpointOf(ctx, endpointId);
  const note: Note = { at: ctx.clock(), ms: 0, status: null, response: null };
  if (endpoint === null) return dead("endpoint_unknown", `there is no endpoint ${endpointId}`, note);
  if (endpoint.state === "removed") return done({ ...note, dropped: true } satisfies Note);
  if (endpoint.state === "gone") return dead("endpoint_gone", "it has answered 410 Gone before", note);
  const destination = checkDestination(endpoint.url, ctx.settings);
  if (!destination.ok) return dead("destination_refused", destination.message, note);
  return post(ctx, endpoint, destination.url, item);
}

async function post(
  ctx: ItemContext<Settings>,
  endpoint: Endpoint,
  url: string,
  item: Item<Delivery>,
): Promise<Outcome> {
  const { eventId, type, timestamp, data } = item.payload;
  const at = ctx.clock();
  const message = { id: eventId, timestamp: Math.floor(at / SECOND), body: JSON.stringify({ type, timestamp, data }) };
  const note = (status: number | null, response: string | null): Note => ({
    at,
    ms: Math.max(0, ctx.clock() - at),
    status,
    response,
  });
  const headers = {
    "content-type": "application/json",
    "user-agent": "duework-webhooks",
    "webhook-id": message.id,
    "webhook-timestamp": String(message.timestamp),
    "webhook-signature": await signatures(secretsOf(endpoint, at), message),
  };
  const bounds = { limitMs: CALL_MS, bodyMs: BODY_MS, maxBytes: BODY_BYTES };
  let answer: Awaited<ReturnType<typeof exchange>>;
  try {
    answer = await exchange(ctx.fetch, url, { method: "POST", headers, body: message.body }, bounds);
  } catch (error) {
    return retryLater(errorText(error), { notBefore: notBefore(ctx, item, null), note: note(null, null) });
  }
  const { status } = answer;
  const response = safeText(new TextDecoder().decode(answer.body), RESPONSE_CHARS);
  const noted = note(status, response);
  if (status >= 200 && status < 300) return done(noted);
  if (status === 410) return dead("endpoint_gone", "it answered 410 Gone", { ...noted, gone: true } satisfies Note);
  const error = status >= 300 && status < 400 ? `answered ${status}: redirects are not followed` : `answered ${status}`;
  return retryLater(error, { notBefore: notBefore(ctx, item, answer.headers.get("retry-after")), note: noted });
}

/** The newest first. An older one signs too while receivers may still hold it. */
function secretsOf({ secret, old }: Endpoint, now: number): string[] {
  const secrets = secret === null ? [] : [secret];
  return old !== null && old.until > now ? [...secrets, old.secret] : secrets;
}

/** The list's wait or the receiver's, whichever is longer, and some jitter. */
function notBefore(ctx: Context, { attempts }: Item, retryAfter: string | null): number {
  const now = ctx.clock();
  const least = now + (BACKOFF[attempts] ?? 0);
  const asked = parseRetryAfter(retryAfter, now) ?? least;
  const wait = Math.max(least, asked) - now;
  return now + Math.ceil(wait * (1 + JITTER * ctx.random()));
}

interface Reading {
  at: number;
  endpoint: Promise<Endpoint | null>;
}

/** Readings of one invocation, whose `db` is its own: a hundred items for a few endpoints cost a few reads. */
const readings = new WeakMap<D1Database, Map<string, Reading>>();

/** The endpoint as it is now: one that was removed after the event is not told of it. */
function endpointOf(ctx: ItemContext<Settings>, id: string): Promise<Endpoint | null> {
  const known = readings.get(ctx.db) ?? new Map<string, Reading>();
  readings.set(ctx.db, known);
  const now = ctx.clock();
  const last = known.get(id);
  if (last !== undefined && now - last.at < ENDPOINT_MS && now >= last.at) return last.endpoint;
  const endpoint = readEndpoint(ctx.db, id);
  known.set(id, { at: now, endpoint });
  endpoint.catch(() => known.delete(id));
  return endpoint;
}
