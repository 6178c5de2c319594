import { Hono } from "hono";
import type { Actor, Token } from "../commands/actor.ts";
import type { Channels } from "../commands/channels.ts";
import type { Invocation, Runtime } from "../outbox/runtime.ts";

/** What a person said in Slack: his message is in its thread already, under this id. */
export interface SlackText {
  text: string;
  /** `slack:<name>` */
  channel: string;
  /** The thread's id. */
  thread: string;
  messageId: string;
}

export interface SlackEvents {
  clock(): number;
  /** Null: no events are taken. */
  signingSecret: string | null;
  tokens: readonly Token[] | null;
  runtime: Runtime | null;
  channels: Channels;
  /** Runs a person's text, and answers in its thread. */
  dispatch(invocation: Invocation, actor: Actor, said: SlackText): Promise<unknown>;
}

/** `POST /api/slack/events`: signed by Slack, so it takes no bearer token. */
export function slackEvents(_deps: SlackEvents): Hono {
  return new Hono();
}
