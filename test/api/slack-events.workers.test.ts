import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { type SlackEvents, slackEvents } from "../../src/api/slack-events.ts";
import type { Actor, Token } from "../../src/commands/actor.ts";
import { define, type Registered } from "../../src/commands/define.ts";
import { type DispatchAnswer, dispatchText } from "../../src/commands/dispatch.ts";
import { beginStep, finishStep } from "../../src/commands/run.ts";
import { openThreads, say } from "../../src/commands/threads.ts";
import { createOutside, SLACK, slackStandIn } from "../commands/outside.ts";

const SECOND = 1_000;
const SECRET = "a signing secret";
const ADA: Token = {
  subject: "ada",
  sha256: "0".repeat(64),
  grants: { actions: "all", channels: "all", scopes: [] },
  slackUser: "U100",
};
interface Said {
  text: string;
  channel: string;
  thread: string;
  messageId: string;
}

/** The route over real D1, with a dispatch that writes the text as the real one does. */
async function withEvents({ answer }: { answer?: DispatchAnswer } = {}) {
  const slack = slackStandIn();
  const world = await createOutside(SLACK, slack.fetch);
  const dispatched: { actor: Actor; said: Said }[] = [];
  const deps: SlackEvents = {
    clock: world.now,
    signingSecret: SECRET,
    tokens: [ADA],
    runtime: world.runtime,
    channels: world.channels,
    dispatch: async ({ db, now }, actor, said) => {
      dispatched.push({ actor, said });
      if (answer !== undefined) return answer;
      const { messageId, thread, text } = said;
      const id = `text-${messageId}`;
      await db.batch(say(db, [{ id, thread, at: now, author: actor.id, kind: "text", text, postedAt: now }]));
      return { ok: true, thread, outcome: "admitted", runId: `run-${messageId}` };
    },
  };
  const app = slackEvents(deps);
  const post = async (body: string, how: { at?: number; secret?: string; headers?: Record<string, string> } = {}) => {
    const timestamp = String(Math.floor((how.at ?? world.now()) / SECOND));
    return app.request("/api/slack/events", {
      method: "POST",
      body,
      headers: {
        "content-type": "application/json",
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": await sign(how.secret ?? SECRET, timestamp, body),
        ...how.headers,
      },
    });
  };
  let events = 0;
  const event = (more: object, id?: string) => {
    events += 1;
    return JSON.stringify({
      type: "event_callback",
      event_id: id ?? `Ev${events}`,
      authorizations: [{ user_id: "U9BOT", is_bot: true }],
      event: {
        type: "app_mention",
        user: "U100",
        channel: "C1",
        ts: "1700000001.000100",
        text: "<@U9BOT> topics",
        ...more,
      },
    });
  };
  return { slack, world, dispatched, deps, post, event };
}

