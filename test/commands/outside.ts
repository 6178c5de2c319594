import { env } from "cloudflare:workers";
import { createChannels } from "../../src/commands/channels.ts";
import { type NewMessage, openThreads, say } from "../../src/commands/threads.ts";
import { configure } from "../../src/outbox/configure.ts";
import { consume } from "../../src/outbox/consume.ts";
import { beginInvocation, type Invocation } from "../../src/outbox/runtime.ts";

const { DB } = env as unknown as { DB: D1Database };
const TABLES = ["items", "item_keys", "dead_letters", "threads", "messages", "runs", "channel_states"];

/** What the outside was asked. */
export interface Asked {
  method: string;
  url: URL;
  headers: Record<string, string>;
  body: string;
}

/** Channels on real D1, with a queue that keeps what it got, a clock that the test moves, and a stub of the outside. */
export async function createOutside(
  settings: Record<string, string>,
  fetch: (asked: Asked) => Response | Promise<Response>,
  { callMs = 200, start = Date.UTC(2027, 0, 10, 12) } = {},
) {
  await DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`)));
  let clock = start;
  const logged: Record<string, unknown>[] = [];
  const sent: unknown[] = [];
  const ports = {
    clock: () => clock,
    random: () => 0,
    bytes: (length: number) => crypto.getRandomValues(new Uint8Array(length)),
    fetch: async (input: string | URL | Request, init?: RequestInit) => {
      const request = new Request(input as string, init);
      const answer = fetch({
        method: request.method,
        url: new URL(request.url),
        headers: Object.fromEntries(request.headers),
        body: await request.text(),
      });
      return answer;
    },
    log: (event: Record<string, unknown>) => void logged.push(event),
  };
  const ITEMS = {
    sendBatch: async (batch: Iterable<MessageSendRequest>) => {
      for (const { body } of batch) sent.push(body);
    },
  };
  const { channels, module, problems } = createChannels(settings, { callMs });
  if (module === null || problems.length > 0) throw new Error(JSON.stringify(problems));
  const configured = configure([module], { DB, ITEMS }, ports);
  if (configured.runtime === null) throw new Error(JSON.stringify(configured.problems));
  const { runtime } = configured;
  const invocation = (): Invocation => beginInvocation(runtime, clock);

  let said = 0;
  const rows = async <Row>(sql: string) => (await DB.prepare(sql).all<Row>()).results;
  return {
    db: DB,
    channels,
    runtime,
    invocation,
    logged,
    now: () => clock,
    wait: (ms: number) => {
      clock += ms;
    },
    rows,
    /** Opens a thread and says its messages, in one commit that carries them out. */
    say: async (channel: string, thread: string, texts: readonly string[], more: Partial<NewMessage> = {}) => {
      const now = invocation();
      const messages = texts.map((text): NewMessage => {
        said += 1;
        return { id: `m${said}`, thread, at: clock + said, author: "duework", kind: "text", text, ...more };
      });
      const opened = openThreads(DB, [{ id: thread, channel, title: thread, openedBy: "http:ada" }], clock);
      const statements = [opened, ...say(DB, messages)];
      await channels.commit(
        now,
        statements,
        messages.map(({ id }) => ({ channel, message: id })),
      );
      return messages.map(({ id }) => id);
    },
    /** Delivers what was sent, as one batch; its items run side by side. */
    deliver: async () => {
      const batch = sent.splice(0).map((body) => ({ body, attempts: 1, settle: () => {} }));
      if (batch.length > 0) await consume(invocation(), batch);
      return batch.length;
    },
    /** Delivers again and again, with the clock moved on, until nothing is left to send. */
    settle: async () => {
      for (let turn = 0; turn < 20; turn += 1) {
        const batch = sent.splice(0).map((body) => ({ body, attempts: 1, settle: () => {} }));
        if (batch.length === 0) return;
        await consume(invocation(), batch);
        clock += 5_000;
      }
      throw new Error("it goes on and on");
    },
    /** Sends what waits, as the tick would. */
    tick: async (topicName = "channels.post") => {
      const topic = runtime.topics.get(topicName);
      if (topic === undefined) throw new Error(topicName);
      const { drainWithin } = await import("../../src/outbox/drain.ts");
      const { unboundedBudget } = await import("../../src/core/budget.ts");
      return drainWithin(invocation(), topic, unboundedBudget(), { limit: 100 });
    },
    dead: () =>
      rows<{ reason: string; error: string; attempts: number }>("SELECT reason, error, attempts FROM dead_letters"),
    items: () => rows<{ due_at: number; attempts: number }>("SELECT due_at, attempts FROM items ORDER BY seq"),
    posted: () => rows<{ id: string }>("SELECT id FROM messages WHERE posted_at IS NOT NULL ORDER BY at, id"),
  };
}

export type Outside = Awaited<ReturnType<typeof createOutside>>;

/** The Slack that a test talks to: a few channels, and answers that a test puts before its own. */
export function slackStandIn() {
  const channels = [
    { id: "C1", name: "general", is_member: true, is_archived: false },
    { id: "C2", name: "not-ours", is_member: false, is_archived: false },
  ];
  const posts: { channel: string; text: string; thread_ts?: string; ts: string }[] = [];
  const asked: Asked[] = [];
  /** Answers for the coming calls of a method, before the stand-in's own. */
  const next: { method: string; answer: (asked: Asked) => Response | Promise<Response> }[] = [];
  const ok = (more: object = {}) => Response.json({ ok: true, ...more });
  const no = (error: string, status = 200, headers: Record<string, string> = {}) =>
    Response.json({ ok: false, error }, { status, headers });

  async function fetch(call: Asked): Promise<Response> {
    asked.push(call);
    const method = call.url.pathname.replace("/api/", "");
    const planned = next.findIndex((one) => one.method === method);
    if (planned >= 0) return next.splice(planned, 1)[0]!.answer(call);
    if (call.headers.authorization !== "Bearer xoxb-test") return no("invalid_auth");
    switch (method) {
      case "chat.postMessage": {
        const body = JSON.parse(call.body);
        const channel = channels.find(({ id }) => id === body.channel);
        if (channel === undefined) return no("channel_not_found");
        if (channel.is_archived) return no("is_archived");
        if (!channel.is_member) return no("not_in_channel");
        const ts = `1700000000.${String(posts.length + 1).padStart(6, "0")}`;
        posts.push({ ...body, ts });
        return ok({ channel: channel.id, ts, message: { text: body.text } });
      }
      case "conversations.info": {
        const channel = channels.find(({ id }) => id === call.url.searchParams.get("channel"));
        return channel === undefined ? no("channel_not_found") : ok({ channel });
      }
      case "conversations.list": {
        // Two pages, to be read to the end.
        const cursor = call.url.searchParams.get("cursor");
        const shown = channels.filter(({ is_archived }) => !is_archived);
        return cursor === null
          ? ok({ channels: [], response_metadata: { next_cursor: "cDI=" } })
          : ok({ channels: shown, response_metadata: { next_cursor: "" } });
      }
      default:
        return no("unknown_method");
    }
  }
  return {
    channels,
    posts,
    asked,
    no,
    fetch,
    plan: (method: string, answer: (asked: Asked) => Response | Promise<Response>, times = 1) => {
      for (let n = 0; n < times; n += 1) next.push({ method, answer });
    },
    methods: () => asked.map(({ url }) => url.pathname.replace("/api/", "")),
  };
}

export const SLACK = { SLACK_BOT_TOKEN: "xoxb-test", SLACK_API_URL: "https://slack.test/api/" };
