import * as v from "valibot";
import { dead, done, nextAt, type Outcome, retryLater } from "../core/outcomes.ts";
import { HOUR, laterOf, SECOND } from "../core/time.ts";
import type { ItemContext } from "../outbox/context.ts";
import { type Topic, TOPIC_DEFAULTS, topic } from "../outbox/topic.ts";
import { CHANNEL } from "./actor.ts";
import { type ChannelState, putFound, putGone, readStates } from "./channel-states.ts";
import { connectSlack, type SlackAccess, type SlackFailed } from "./slack.ts";
import {
  endPosting,
  findMessage,
  findThread,
  type MessageRow,
  markPosted,
  setExternal,
  type ThreadRow,
  takePosting,
  unpostedUpTo,
} from "./threads.ts";
import { postResult, type WebhookChannel } from "./webhook-channel.ts";

/** Failures until a message is given up: with the waits below, most of a day. */
const POST_ATTEMPTS = 30;
/** Lease of whoever posts in a thread, ms: it outlasts the handler that took it. */
const POSTING_MS = TOPIC_DEFAULTS.deadlineMs + 10 * SECOND;
/** Wait for another who posts in the thread, ms: this and up to as much again. */
const WAIT_MS = SECOND;
/** Kept before the handler's deadline for marking what was posted, ms. */
const MARK_MS = 3 * SECOND;
/** Messages that one delivery posts at most; what is left comes at once after it. */
const POSTS_A_DELIVERY = 20;

/** Outside channels that are set up. */
export interface Outside {
  slack: SlackAccess | null;
  /** By name, without `webhook:`. */
  webhooks: ReadonlyMap<string, WebhookChannel>;
  /** For one call to a webhook, ms. */
  webhookMs: number;
}

/** What carries one message outside. */
export interface Posting {
  channel: string;
  message: string;
}

/** The topic that carries messages outside: an item a message, under the message's id. */
export function postTopic(outside: Outside): Topic<Posting> {
  return topic("channels.post", {
    schema: v.strictObject({
      channel: v.pipe(v.string(), v.regex(CHANNEL)),
      message: v.pipe(v.string(), v.minLength(1), v.maxLength(200)),
    }),
    maxAttempts: POST_ATTEMPTS,
    backoff: { baseMs: 5 * SECOND, factor: 2, capMs: HOUR, jitter: 0.2 },
    // A post and perhaps a look for its channel; reads, lease, mark, and the settle.
    cost: { subrequests: 2, queries: 9 },
    handle: ({ payload }, ctx) => post(outside, payload, ctx),
  });
}

async function post(outside: Outside, { channel, message }: Posting, ctx: ItemContext): Promise<Outcome> {
  const row = await findMessage(ctx.db, message).first<MessageRow>();
  if (row === null || row.posted_at !== null) return done();
  if (channel.startsWith("webhook:")) {
    const webhook = outside.webhooks.get(channel.slice("webhook:".length));
    if (webhook === undefined) return dead("not_configured", `WEBHOOK_CHANNELS has no ${channel}`);
    return row.kind === "result" ? postResult(ctx, channel, webhook, row, outside.webhookMs) : done();
  }
  if (outside.slack === null || !channel.startsWith("slack:")) {
    return dead("not_configured", `${channel} is not set up`);
  }
  return postInTurn(outside.slack, channel, row, ctx);
}

/** Posts a thread's messages up to this one, while nobody else does. */
async function postInTurn(access: SlackAccess, channel: string, row: MessageRow, ctx: ItemContext): Promise<Outcome> {
  const { db } = ctx;
  const now = laterOf(ctx.now, ctx.clock());
  const until = now + POSTING_MS;
  const [taken, found, unposted, states] = await db.batch([
    takePosting(db, row.thread, now, until),
    findThread(db, { id: row.thread }),
    unpostedUpTo(db, row, POSTS_A_DELIVERY),
    readStates(db, [channel]),
  ]);
  const [thread] = (found as D1Result<ThreadRow>).results;
  if (thread === undefined) return done();
  if (taken?.results.length === 0) return nextAt(now + WAIT_MS + Math.floor(WAIT_MS * ctx.random()));
  const [state = null] = (states as D1Result<ChannelState>).results;
  try {
    return await postAll(access, { channel, thread, state, row }, (unposted as D1Result<MessageRow>).results, ctx);
  } finally {
    // When this fails the lease lapses.
    await endPosting(db, thread.id, until)
      .run()
      .catch(() => {});
  }
}

interface Turn {
  channel: string;
  thread: ThreadRow;
  state: ChannelState | null;
  /** The message that this delivery is for. */
  row: MessageRow;
}

/** Posts one after another, and marks each at once: what breaks off between the two repeats that one message only. */
async function postAll(
  access: SlackAccess,
  { channel, thread, state, row }: Turn,
  messages: readonly MessageRow[],
  ctx: ItemContext,
): Promise<Outcome> {
  const { db, clock } = ctx;
  const slack = connectSlack(access, { fetch: ctx.fetch, clock, until: ctx.deadline - MARK_MS });
  const failed = (failure: SlackFailed) => outcomeOf(failure, channel, ctx);

  let [address = null, root = null] = thread.external?.split("/") ?? [state?.external ?? null];
  let news = state === null || state.gone_at !== null;
  if (address === null) {
    const resolved = await slack.resolveChannel(channel.slice("slack:".length));
    if (!resolved.ok) return failed(resolved);
    if (resolved.place === null) return failed({ ok: false, kind: "gone", error: "channel_not_found" });
    address = resolved.place.id;
    news = true;
  }
  for (const message of messages) {
    if (clock() + access.callMs > ctx.deadline - MARK_MS) return nextAt(clock());
    const posted = await slack.postMessage({ channel: address, text: message.text, thread: root });
    if (!posted.ok) return failed(posted);
    const { ts } = posted.value;
    await db.batch([
      markPosted(db, message.id, clock()),
      ...(root === null ? [setExternal(db, thread.id, `${posted.value.channel}/${ts}`)] : []),
      ...(news ? [putFound(db, channel, posted.value.channel, clock())] : []),
    ]);
    root ??= ts;
    news = false;
  }
  return messages.at(-1)?.id === row.id || messages.length === 0 ? done() : nextAt(clock());
}

async function outcomeOf(failure: SlackFailed, channel: string, ctx: ItemContext): Promise<Outcome> {
  switch (failure.kind) {
    case "rate_limited":
      return nextAt(failure.retryAt);
    case "failed":
      return retryLater(failure.error);
    case "gone":
      await putGone(ctx.db, channel, failure.error, ctx.clock()).run();
      ctx.log("channel_gone", { channel, error: failure.error });
      return dead("channel_gone", failure.error);
  }
}
