import * as v from "valibot";
import {
  checkDestination,
  type Context,
  errorText,
  exchange,
  type Item,
  type ItemContext,
  nextAt,
  type Outcome,
  parseRetryAfter,
  retryLater,
  type Settlement,
  safeText,
  topic,
} from "../../index.ts";
import { nextOnGrid } from "./grid.ts";
import type { Settings } from "./settings.ts";
import { recordPolls } from "./store.ts";

const SECOND = 1_000;
const HOUR = 3_600 * SECOND;

/** For one poll, from the request to the body's last byte, ms. */
const POLL_MS = 10 * SECOND;
/** Largest body of an account, bytes. */
const BODY_BYTES = 64 * 1_024;
/** Longest error that is kept, characters. */
const ERROR_CHARS = 300;

/** Longest period, s: 31 days. */
export const EVERY_MAX_SECONDS = 31 * 86_400;

const account = v.strictObject({
  accountId: v.pipe(v.string(), v.minLength(1), v.maxLength(128)),
  url: v.pipe(v.string(), v.minLength(1), v.maxLength(2_048)),
  everySeconds: v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(EVERY_MAX_SECONDS)),
  /** Where the account's grid begins, ms. */
  from: v.pipe(v.number(), v.integer(), v.minValue(0)),
});

export type Poll = v.InferOutput<typeof account>;

interface Note {
  at: number;
  status: number | null;
}

/**
 * One item an account, for as long as there is the account: its key is the account's id, and a success moves it to the
 * next instant of its grid. It carries the URL and the period, so that a poll reads nothing.
 */
export const poll = topic("merchants.poll", {
  schema: account,
  backoff: { baseMs: 30 * SECOND, factor: 2, capMs: HOUR, jitter: 0.2 },
  // A poller never dies of failures: an account that fails is asked each hour, alone, until it answers again or a person
  // changes it. At an hour each, a million failures are 114 years.
  maxAttempts: 1_000_000,
  // One GET; the settle and what it found.
  cost: { subrequests: 1, queries: 2 },
  handle: pollOne,
  onSettle: recordSettled,
});

async function pollOne({ payload }: Item<Poll>, ctx: ItemContext<Settings>): Promise<Outcome> {
  const at = ctx.clock();
  const failed = (error: string, status: number | null, notBefore: number | null = null) =>
    retryLater(error, { notBefore, note: { at, status } satisfies Note });

  const destination = checkDestination(payload.url, ctx.settings);
  if (!destination.ok) return failed(destination.message, null);
  let answer: Awaited<ReturnType<typeof exchange>>;
  try {
    const headers = { accept: "application/json", "user-agent": "duework-merchants" };
    answer = await exchange(ctx.fetch, destination.url, { headers }, { limitMs: POLL_MS, maxBytes: BODY_BYTES });
  } catch (error) {
    return failed(errorText(error), null);
  }
  const { status, headers, cut } = answer;
  if (status < 200 || status >= 300) {
    return failed(`answered ${status}`, status, parseRetryAfter(headers.get("retry-after"), ctx.clock()));
  }
  if (cut !== null) return failed(cut, status);
  const next = nextOnGrid(payload.from, payload.everySeconds * SECOND, Math.max(ctx.now, ctx.clock()));
  return nextAt(next, { at, status } satisfies Note);
}

/** What the polls of a batch found, in one statement. */
function recordSettled(settled: readonly Settlement<Poll>[], ctx: Context): D1PreparedStatement[] {
  const polls = settled
    .filter((one) => !(one.kind === "dead" && one.reason === "malformed"))
    .map((one) => {
      const note = (one.note as Note | undefined) ?? { at: ctx.clock(), status: null };
      const failed = one.kind === "retryAt" || one.kind === "dead";
      return { ...note, id: one.item.payload.accountId, error: failed ? safeText(one.error, ERROR_CHARS) : null };
    });
  return polls.length > 0 ? [recordPolls(ctx.db, polls)] : [];
}
