import { type Refusal, refuse } from "../core/errors.ts";
import { SECOND } from "../core/time.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import { enqueueNow } from "../outbox/enqueue.ts";
import { defineModule, type Module } from "../outbox/module.ts";
import { contextFor, type Invocation } from "../outbox/runtime.ts";
import { readChannelSettings } from "./channel-settings.ts";
import { type ChannelState, putFound, putGone, readStates } from "./channel-states.ts";
import { type Posting, postTopic } from "./post.ts";
import { connectSlack, SLACK_CALL_MS, type SlackAccess, type SlackFailed, type SlackPlace } from "./slack.ts";
import { WEBHOOK_CALL_MS } from "./webhook-channel.ts";

/** For all calls that ask whether a thread can be opened, ms. */
const CAN_OPEN_MS = 20 * SECOND;

export type CannotOpen = Refusal<"channel_gone" | "channel_cannot_open" | "not_configured" | "channel_unreachable">;

/**
 * Where threads are. They are rows in D1, whatever their channel: `inbox` is only that, `slack` carries each message
 * outside, `webhook` the results of runs.
 */
export interface Channels {
  /** Whether a thread can be opened there now; asks the outside where needed. */
  canOpen(invocation: Invocation, channel: string): Promise<{ ok: true } | CannotOpen>;
  /** Whether messages of a channel go outside. */
  leaves(channel: string): boolean;
  /**
   * Commits `statements` and, in the same transaction, items that carry the named messages outside; sends them at once.
   * Answers the results of `statements`. Messages of channels that do not leave need no item.
   * @throws what D1 throws
   */
  commit(
    invocation: Invocation,
    statements: readonly D1PreparedStatement[],
    leaving: readonly Posting[],
  ): Promise<D1Result[]>;
}

/** Channels as the environment sets them up. */
export interface ChannelSetup {
  channels: Channels;
  /** Carries messages outside; null = no channel leaves. */
  module: Module | null;
  /** What Slack signs its events with; null = none are taken. */
  signingSecret: string | null;
  problems: Problem[];
}

/**
 * Reads `SLACK_BOT_TOKEN`, `SLACK_SIGNING_SECRET`, `SLACK_API_URL` and `WEBHOOK_CHANNELS`.
 * @param options.callMs for one call to the outside, ms; default: each kind's own
 */
export function createChannels(env: Bindings, options: { callMs?: number } = {}): ChannelSetup {
  const { settings, problems } = readChannelSettings(env);
  const { signingSecret, webhooks } = settings;
  const slack = settings.slack === null ? null : { ...settings.slack, callMs: options.callMs ?? SLACK_CALL_MS };
  const topic = postTopic({ slack, webhooks, webhookMs: options.callMs ?? WEBHOOK_CALL_MS });

  const isWebhook = (channel: string) =>
    channel.startsWith("webhook:") && webhooks.has(channel.slice("webhook:".length));
  const leaves = (channel: string) => (channel.startsWith("slack:") ? slack !== null : isWebhook(channel));

  const channels: Channels = {
    leaves,
    async canOpen(invocation, channel) {
      if (channel.startsWith("inbox:")) return { ok: true };
      if (channel.startsWith("slack:") && slack !== null) return canOpenInSlack(invocation, slack, channel);
      if (!isWebhook(channel)) return refuse("not_configured", "channel", `${channel} is not set up`);
      return refuse("channel_cannot_open", "channel", `${channel} takes results of runs, and opens no threads`);
    },
    async commit(invocation, statements, leaving) {
      const items = leaving
        .filter(({ channel }) => leaves(channel))
        .map((payload) => ({ payload, key: payload.message }));
      if (items.length > 0) {
        const answer = await enqueueNow(invocation, topic, items, { batch: statements });
        if (answer.ok) return answer.results;
        // What was said is kept all the same; the next message of its thread takes it along.
        const { code, message: error } = answer;
        invocation.runtime.ports.log({ event: "posting_refused", level: "error", count: items.length, code, error });
      }
      return statements.length === 0 ? [] : invocation.db.batch([...statements]);
    },
  };
  const outgoing = slack !== null || webhooks.size > 0;
  const module = outgoing ? defineModule("channels", { topics: [topic] }) : null;
  return { channels, module, signingSecret, problems };
}

/** Asks Slack for a channel, and keeps what it says. */
async function canOpenInSlack(
  invocation: Invocation,
  access: SlackAccess,
  channel: string,
): Promise<{ ok: true } | CannotOpen> {
  const { db } = invocation;
  const { fetch, clock } = contextFor(invocation, "channels");
  const slack = connectSlack(access, { fetch, clock, until: clock() + CAN_OPEN_MS });
  const known = await readStates(db, [channel]).first<ChannelState>();
  let place: SlackPlace | null = null;
  if (known !== null && known.external !== null) {
    const answer = await slack.inspect(known.external);
    if (answer.ok) place = answer.place;
    else if (answer.kind !== "gone") return unreachable(channel, answer, clock());
  }
  // Not known, or not there any more: the name may be another channel's by now.
  if (place === null) {
    const answer = await slack.resolveChannel(channel.slice("slack:".length));
    if (!answer.ok && answer.kind !== "gone") return unreachable(channel, answer, clock());
    place = answer.ok ? answer.place : null;
  }
  if (place === null || place.archived) {
    const detail = place === null ? "channel_not_found" : "is_archived";
    if (known !== null) await putGone(db, channel, detail, clock()).run();
    const why = place === null ? "Slack shows the bot no such channel" : "it is archived";
    return refuse("channel_gone", "channel", `${channel}: ${why}`);
  }
  if (!place.member) return refuse("channel_cannot_open", "channel", `${channel}: invite the bot to it first`);
  await putFound(db, channel, place.id, clock()).run();
  return { ok: true };
}

function unreachable(channel: string, failure: SlackFailed, now: number): CannotOpen {
  const wait = failure.kind === "rate_limited" ? `: try again in ${Math.ceil((failure.retryAt - now) / SECOND)} s` : "";
  return refuse("channel_unreachable", "channel", `${channel}: Slack said ${failure.error}${wait}`);
}
