import { Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import * as v from "valibot";
import { type Actor, personOnSlack, sameText, type Token } from "../commands/actor.ts";
import type { Channels } from "../commands/channels.ts";
import type { DispatchAnswer } from "../commands/dispatch.ts";
import { type SlackSaid, takeSaid } from "../commands/slack-said.ts";
import { parseJson } from "../core/payload.ts";
import { hmacSha256 } from "../core/signature.ts";
import { MINUTE, SECOND } from "../core/time.ts";
import { beginInvocation, type Invocation, type Runtime } from "../outbox/runtime.ts";
import { problem } from "./problem.ts";

/** Largest body of an event, bytes. */
const EVENT_MAX = 256 * 1024;
/** How far an event's own time may be from the clock, ms, before or after it. */
const EVENT_AGE_MS = 5 * MINUTE;

export interface SlackEvents {
  clock(): number;
  /** Null: no events are taken. */
  signingSecret: string | null;
  tokens: readonly Token[] | null;
  runtime: Runtime | null;
  channels: Channels;
  /** Runs a person's text, and answers in its thread. `messageId` names the text, however often it comes. */
  dispatch(
    invocation: Invocation,
    actor: Actor,
    said: { text: string; channel: string; thread: string; messageId: string },
  ): Promise<DispatchAnswer>;
}

const id = v.pipe(v.string(), v.regex(/^[A-Za-z0-9]{1,40}$/));
const ts = v.pipe(v.string(), v.regex(/^\d{1,12}\.\d{1,9}$/));
const challenge = v.object({ type: v.literal("url_verification"), challenge: v.pipe(v.string(), v.maxLength(1_024)) });
/** What a person wrote: no bot wrote it, and it is no edit, no join, no notice. */
const said = v.object({
  type: v.literal("event_callback"),
  event_id: v.pipe(v.string(), v.regex(/^[\w-]{1,60}$/)),
  authorizations: v.optional(v.array(v.object({ user_id: v.optional(v.string(), "") })), []),
  event: v.object({
    type: v.picklist(["app_mention", "message"]),
    subtype: v.optional(v.undefined()),
    bot_id: v.optional(v.undefined()),
    user: id,
    channel: id,
    text: v.string(),
    ts,
    thread_ts: v.optional(ts),
  }),
});

/** `POST /api/slack/events`: signed by Slack, so it takes no bearer token. */
export function slackEvents(deps: SlackEvents): Hono {
  const app = new Hono();
  const tooLarge = bodyLimit({
    maxSize: EVENT_MAX,
    onError: (c) => problem(c, "body_too_large", `a body is at most ${EVENT_MAX} bytes`),
  });
  app.post("/api/slack/events", tooLarge, async (c) => {
    const { signingSecret, runtime, clock } = deps;
    if (signingSecret === null) return problem(c, "misconfigured", "SLACK_SIGNING_SECRET is not set");
    const body = new Uint8Array(await c.req.arrayBuffer());
    const signed = {
      timestamp: c.req.header("x-slack-request-timestamp") ?? "",
      signature: c.req.header("x-slack-signature") ?? "",
    };
    if (!(await isSlacks(signingSecret, signed, body, clock()))) {
      return problem(c, "unauthorized", "an event is signed by Slack, and is no older than five minutes");
    }
    const json = parseJson(new TextDecoder().decode(body));
    if (!json.ok) return problem(c, "bad_arguments", "the body is not JSON", { field: "body" });
    const asked = v.safeParse(challenge, json.value);
    if (asked.success) return c.json({ challenge: asked.output.challenge });
    if (runtime === null) return problem(c, "misconfigured", "see /healthz");
    const event = v.safeParse(said, json.value);
    if (event.success) await take(deps, runtime, event.output);
    // What is not for us is taken all the same: Slack ends a subscription whose events are refused.
    return c.body(null, 200);
  });
  return app;
}

/** Whether Slack signed a body, and lately. */
async function isSlacks(
  secret: string,
  { timestamp, signature }: { timestamp: string; signature: string },
  body: Uint8Array,
  now: number,
): Promise<boolean> {
  if (!/^\d{1,12}$/.test(timestamp) || Math.abs(now - Number(timestamp) * SECOND) > EVENT_AGE_MS) return false;
  const encoder = new TextEncoder();
  const head = encoder.encode(`v0:${timestamp}:`);
  const text = new Uint8Array(head.length + body.length);
  text.set(head);
  text.set(body, head.length);
  const digest = await hmacSha256(encoder.encode(secret), text);
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return sameText(`v0=${hex}`, signature);
}

async function take(
  deps: SlackEvents,
  runtime: Runtime,
  { event_id, event, authorizations }: v.InferOutput<typeof said>,
) {
  const bots = authorizations.map(({ user_id }) => user_id).filter((user) => user !== "");
  const { type, user, channel, text, ts, thread_ts } = event;
  if (bots.includes(user)) return;
  // Such a message comes as a mention, too: that one is taken.
  if (type === "message" && bots.some((bot) => text.includes(`<@${bot}>`) || text.includes(`<@${bot}|`))) return;
  const message: SlackSaid = {
    messageId: `slack-${event_id}`,
    user,
    text: plainText(text, type === "app_mention" ? bots : null),
    place: { channel, ts: thread_ts ?? ts },
    opens: type === "app_mention",
  };
  const actor = personOnSlack(user, deps.tokens ?? []);
  await takeSaid(beginInvocation(runtime, deps.clock()), deps.channels, actor, message, deps.dispatch);
}

/**
 * What was written, as it was typed: without the mention of the bot, links as their addresses, and Slack's three
 * escapes undone, once.
 * @param mentioned the bot's ids; empty = not known, and the first mention is taken for the bot's; null = no mention
 */
function plainText(text: string, mentioned: readonly string[] | null): string {
  let rest = text;
  if (mentioned !== null) {
    const ofBot = mentioned.map((bot) => new RegExp(`<@${bot.replace(/\W/g, "")}(?:\\|[^>]*)?>`, "g"));
    for (const mention of ofBot.length > 0 ? ofBot : [/<@[A-Z0-9]+(?:\|[^>]*)?>/]) rest = rest.replace(mention, " ");
  }
  return rest
    .replace(/<((?:https?:\/\/|mailto:)[^|>]*)(?:\|[^>]*)?>/g, (_, address: string) => address.replace(/^mailto:/, ""))
    .replace(/&(amp|lt|gt);/g, (_, name: "amp" | "lt" | "gt") => ({ amp: "&", lt: "<", gt: ">" })[name])
    .trim();
}
