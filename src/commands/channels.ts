import type { Refusal } from "../core/errors.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import type { Module } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";

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
   */
  commit(
    invocation: Invocation,
    statements: readonly D1PreparedStatement[],
    leaving: readonly { channel: string; message: string }[],
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

/** Reads `SLACK_BOT_TOKEN`, `SLACK_SIGNING_SECRET`, `SLACK_API_URL` and `WEBHOOK_CHANNELS`. */
export function createChannels(_env: Bindings, _options: { callMs?: number } = {}): ChannelSetup {
  throw new Error("not built yet");
}
