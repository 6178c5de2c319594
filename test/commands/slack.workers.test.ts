import { describe, expect, test } from "vitest";
import { createChannels } from "../../src/commands/channels.ts";
import { replay } from "../../src/outbox/dead-letters.ts";
import { createOutside, type Outside, SLACK, slackStandIn } from "./outside.ts";

const SECOND = 1_000;
const CHANNEL = "slack:general";

async function withSlack(): Promise<{ slack: ReturnType<typeof slackStandIn>; world: Outside }> {
  const slack = slackStandIn();
  return { slack, world: await createOutside(SLACK, slack.fetch) };
}

const hang = () => new Promise<Response>(() => {});
/** A body of a byte every 20 ms, without an end. */
const drip = () =>
  new Response(
    new ReadableStream({
      async pull(controller) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        controller.enqueue(new Uint8Array([32]));
      },
    }),
  );

describe("a thread in Slack", () => {
  test("is opened with its first message, and every later one is posted under it, in order", async () => {
    const { slack, world } = await withSlack();
    await world.say(CHANNEL, "t1", ["lead", "receipt"]);
    await world.say(CHANNEL, "t1", ["result"]);
    await world.settle();

    expect(slack.posts.map(({ text }) => text)).toEqual(["lead", "receipt", "result"]);
    const [lead, ...others] = slack.posts;
    expect(lead).not.toHaveProperty("thread_ts");
    expect(lead).toMatchObject({ channel: "C1", unfurl_links: false, unfurl_media: false });
    for (const other of others) expect(other.thread_ts).toBe(lead?.ts);
    expect(await world.rows("SELECT external, posting_until FROM threads")).toEqual([
      { external: `C1/${lead?.ts}`, posting_until: null },
    ]);
    expect(await world.posted()).toHaveLength(3);
    expect(await world.items()).toEqual([]);
  });

  test("is posted to by one delivery at a time: each message goes out once, in order, whichever item comes first", async () => {
    const { slack, world } = await withSlack();
    let under = 0;
    let most = 0;
    for (const _ of [1, 2, 3, 4]) {
      slack.plan("chat.postMessage", async ({ body }) => {
        under += 1;
        most = Math.max(most, under);
        await new Promise((resolve) => setTimeout(resolve, 30));
        under -= 1;
        const ts = `1700000000.00000${slack.posts.length + 1}`;
        slack.posts.push({ ...JSON.parse(body), ts });
        return Response.json({ ok: true, channel: "C1", ts });
      });
    }
    for (const text of ["one", "two", "three", "four"]) await world.say(CHANNEL, "t1", [text]);
    await world.settle();
    expect(slack.posts.map(({ text }) => text)).toEqual(["one", "two", "three", "four"]);
    expect(most).toBe(1);
  });

  test("that broke off between a post and its mark repeats that one message, and no other", async () => {
    const { slack, world } = await withSlack();
    const [, second] = await world.say(CHANNEL, "t1", ["one", "two", "three"]);
    await world.db
      .prepare(
        `CREATE TRIGGER dies BEFORE UPDATE OF posted_at ON messages WHEN NEW.id = '${second}'
         BEGIN SELECT RAISE(ABORT, 'the worker died here'); END`,
      )
      .run();
    try {
      while (slack.posts.length < 2) {
        await world.deliver();
        world.wait(2 * SECOND);
      }
    } finally {
      await world.db.prepare("DROP TRIGGER dies").run();
    }
    expect(await world.posted()).toHaveLength(1);
    await world.settle();
    expect(slack.posts.map(({ text }) => text)).toEqual(["one", "two", "two", "three"]);
    expect(await world.items()).toEqual([]);
  });

  test("a poster that died holds its thread until its lease ends, and no longer", async () => {
    const { slack, world } = await withSlack();
    await world.say(CHANNEL, "t1", ["one"]);
    await world.db
      .prepare("UPDATE threads SET posting_until = ?1")
      .bind(world.now() + 40 * SECOND)
      .run();
    await world.deliver();
    expect(slack.posts).toEqual([]);
    expect(await world.items()).toMatchObject([{ attempts: 0, due_at: world.now() + SECOND }]);
    world.wait(40 * SECOND);
    await world.settle();
    expect(slack.posts).toHaveLength(1);
  });

  test("a text that came from Slack is not posted back to it", async () => {
    const { slack, world } = await withSlack();
    await world.say(CHANNEL, "t1", ["from outside"], { postedAt: world.now() });
    await world.say(CHANNEL, "t1", ["answer"]);
    await world.settle();
    expect(slack.posts.map(({ text }) => text)).toEqual(["answer"]);
  });

  test("a hostile or long text mentions nobody, links nothing, and is cut with a word about it", async () => {
    const { slack, world } = await withSlack();
    await world.say(CHANNEL, "t1", [
      "<!channel> <@U1> a&b <https://evil.test|here>",
      `${"€".repeat(3_899)}😀😀`,
      "   ",
    ]);
    await world.settle();
    const [hostile, long, empty] = slack.posts.map(({ text }) => text);
    expect(hostile).toBe("&lt;!channel&gt; &lt;@U1&gt; a&amp;b &lt;https://evil.test|here&gt;");
    expect(long).toMatch(/^€{3899}\n… \(cut/);
    expect(empty).toBe("(empty)");
  });

  test("goes on behind a long backlog in several deliveries, still in order", async () => {
    const { slack, world } = await withSlack();
    const texts = Array.from({ length: 45 }, (_, n) => `n${n}`);
    await world.say(CHANNEL, "t1", texts);
    await world.settle();
    expect(slack.posts.map(({ text }) => text)).toEqual(texts);
  });
});

describe("an answer of Slack's", () => {
  test.each([
    ["429", () => new Response("", { status: 429, headers: { "retry-after": "30" } })],
    ["ratelimited", () => Response.json({ ok: false, error: "ratelimited" }, { headers: { "retry-after": "30" } })],
  ])("%s puts the message off as asked, and counts no failure", async (_, answer) => {
    const { slack, world } = await withSlack();
    slack.plan("chat.postMessage", answer);
    await world.say(CHANNEL, "t1", ["one"]);
    await world.deliver();
    expect(await world.items()).toMatchObject([{ attempts: 0, due_at: world.now() + 30 * SECOND }]);
    world.wait(30 * SECOND);
    await world.deliver();
    expect(slack.posts).toHaveLength(1);
  });

  test.each([
    ["500", () => new Response("oops", { status: 500 })],
    ["a body of HTML", () => new Response("<html>", { headers: { "content-type": "text/html" } })],
    ["a redirect", () => new Response("", { status: 302, headers: { location: "https://elsewhere.test/" } })],
    ["invalid_auth", () => Response.json({ ok: false, error: "invalid_auth" })],
    ["missing_scope", () => Response.json({ ok: false, error: "missing_scope" })],
    ["one without its ts", () => Response.json({ ok: true, channel: "C1" })],
    ["a hang", hang],
    ["a slow drip", drip],
  ])("%s is tried again later, counted, and nothing is marked", async (_, answer) => {
    const { slack, world } = await withSlack();
    slack.plan("chat.postMessage", answer);
    await world.say(CHANNEL, "t1", ["one"]);
    await world.deliver();
    expect(await world.items()).toMatchObject([{ attempts: 1 }]);
    expect(await world.posted()).toEqual([]);
    expect(JSON.stringify([await world.items(), world.logged])).not.toContain("xoxb-test");
    await world.settle();
    expect(slack.posts).toHaveLength(1);
    expect(slack.asked.every(({ url }) => url.hostname === "slack.test")).toBe(true);
  });

  test.each(["channel_not_found", "not_in_channel", "is_archived"])(
    "%s marks the channel gone and ends the message; the next that gets through takes it along",
    async (error) => {
      const { slack, world } = await withSlack();
      slack.plan("chat.postMessage", () => slack.no(error));
      await world.say(CHANNEL, "t1", ["one"]);
      await world.settle();
      expect(await world.dead()).toEqual([{ reason: "channel_gone", error, attempts: 0 }]);
      const state = "SELECT channel, gone_at IS NULL AS there, detail FROM channel_states";
      expect(await world.rows(state)).toEqual([{ channel: CHANNEL, there: 0, detail: error }]);

      await world.say(CHANNEL, "t1", ["two"]);
      await world.settle();
      expect(slack.posts.map(({ text }) => text)).toEqual(["one", "two"]);
      expect(await world.rows(state)).toEqual([{ channel: CHANNEL, there: 1, detail: "" }]);

      const [letter] = await world.rows<{ id: string }>("SELECT id FROM dead_letters");
      await replay(world.invocation(), letter!.id);
      world.wait(60 * SECOND);
      await world.tick();
      await world.settle();
      expect(slack.posts).toHaveLength(2);
    },
  );

  test("a channel that Slack does not show is gone, and its name is looked for in every page", async () => {
    const { slack, world } = await withSlack();
    await world.say("slack:nowhere", "t1", ["one"]);
    await world.settle();
    expect(await world.dead()).toEqual([{ reason: "channel_gone", error: "channel_not_found", attempts: 0 }]);
    expect(slack.methods()).toEqual(["conversations.list", "conversations.list"]);
  });
});

describe("a channel", () => {
  test("can open threads when the bot is in it; it is found by name once, then by its id", async () => {
    const { slack, world } = await withSlack();
    expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toEqual({ ok: true });
    expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toEqual({ ok: true });
    expect(slack.methods()).toEqual(["conversations.list", "conversations.list", "conversations.info"]);
    await world.say(CHANNEL, "t1", ["one"]);
    await world.settle();
    expect(slack.methods().slice(3)).toEqual(["chat.postMessage"]);
  });

  test("that comes back is there again", async () => {
    const { slack, world } = await withSlack();
    await world.channels.canOpen(world.invocation(), CHANNEL);
    slack.channels[0]!.is_archived = true;
    expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toMatchObject({
      ok: false,
      code: "channel_gone",
    });
    const [gone] = await world.rows<{ gone_at: number }>("SELECT gone_at FROM channel_states");
    expect(gone?.gone_at).toBe(world.now());
    slack.channels[0]!.is_archived = false;
    expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toEqual({ ok: true });
    expect(await world.rows("SELECT gone_at, external FROM channel_states")).toEqual([
      { gone_at: null, external: "C1" },
    ]);
  });

  test("whose name is another's by now is found anew", async () => {
    const { slack, world } = await withSlack();
    await world.channels.canOpen(world.invocation(), CHANNEL);
    slack.channels[0] = { id: "C9", name: "general", is_member: true, is_archived: false };
    expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toEqual({ ok: true });
    expect(await world.rows("SELECT external FROM channel_states")).toEqual([{ external: "C9" }]);
  });

  test("is refused by what is wrong with it", async () => {
    const { slack, world } = await withSlack();
    const ask = (channel: string) => world.channels.canOpen(world.invocation(), channel);
    expect(await ask("slack:nowhere")).toMatchObject({ ok: false, code: "channel_gone" });
    expect(await ask("slack:not-ours")).toMatchObject({ ok: false, code: "channel_cannot_open" });
    expect(await ask("webhook:ops")).toMatchObject({ ok: false, code: "not_configured" });
    expect(await ask("inbox:ops")).toEqual({ ok: true });
    slack.plan("conversations.list", () => new Response("", { status: 429, headers: { "retry-after": "17" } }));
    const limited = await ask(CHANNEL);
    expect(limited).toMatchObject({ ok: false, code: "channel_unreachable" });
    expect(limited).toHaveProperty("message", expect.stringContaining("17 s"));
    slack.plan("conversations.list", hang);
    expect(await ask(CHANNEL)).toMatchObject({ ok: false, code: "channel_unreachable" });
    slack.plan("conversations.list", () => slack.no("invalid_auth"));
    expect(await ask(CHANNEL)).toMatchObject({ ok: false, code: "channel_unreachable" });
  });

  test("that is not set up is refused, and what is said in it stays in D1", async () => {
    const { channels, module } = createChannels({});
    expect(module).toBeNull();
    expect([channels.leaves("slack:general"), channels.leaves("inbox:ops"), channels.leaves("webhook:a")]).toEqual([
      false,
      false,
      false,
    ]);
    const { world } = await withSlack();
    const answer = await channels.canOpen(world.invocation(), CHANNEL);
    expect(answer).toMatchObject({ ok: false, code: "not_configured" });
    const [result] = await channels.commit(
      world.invocation(),
      [world.db.prepare("SELECT 1 AS one")],
      [{ channel: CHANNEL, message: "m" }],
    );
    expect(result?.results).toEqual([{ one: 1 }]);
    expect(await world.items()).toEqual([]);
  });
});

describe("a commit", () => {
  test("holds the rows and the items that carry them, or neither", async () => {
    const { world } = await withSlack();
    const wrong = world.db.prepare(
      "INSERT INTO messages (id, thread, at, author, kind, text) VALUES ('x','t',1,'','text','')",
    );
    const leaving = [{ channel: CHANNEL, message: "x" }];
    await expect(world.channels.commit(world.invocation(), [wrong], leaving)).rejects.toThrow(/constraint/i);
    expect(await world.items()).toEqual([]);
  });

  test("is not lost when its items are refused", async () => {
    const { world } = await withSlack();
    const insert = world.db.prepare(
      "INSERT INTO messages (id, thread, at, author, kind, text) VALUES ('x','t',1,'a','text','')",
    );
    const [result] = await world.channels.commit(world.invocation(), [insert], [{ channel: CHANNEL, message: "" }]);
    expect(result?.meta.changes).toBe(1);
    expect(world.logged).toMatchObject([{ event: "posting_refused", code: "payload_refused" }]);
  });

  test("of nothing is nothing", async () => {
    const { world } = await withSlack();
    expect(await world.channels.commit(world.invocation(), [], [])).toEqual([]);
  });

  test("of a message that was not written, or whose thread is gone, posts nothing", async () => {
    const { slack, world } = await withSlack();
    await world.channels.commit(world.invocation(), [], [{ channel: CHANNEL, message: "never-said" }]);
    await world.say(CHANNEL, "t1", ["one"]);
    await world.db.prepare("DELETE FROM threads").run();
    await world.settle();
    expect(slack.asked).toEqual([]);
    expect([await world.items(), await world.dead()]).toEqual([[], []]);
  });
});

describe("a setting of a channel", () => {
  const secret = `whsec_${btoa("s".repeat(32))}`;
  test.each([
    ["SLACK_BOT_TOKEN", "two words"],
    ["SLACK_SIGNING_SECRET", "line\nbreak"],
    ["SLACK_API_URL", "ftp://slack.test"],
    ["WEBHOOK_CHANNELS", "{"],
    ["WEBHOOK_CHANNELS", "[]"],
    ["WEBHOOK_CHANNELS", JSON.stringify({ ops: { url: "https://a.example/", secret: "whsec_c2hvcnQ=" } })],
    ["WEBHOOK_CHANNELS", JSON.stringify({ ops: { url: "http://a.example/", secret } })],
    ["WEBHOOK_CHANNELS", JSON.stringify({ ops: { url: "https://10.0.0.1/", secret } })],
    ["WEBHOOK_CHANNELS", JSON.stringify({ "No Name": { url: "https://a.example/", secret } })],
    ["WEBHOOK_CHANNELS", JSON.stringify({ ops: { url: "https://a.example/", secret: 271_828 } })],
  ])("%s = %j is a problem that names it and shows no secret", (name, value) => {
    const { problems } = createChannels({ [name]: value });
    expect(problems).toMatchObject([{ code: "bad_setting", setting: name }]);
    for (const shown of ["two words", "line", "271828", "271_828", "c2hvcnQ", secret]) {
      expect(JSON.stringify(problems)).not.toContain(shown);
    }
  });

  test("WEBHOOKS_ALLOW_PRIVATE lets a webhook be local", () => {
    const WEBHOOK_CHANNELS = JSON.stringify({ ops: { url: "http://127.0.0.1:9/", secret } });
    expect(createChannels({ WEBHOOK_CHANNELS, WEBHOOKS_ALLOW_PRIVATE: "true" }).problems).toEqual([]);
  });
});