async function sign(secret: string, timestamp: string, body: string): Promise<string> {
  const text = new TextEncoder();
  const key = await crypto.subtle.importKey("raw", text.encode(secret), { name: "HMAC", hash: "SHA-256" }, false, [
    "sign",
  ]);
  const mac = new Uint8Array(await crypto.subtle.sign("HMAC", key, text.encode(`v0:${timestamp}:${body}`)));
  return `v0=${[...mac].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

describe("an event is refused", () => {
  test("unless it is signed by Slack, over this very body", async () => {
    const { post, event, dispatched } = await withEvents();
    const body = event({});
    const statuses = [
      await post(body, { secret: "another" }),
      await post(body, { headers: { "x-slack-signature": "v0=" } }),
      await post(body, { headers: { "x-slack-signature": "" } }),
      await post(`${body} `, { headers: { "x-slack-signature": await sign(SECRET, "1", body) } }),
      await post(body, { headers: { "x-slack-request-timestamp": "" } }),
      await post(body, { headers: { "x-slack-request-timestamp": "1e9" } }),
    ].map(({ status }) => status);
    expect(statuses).toEqual([401, 401, 401, 401, 401, 401]);
    expect(dispatched).toEqual([]);
  });

  test.each([
    ["six minutes old", -360, 401],
    ["six minutes ahead", 360, 401],
    ["four minutes old", -240, 200],
    ["four minutes ahead", 240, 200],
  ])("when it is %s by its own time: %i s → %i", async (_, seconds, status) => {
    const { world, post, event, dispatched } = await withEvents();
    expect((await post(event({}), { at: world.now() + seconds * SECOND })).status).toBe(status);
    expect(dispatched).toHaveLength(status === 200 ? 1 : 0);
  });

  test("when it is too large, when it is not JSON, and while there is no secret", async () => {
    const { post, deps } = await withEvents();
    expect((await post(JSON.stringify({ x: "y".repeat(256 * 1024) }))).status).toBe(413);
    expect((await post("{")).status).toBe(400);
    deps.signingSecret = null;
    const answer = await post("{}");
    expect(answer.status).toBe(503);
    expect(await answer.json()).toMatchObject({ code: "misconfigured" });
  });
});

test("the challenge is answered", async () => {
  const { post } = await withEvents();
  const answer = await post(JSON.stringify({ type: "url_verification", challenge: "3eZbrw1a", token: "old" }));
  expect([answer.status, await answer.json()]).toEqual([200, { challenge: "3eZbrw1a" }]);
});

describe("a mention", () => {
  test("opens a thread and is dispatched as the person it is of, as it was typed", async () => {
    const { world, post, event, dispatched } = await withEvents();
    const text = "<@U9BOT> schedule add x &lt;b&gt; &amp;amp; <https://a.example/?q=1&amp;r=2|a.example> <!here>";
    expect((await post(event({ text }))).status).toBe(200);
    const [thread] = await world.rows<{ id: string }>("SELECT id, channel, external, title FROM threads");
    expect(thread).toMatchObject({ channel: "slack:c1", external: "C1/1700000001.000100" });
    expect(dispatched).toEqual([
      {
        actor: { kind: "user", id: "http:ada", grants: ADA.grants },
        said: {
          text: "schedule add x <b> &amp; https://a.example/?q=1&r=2 <!here>",
          channel: "slack:c1",
          thread: thread?.id,
          messageId: "slack-Ev1",
        },
      },
    ]);
  });

  test("that comes again is dispatched once", async () => {
    const { post, event, dispatched } = await withEvents();
    const body = event({}, "EvTwice");
    for (const _ of [1, 2, 3]) expect((await post(body, { headers: { "x-slack-retry-num": "1" } })).status).toBe(200);
    expect(dispatched).toHaveLength(1);
  });

  test("in a thread that a schedule opened is of that thread, and of the channel by its name", async () => {
    const { world, post, event, dispatched } = await withEvents();
    await world.say("slack:general", "t1", ["lead"]);
    await world.settle();
    const [{ external } = { external: "" }] = await world.rows<{ external: string }>("SELECT external FROM threads");
    await post(event({ thread_ts: external.split("/")[1] }));
    await post(event({ ts: "1700000009.000900" }));
    expect(dispatched.map(({ said }) => [said.channel, said.thread])).toEqual([
      ["slack:general", "t1"],
      ["slack:general", "slack-C1-1700000009-000900"],
    ]);
  });

  test("of two at once in a new thread opens one thread for both", async () => {
    const { world, post, event, dispatched } = await withEvents();
    const thread_ts = "1700000001.000100";
    await Promise.all([
      post(event({ thread_ts, ts: "1700000002.000100" })),
      post(event({ thread_ts, ts: "1700000002.000200" })),
    ]);
    expect(await world.rows("SELECT id FROM threads")).toHaveLength(1);
    expect(new Set(dispatched.map(({ said }) => said.thread)).size).toBe(1);
    expect(dispatched).toHaveLength(2);
  });

  test("of nobody here is told so in its thread, once, and nothing runs", async () => {
    const { slack, world, post, event, dispatched } = await withEvents();
    const body = event({ user: "U666", text: "<@U9BOT> <!channel> drop it" }, "EvX");
    await post(body);
    await post(body);
    await world.settle();
    expect(dispatched).toEqual([]);
    expect(slack.posts).toMatchObject([{ channel: "C1", thread_ts: "1700000001.000100" }]);
    expect(slack.posts[0]?.text).toMatch(/^not_granted: /);
    expect(await world.rows("SELECT author, kind FROM messages ORDER BY at")).toEqual([
      { author: "slack:U666", kind: "text" },
      { author: "duework", kind: "refusal" },
    ]);
  });

  test("whose dispatch is refused before anything is said is told why", async () => {
    const answer = { ok: false as const, code: "not_granted" as const, field: "channel", message: "no such channel" };
    const { slack, world, post, event } = await withEvents({ answer });
    await post(event({}));
    await world.settle();
    expect(slack.posts.map(({ text }) => text)).toEqual(["not_granted: no such channel"]);
  });
});

describe("a message without a mention", () => {
  test("is dispatched in a thread that is known, and nowhere else", async () => {
    const { world, post, event, dispatched } = await withEvents();
    const plain = { type: "message", text: "topics" };
    await post(event({ ...plain, thread_ts: "1600000000.000100" }));
    await post(event(plain));
    expect([dispatched, await world.rows("SELECT id FROM threads")]).toEqual([[], []]);

    const thread = { id: "t1", channel: "slack:general", title: "t", openedBy: "x", external: "C1/1600000000.000100" };
    await openThreads(world.db, [thread], world.now()).run();
    await post(event({ ...plain, thread_ts: "1600000000.000100" }));
    expect(dispatched.map(({ said }) => [said.thread, said.text])).toEqual([["t1", "topics"]]);
  });

  test.each([
    ["of a bot", { bot_id: "B1" }],
    ["of this bot", { user: "U9BOT" }],
    ["that is an edit", { subtype: "message_changed" }],
    ["that joins", { subtype: "channel_join" }],
    ["that mentions the bot, and comes as a mention too", { text: "<@U9BOT> topics" }],
    ["of nobody", { user: undefined }],
    ["with an id that is none", { channel: "C1/../C2" }],
  ])("%s is acked and ignored", async (_, more) => {
    const { world, post, event, dispatched } = await withEvents();
    const thread = { id: "t1", channel: "slack:general", title: "t", openedBy: "x", external: "C1/1600000000.000100" };
    await openThreads(world.db, [thread], world.now()).run();
    const answer = await post(event({ type: "message", text: "topics", thread_ts: "1600000000.000100", ...more }));
    expect([answer.status, dispatched, await world.rows("SELECT id FROM messages")]).toEqual([200, [], []]);
  });

  test.each(["reaction_added", "member_joined_channel"])("an event %s is acked and ignored", async (type) => {
    const { post, event, dispatched } = await withEvents();
    expect([(await post(event({ type }))).status, dispatched]).toEqual([200, []]);
  });
});

describe("the whole way", () => {
  const greet = define(
    { name: "greet.say", effect: "read", grant: "greet:read", help: "Greets.", positional: ["name"] },
    v.strictObject({ name: v.string() }),
    async ({ name }) => ({ ok: true, result: { hello: name } }),
  );

  async function withDispatch(grants: Token["grants"] = ADA.grants) {
    const { slack, world, deps, post, event } = await withEvents();
    const made: string[] = [];
    const createBatch = async ({ instances }: { instances: { id: string }[] }) => {
      made.push(...instances.map(({ id }) => id));
      return { created: [], errors: [] };
    };
    const tokens = [{ ...ADA, grants }];
    const registry: ReadonlyMap<string, Registered> = new Map([[greet.name, greet]]);
    const runs = { createBatch } as unknown as Workflow;
    const dispatcher = {
      registry: () => registry,
      tokens,
      router: null,
      runs,
      channels: world.channels,
      alertsTo: null,
    };
    deps.tokens = tokens;
    deps.dispatch = ((invocation, actor, said) => dispatchText(invocation, dispatcher, actor, said)) as Parameters<
      typeof slackEvents
    >[0]["dispatch"];
    return { slack, world, post, event, made, dispatcher };
  }

  test("a mention becomes a run; receipt and result come back in its thread; a replay changes nothing", async () => {
    const { slack, world, post, event, made, dispatcher } = await withDispatch();
    const body = event({ text: "<@U9BOT> greet say Ada" }, "EvRun");
    expect((await post(body)).status).toBe(200);
    expect(made).toEqual(["run-slack-EvRun"]);
    const begun = await beginStep(world.invocation(), "run-slack-EvRun");
    const end = { status: "succeeded" as const, result: '{"hello":"Ada"}', error: null };
    await finishStep(world.invocation(), dispatcher, begun!, end);
    await post(body);
    await Promise.all([post(body), post(body)]);
    await world.settle();
    expect(made).toHaveLength(1);
    expect(slack.posts.map(({ text }) => text.split("\n")[0])).toEqual(["greet say Ada", "greet say: succeeded"]);
    expect(slack.posts.every(({ thread_ts }) => thread_ts === "1700000001.000100")).toBe(true);
  });

  test("the same event twice at once is one run, and no refusal", async () => {
    const { slack, world, post, event, made } = await withDispatch();
    const body = event({ text: "<@U9BOT> greet say Ada" }, "EvTwins");
    await Promise.all([post(body), post(body)]);
    await world.settle();
    expect(new Set(made).size).toBe(1);
    expect(slack.posts.map(({ text }) => text.split("\n")[0])).toEqual(["greet say Ada"]);
  });

  test("a second text in a busy thread, a text of no command and a channel that is not granted are each answered", async () => {
    const { slack, world, post, event } = await withDispatch();
    await post(event({ text: "<@U9BOT> greet say Ada" }));
    world.wait(SECOND);
    await post(event({ text: "<@U9BOT> greet say Bob", thread_ts: "1700000001.000100", ts: "1700000002.000100" }));
    world.wait(SECOND);
    await post(event({ text: "<@U9BOT> make me a sandwich", ts: "1700000003.000100" }));
    await world.settle();
    const codes = slack.posts.map(({ text }) => text.split(/[:\n]/)[0]);
    expect(codes.sort()).toEqual(["greet say Ada", "no_route", "thread_busy"]);

    const narrow = await withDispatch({ actions: "all", channels: ["slack:elsewhere"], scopes: [] });
    await narrow.post(narrow.event({ text: "<@U9BOT> greet say Ada" }));
    await narrow.world.settle();
    expect(narrow.slack.posts.map(({ text }) => text.split(":")[0])).toEqual(["not_granted"]);
    expect(narrow.made).toEqual([]);
  });
});
