import * as v from "valibot";
import { parseRetryAfter } from "../core/backoff.ts";
import { type Exchanged, exchange } from "../core/exchange.ts";
import { parseJson } from "../core/payload.ts";
import type { Ports } from "../core/ports.ts";
import { safeText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";

/** For one call, from the request to the answer's last byte, ms. */
export const SLACK_CALL_MS = 10 * SECOND;
/** Bytes of an answer: a page of a thousand channels takes less than half of it. */
const ANSWER_BYTES = 4 * 1_024 * 1_024;
/** Channels in one page of the list, and pages that are read of it. */
const PAGE_CHANNELS = 1_000;
const LIST_PAGES = 10;
/** Wait after a rate limit that names none, ms. */
const RATE_LIMIT_MS = 30 * SECOND;
/** Longest text of one message, UTF-16 units before it is escaped: Slack advises 4,000. */
const SLACK_TEXT_CHARS = 3_900;

/** Answers that say of a channel: nothing can be posted there. */
const GONE = new Set(["channel_not_found", "is_archived", "channel_is_archived", "not_in_channel"]);
const RATE_LIMITED = new Set(["ratelimited", "rate_limited"]);

/** Where Slack is, and with what it is asked. */
export interface SlackAccess {
  /** Without a slash at its end. */
  url: string;
  token: string;
  /** For one call, ms. */
  callMs: number;
}

/** Why a call brought nothing: the channel is gone, Slack asks for a pause, or anything else. */
export type SlackFailed =
  | { ok: false; kind: "gone" | "failed"; error: string }
  | { ok: false; kind: "rate_limited"; error: string; retryAt: number };

/** A channel as Slack knows it. */
export interface SlackPlace {
  id: string;
  /** The bot was invited, and may post. */
  member: boolean;
  archived: boolean;
}

const channelSchema = v.object({
  id: v.pipe(v.string(), v.regex(/^[A-Z0-9]{2,40}$/)),
  name: v.optional(v.string(), ""),
  is_member: v.optional(v.boolean(), false),
  is_archived: v.optional(v.boolean(), false),
});
const posted = v.object({ channel: channelSchema.entries.id, ts: v.pipe(v.string(), v.regex(/^\d{1,12}\.\d{1,9}$/)) });
const info = v.object({ channel: channelSchema });
const list = v.object({
  channels: v.array(channelSchema),
  response_metadata: v.optional(v.object({ next_cursor: v.optional(v.string(), "") })),
});
const refused = v.object({ error: v.pipe(v.string(), v.regex(/^[a-z_]{1,60}$/)) });

/** One caller's use of Slack's Web API. No call begins after `until` (ms), or outlasts it. */
export function connectSlack(
  { url, token, callMs }: SlackAccess,
  { fetch, clock, until }: Pick<Ports, "fetch" | "clock"> & { until: number },
) {
  const failed = (error: string): SlackFailed => ({
    ok: false,
    kind: "failed",
    error: safeText(error.replaceAll(token, "[token]"), 200),
  });

  async function call<Schema extends v.GenericSchema>(
    method: string,
    init: RequestInit,
    query: string,
    schema: Schema,
  ) {
    const limitMs = Math.min(callMs, until - clock());
    if (limitMs < 1) return failed("there was no time left for a call");
    const headers = { ...init.headers, authorization: `Bearer ${token}` };
    let answer: Exchanged;
    try {
      const bounds = { limitMs, maxBytes: ANSWER_BYTES };
      answer = await exchange(fetch, `${url}/${method}${query}`, { ...init, headers }, bounds);
    } catch (error) {
      return failed(safeText(error));
    }
    return read(answer, schema);
  }

  function read<Schema extends v.GenericSchema>({ status, headers, body, cut }: Exchanged, schema: Schema) {
    const paused = (error: string): SlackFailed => {
      const retryAt = parseRetryAfter(headers.get("retry-after"), clock()) ?? clock() + RATE_LIMIT_MS;
      return { ok: false, kind: "rate_limited", error, retryAt: Math.max(retryAt, clock() + SECOND) };
    };
    if (status === 429) return paused("answered 429");
    if (status >= 300 && status < 400) return failed(`answered ${status}: redirects are not followed`);
    if (cut !== null) return failed(`answered ${status}, but ${cut}`);
    const json = parseJson(new TextDecoder().decode(body));
    if (!json.ok) return failed(`answered ${status} with what is not JSON`);
    const refusal = v.safeParse(refused, json.value);
    if ((json.value as { ok?: unknown } | null)?.ok !== true || status < 200 || status >= 300) {
      const error = refusal.success ? refusal.output.error : `answered ${status}`;
      if (RATE_LIMITED.has(error)) return paused(error);
      return GONE.has(error) ? ({ ok: false, kind: "gone", error } as const satisfies SlackFailed) : failed(error);
    }
    const value = v.safeParse(schema, json.value);
    if (!value.success) return failed(`answered ${status} with what is no such answer`);
    return { ok: true as const, value: value.output as v.InferOutput<Schema> };
  }

  const get = <Schema extends v.GenericSchema>(method: string, asked: Record<string, string>, schema: Schema) =>
    call(method, { method: "GET" }, `?${new URLSearchParams(asked)}`, schema);

  return {
    /** Posts a text. `thread` is the `ts` of the thread's first message; null = this is a first message. */
    async postMessage(message: { channel: string; text: string; thread: string | null }) {
      const body = JSON.stringify({
        channel: message.channel,
        text: slackText(message.text),
        ...(message.thread !== null && { thread_ts: message.thread }),
        unfurl_links: false,
        unfurl_media: false,
      });
      const headers = { "content-type": "application/json; charset=utf-8" };
      return call("chat.postMessage", { method: "POST", headers, body }, "", posted);
    },

    /** Looks at a channel whose id is known. */
    async inspect(channel: string): Promise<{ ok: true; place: SlackPlace } | SlackFailed> {
      const answer = await get("conversations.info", { channel }, info);
      return answer.ok ? { ok: true, place: placeOf(answer.value.channel) } : answer;
    },

    /** Finds a channel by its name, or by its id in lower case. Null: there is none that the bot can see. */
    async resolveChannel(name: string): Promise<{ ok: true; place: SlackPlace | null } | SlackFailed> {
      let cursor = "";
      let byId: SlackPlace | null = null;
      for (let page = 0; page < LIST_PAGES; page += 1) {
        const asked = {
          types: "public_channel,private_channel",
          exclude_archived: "true",
          limit: String(PAGE_CHANNELS),
          ...(cursor !== "" && { cursor }),
        };
        const answer = await get("conversations.list", asked, list);
        if (!answer.ok) return answer;
        const { channels, response_metadata } = answer.value;
        const named = channels.find((channel) => channel.name === name);
        if (named !== undefined) return { ok: true, place: placeOf(named) };
        const same = channels.find(({ id }) => id.toLowerCase() === name);
        if (same !== undefined) byId = placeOf(same);
        cursor = response_metadata?.next_cursor ?? "";
        if (cursor === "") return { ok: true, place: byId };
      }
      return byId === null
        ? failed(`#${name} is not among the first ${LIST_PAGES * PAGE_CHANNELS} channels`)
        : { ok: true, place: byId };
    },
  };
}

function placeOf({ id, is_member, is_archived }: v.InferOutput<typeof channelSchema>): SlackPlace {
  return { id, member: is_member, archived: is_archived };
}

/** A text as Slack takes it: cut, and so escaped that it mentions nobody and links nothing of its own. */
function slackText(text: string): string {
  const cut = safeText(text, SLACK_TEXT_CHARS);
  const escaped = cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  if (cut.length < text.length) return `${escaped}\n… (cut: the whole is kept in Duework)`;
  return escaped.trim() === "" ? "(empty)" : escaped;
}
