import { type Refusal, refuse } from "./errors.ts";
import { DAY, SECOND } from "./time.ts";

/** Delays that grow: `baseMs`, then `factor` times as long after each failure, never beyond `capMs`. */
interface Growth {
  /** ms, from 1 */
  readonly baseMs: number;
  /** from 1 */
  readonly factor: number;
  /** The longest delay with its jitter, ms, from `baseMs`. */
  readonly capMs: number;
  /** 0 to 1: a delay is lengthened by at most this part of itself, so that what failed together does not return together. */
  readonly jitter: number;
}

/** How long to wait after a failure: growing delays, or a list of them in ms of which the last repeats. */
export type Backoff = Growth | readonly number[];

/** The longest delay a backoff may give, ms. What waits longer than a year is not a retry. */
export const BACKOFF_MAX_MS = 365 * DAY;

/**
 * The longest the other side's Retry-After is heeded, ms. A day outlasts any honest maintenance; beyond it, one wrong
 * header would park an item for good.
 */
export const RETRY_AFTER_MAX_MS = DAY;

/** Whether a backoff can be meant. The refusal's field is the option's own: `capMs`, `[2]`. */
export function checkBackoff(backoff: Backoff): { ok: true } | Refusal<"bad_backoff"> {
  const isDelay = (ms: unknown) => Number.isSafeInteger(ms) && (ms as number) >= 1 && (ms as number) <= BACKOFF_MAX_MS;
  const delay = `a delay is a whole number of ms from 1 to ${BACKOFF_MAX_MS}`;
  if (isList(backoff)) {
    if (backoff.length === 0) return refuse("bad_backoff", "", "a list of delays has at least one");
    const wrong = backoff.findIndex((ms) => !isDelay(ms));
    return wrong < 0 ? { ok: true } : refuse("bad_backoff", `[${wrong}]`, delay);
  }
  const { baseMs, factor, capMs, jitter } = backoff;
  if (!isDelay(baseMs)) return refuse("bad_backoff", "baseMs", delay);
  if (!isDelay(capMs)) return refuse("bad_backoff", "capMs", delay);
  if (capMs < baseMs) return refuse("bad_backoff", "capMs", "the cap is no shorter than the first delay");
  if (!(Number.isFinite(factor) && factor >= 1))
    return refuse("bad_backoff", "factor", "the factor is a number from 1");
  if (!(jitter >= 0 && jitter <= 1)) return refuse("bad_backoff", "jitter", "the jitter is from 0 to 1");
  return { ok: true };
}

/**
 * How long to wait after the `attempt`-th failure, in whole ms from 1: at every attempt, however many there were, no
 * longer than the cap. Delays at the cap are spread too: there the jitter is taken off the delay before it is added.
 * @param attempt from 1
 * @param random in [0, 1)
 */
export function backoffDelay(backoff: Backoff, attempt: number, random: number): number {
  const nth = Math.max(1, attempt);
  if (isList(backoff)) return wholeMs(backoff[Math.min(nth, backoff.length) - 1]);
  const { baseMs, factor, capMs, jitter } = backoff;
  const grown = Math.min(baseMs * factor ** (nth - 1), capMs / (1 + jitter));
  return wholeMs(grown * (1 + jitter * random));
}

/**
 * The instant of the next attempt, ms: `now` and the delay, and never before `notBefore` (what the other side asked for).
 */
export function retryInstant(asked: {
  backoff: Backoff;
  attempt: number;
  now: number;
  random: number;
  notBefore?: number | null;
}): number {
  const { backoff, attempt, now, random, notBefore } = asked;
  const at = now + backoffDelay(backoff, attempt, random);
  return typeof notBefore === "number" && notBefore > at ? Math.ceil(notBefore) : at;
}

/**
 * The instant that a Retry-After header names, ms: seconds from `now`, or an HTTP date in any of its three forms. No
 * later than {@link RETRY_AFTER_MAX_MS} from now. Null for no header, for anything else, and for an instant in the past.
 */
export function parseRetryAfter(header: string | null, now: number): number | null {
  const text = header?.trim() ?? "";
  const at = /^\d+$/.test(text) ? now + Number(text) * SECOND : parseHttpDate(text, now);
  if (at === null || at < now) return null;
  return Math.min(at, now + RETRY_AFTER_MAX_MS);
}

const TIME = "(?<time>[0-2]\\d:[0-5]\\d:[0-5]\\d)";
const HTTP_DATES = [
  new RegExp(`^[A-Z][a-z]{2}, (?<day>\\d{2}) (?<month>[A-Z][a-z]{2}) (?<year>\\d{4}) ${TIME} GMT$`),
  new RegExp(`^[A-Z][a-z]{5,8}, (?<day>\\d{2})-(?<month>[A-Z][a-z]{2})-(?<year>\\d{2}) ${TIME} GMT$`),
  new RegExp(`^[A-Z][a-z]{2} (?<month>[A-Z][a-z]{2}) (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})$`),
];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** `Date.parse` takes almost anything for a date, a negative number among them; a header is held to its grammar. */
function parseHttpDate(text: string, now: number): number | null {
  const parts = HTTP_DATES.map((form) => form.exec(text)?.groups).find((groups) => groups !== undefined);
  if (parts === undefined) return null;
  const { year = "", month = "", day = "", time = "" } = parts;
  const [hour = 0, minute = 0, second = 0] = time.split(":").map(Number);
  const at = new Date(Date.UTC(fullYear(Number(year), now), MONTHS.indexOf(month), Number(day), hour, minute, second));
  const asWritten = at.getUTCDate() === Number(day) && at.getUTCHours() === hour && MONTHS[at.getUTCMonth()] === month;
  return asWritten ? at.getTime() : null;
}

/** A year of two digits is the one of this century, unless that is more than 50 years ahead: then it is the last one's. */
function fullYear(year: number, now: number): number {
  if (year >= 100) return year;
  const thisYear = new Date(now).getUTCFullYear();
  const near = thisYear - (thisYear % 100) + year;
  return near > thisYear + 50 ? near - 100 : near;
}

function isList(backoff: Backoff): backoff is readonly number[] {
  return Array.isArray(backoff);
}

/** What is no number at all becomes 1 ms: attempts are bounded, and a failure must not break the settling of it. */
function wholeMs(delay: number | undefined): number {
  return delay !== undefined && delay >= 1 ? Math.floor(delay) : 1;
}
