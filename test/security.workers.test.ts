import { beforeEach, describe, expect, test, vi } from "vitest";
import { consumeItems } from "../consumers/items.ts";
import { checkoutExpiry } from "../src/checkout/job.ts";
import { expireOverRpc } from "../src/checkout/rpc.ts";
import { revalidate } from "../src/checkout/storefront-client.ts";
import { readChannelSettings } from "../src/commands/channel-settings.ts";
import type { LogEvent } from "../src/core/ports.ts";
import { MINUTE } from "../src/core/time.ts";
import { deploy } from "../src/create-worker.ts";
import { checkDestination } from "../src/index.ts";
import { webhooks } from "../src/modules/webhooks/index.ts";
import { merchants } from "../src/modules/merchants/index.ts";
import { platformPorts } from "../src/platform.ts";
import { ALL, clear, createStage, DB, HeldRuns } from "./schedules/stage.ts";

/** What docs/security.md promises and no other test shows. */

const NOON = Date.UTC(2026, 2, 10, 12);
const base64 = (text: string) => btoa(text.padEnd(32, "."));
/** Every secret of a deployment, each with something in it that stands nowhere else. */
const SECRETS = {
  SLACK_BOT_TOKEN: "xoxb-1111-secret-of-the-bot",
  SLACK_SIGNING_SECRET: "5ec2e7-of-slack-signing",
  STOREFRONT_TOKEN: "token-for-the-storefront-77",
  SUPABASE_SERVICE_KEY: "eyJ-service-key-of-supabase-88",
  CHECKOUT_EXPIRY_ROUTE_SECRET: "secret-of-the-route-99",
};
const CHANNEL_SECRET = `whsec_${base64("of the channel ops")}`;
const ENV = {
  ...SECRETS,
  STOREFRONT_URL: "https://shop.example/revalidate",
  SUPABASE_URL: "https://data.example",
  CHECKOUT_EXPIRY_ROUTE_URL: "https://shop.example/route",
  CHECKOUT_EXPIRY: new HeldRuns(),
  WEBHOOK_CHANNELS: JSON.stringify({ ops: { url: "https://ops.example/hook", secret: CHANNEL_SECRET } }),
  ENABLED_JOBS: "inventory-checkout-expiry",
};

beforeEach(clear);

describe("secrets", () => {
  test("no log, no answer and no row of a run in which everything fails holds a secret: tokens, sessions, signing secrets, the bot's token, the service key", async () => {
    const printed: string[] = [];
    const spies = (["log", "info", "warn", "error", "debug"] as const).map((level) =>
      vi
        .spyOn(console, level)
        .mockImplementation((...words: unknown[]) => void printed.push(words.map(String).join(" "))),
    );
    /** What the outside was sent: it has to hold the secrets, or this test shows nothing. */
    const sent: string[] = [];
    const said: string[] = [];
    let turn = 0;
    // The outside refuses, breaks off and repeats all that it was told, headers too.
    const fetch = async (input: RequestInfo | URL, init?: RequestInit) => {
      const request = new Request(input, init);
      const headers = JSON.stringify([...request.headers]);
      sent.push(`${request.url} ${headers}`);
      turn += 1;
      if (turn % 3 === 0) throw new TypeError("fetch failed");
      return new Response(`{"ok":false,"error":"no","message":"not you"}`, { status: turn % 2 === 0 ? 500 : 401 });
    };
    const people = [
      { subject: "amy", grants: ALL },
      { subject: "bob", grants: { actions: ["topic:read"] } },
    ];
    const stage = await createStage({
      start: NOON - 10_000,
      people,
      modules: [webhooks, merchants],
      jobs: [checkoutExpiry],
      env: ENV,
      fetch,
    });
    const made = await stage.version();
    const ask = async (method: "GET" | "POST", path: string, body?: unknown, headers: Record<string, string> = {}) => {
      const init = { method, headers: { "content-type": "application/json", ...headers } };
      const served = path.startsWith("/panel") ? made.panel : made.api;
      const text = typeof body === "string" ? body : JSON.stringify(body);
      const response = await served.request(`https://x.test${path}`, {
        ...init,
        ...(body !== undefined && { body: text }),
      });
      said.push(await response.text());
      return response;
    };
    const amy = { authorization: "Bearer token-of-amy" };

    const shown = await stage.command("amy", "webhooks.endpoint-add", { url: "https://a.example/in", events: ["*"] });
    const signing = String(shown.secret);
    expect(signing).toMatch(/^whsec_/);
    await stage.command("amy", "webhooks.publish", { type: "order.paid", data: { n: 1 } });
    await stage.command("amy", "merchants.add", {
      accounts: [{ id: "m", url: "https://m.example/", everySeconds: 60 }],
    });
    for (const channel of ["inbox:ops", "slack:ops", "webhook:ops"]) {
      await stage.command("amy", "dispatch", { text: "probe fail", channel });
      await stage.add(`in-${channel.replace(":", "-")}`, "* * * * *", "probe fail", { channel });
    }
    for (let minute = 0; minute < 4; minute += 1) {
      stage.to(NOON + minute * 5 * MINUTE);
      await stage.tick(undefined, made).catch(() => {});
      await stage.playAll();
      const messages = stage.queue.take().map(({ body }) => ({ body, ack() {}, retry() {} }));
      await consumeItems(
        { queue: "duework-items", messages } as unknown as MessageBatch,
        made.runtime,
        made.jobs.active,
      ).catch(() => {});
    }
    const call = { now: NOON, limit: 10, key: "k" } as unknown as Parameters<typeof expireOverRpc>[2];
    const failures: unknown[] = await Promise.all([
      expireOverRpc(fetch, { url: ENV.SUPABASE_URL, serviceKey: SECRETS.SUPABASE_SERVICE_KEY }, call, 1_000).catch(
        String,
      ),
      revalidate(
        fetch,
        { url: ENV.STOREFRONT_URL, token: SECRETS.STOREFRONT_TOKEN },
        ["00000000-0000-4000-8000-000000000001"],
        1_000,
      ).catch(String),
    ]);
    said.push(JSON.stringify(failures));

    await ask("GET", "/api/topics", undefined, { authorization: "Bearer a-wrong-token-of-nobody" });
    await ask("GET", "/api/runs?cursor=token-of-amy", undefined, amy);
    await ask("POST", "/api/commands/schedule.add", "{not json", amy);
    await ask("POST", "/api/slack/events", "{}", { "x-slack-signature": "v0=00", "x-slack-request-timestamp": "1" });
    const form = { "content-type": "application/x-www-form-urlencoded", origin: "https://x.test" };
    await ask("POST", "/panel/sign-in", "token=a-wrong-token-of-nobody", form);
    const signedIn = await ask("POST", "/panel/sign-in", "token=token-of-amy", form);
    const cookie = signedIn.headers.getSetCookie().map((one) => one.split(";")[0] ?? "");
    const session = cookie.find((one) => /session/i.test(one)) ?? cookie[0] ?? "";
    const pages = ["", "/schedules", "/topics", "/runs", "/ticks", "/jobs", "/inbox", "/dead-letters"];
    for (const page of pages) await ask("GET", `/panel${page}`, undefined, { cookie: cookie.join("; ") });
    for (const path of [
      "ticks",
      "runs",
      "firings",
      "schedules",
      "threads",
      "items?module=webhooks&topic=deliver",
      "jobs",
    ]) {
      await ask("GET", `/api/${path}`, undefined, amy);
    }
    for (const path of ["/healthz", "/metrics", "/openapi.json"]) await ask("GET", path, undefined, amy);
    for (const spy of spies) spy.mockRestore();

    const secrets = {
      ...SECRETS,
      CHANNEL_SECRET,
      signing,
      "the person's token": "token-of-amy",
      "a wrong token": "a-wrong-token-of-nobody",
      session: session.slice(session.indexOf("=") + 1),
    };
    expect(session.length).toBeGreaterThan(20);
    const logs = [...printed, ...stage.logs.map((event) => JSON.stringify(event))];
    expect(logs.length).toBeGreaterThan(10);
    const tables = await DB.prepare(
      "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '_cf_%'",
    ).all<{ name: string }>();
    const rows: string[] = [];
    for (const { name } of tables.results) {
      // An endpoint's secret has to be there: it signs.
      if (name === "webhook_endpoints") continue;
      for (const row of (await DB.prepare(`SELECT * FROM "${name}"`).all()).results) rows.push(JSON.stringify(row));
    }
    expect(rows.length).toBeGreaterThan(20);
    for (const secret of [
      "STOREFRONT_TOKEN",
      "SUPABASE_SERVICE_KEY",
      "CHECKOUT_EXPIRY_ROUTE_SECRET",
      "SLACK_BOT_TOKEN",
    ] as const)
      expect(sent.join("\n"), `${secret} was used`).toContain(SECRETS[secret]);
    for (const [name, secret] of Object.entries(secrets)) {
      const bare = secret.replace(/^whsec_/, "");
      for (const [where, lines] of Object.entries({ logs, rows })) {
        expect(
          lines.filter((line) => line.includes(bare)),
          `${name} in ${where}`,
        ).toEqual([]);
      }
      // A page or an answer shows nobody's secret. The session's own id goes out in its cookie, and in no text.
      expect(
        said.filter((text) => text.includes(bare)).map((text) => text.slice(0, 300)),
        `${name} in an answer`,
      ).toEqual([]);
    }
  });

  const raw = "a-raw-secret-that-was-pasted-where-it-does-not-belong";
  test.each<[string, Record<string, string>]>([
    [
      "a token in place of its digest",
      { DUEWORK_TOKENS: JSON.stringify([{ subject: "amy", sha256: raw, grants: {} }]) },
    ],
    ["a token under another name", { DUEWORK_TOKENS: JSON.stringify([{ subject: "amy", token: raw, grants: {} }]) }],
    ["tokens that are no JSON", { DUEWORK_TOKENS: `[{"token":"${raw}"` }],
    [
      "a token for a subject",
      { DUEWORK_TOKENS: JSON.stringify([{ subject: { [raw]: raw }, sha256: "0", grants: {} }]) },
    ],
    ["a bot's token with a blank", { SLACK_BOT_TOKEN: `${raw} x` }],
    ["a signing secret of two lines", { SLACK_SIGNING_SECRET: `${raw}\n` }],
    ["channels that are no JSON", { WEBHOOK_CHANNELS: `{"ops":{"secret":"${raw}"` }],
    [
      "a channel's secret of another form",
      { WEBHOOK_CHANNELS: JSON.stringify({ ops: { url: "https://a.example/", secret: raw } }) },
    ],
    [
      "a secret in an address",
      { WEBHOOK_CHANNELS: JSON.stringify({ ops: { url: `https://x:${raw}@a.example/`, secret: CHANNEL_SECRET } }) },
    ],
    ["a service key without its address", { SUPABASE_SERVICE_KEY: raw }],
    ["a secret in the limits", { SCHEDULED_LIMITS: raw }],
    ["a secret among the jobs", { ENABLED_JOBS: `x,${"y".repeat(200)}` }],
  ])("a setting that is wrong is named, and what it holds is shown nowhere: %s", async (_, env) => {
    const logs: LogEvent[] = [];
    const ports = { ...platformPorts, log: (event: LogEvent) => void logs.push(event) };
    const program = { modules: [webhooks], catalog: [checkoutExpiry] };
    const bindings = { DB, DUEWORK_TOKENS: "[]", STOREFRONT_URL: "", STOREFRONT_TOKEN: "", ...env };
    const { api, problems } = deploy(program, bindings, ports);
    const health = await (await api.request("https://x.test/healthz")).text();
    expect(JSON.stringify(problems) + health + JSON.stringify(logs)).not.toContain(raw);
    if (!("ENABLED_JOBS" in env || "SUPABASE_SERVICE_KEY" in env)) expect(health).toContain(Object.keys(env)[0]);
  });
});

describe("a webhook channel", () => {
  const secret = CHANNEL_SECRET;
  test.each([
    "https://127.0.0.1/",
    "https://0x7f.1/",
    "https://[::1]/",
    "https://localhost/",
    "https://10.1.2.3/hook",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[fd00:ec2::254]/",
    "https://[::ffff:10.0.0.1]/",
    "https://metadata.google.internal/",
    "http://ops.example/",
    "https://user:pass@ops.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
  ])("of an address that is not public is a problem, and is never called: %s", async (url) => {
    const WEBHOOK_CHANNELS = JSON.stringify({ ops: { url, secret } });
    const { settings, problems } = readChannelSettings({ WEBHOOK_CHANNELS });
    expect(problems).toMatchObject([{ setting: "WEBHOOK_CHANNELS" }]);
    expect(settings.webhooks.size).toBe(0);
    expect(JSON.stringify(problems)).not.toContain(secret.slice(6));
  });

  test.each(["https://169.254.169.254/", "https://[fd00:ec2::254]/", "https://0.0.0.0/", "https://224.0.0.1/"])(
    "may be local where WEBHOOKS_ALLOW_PRIVATE says so, and is a metadata or reserved address never: %s",
    (url) => {
      expect(checkDestination(url, { allowPrivate: true })).toMatchObject({ ok: false });
      const WEBHOOK_CHANNELS = JSON.stringify({ ops: { url, secret } });
      expect(readChannelSettings({ WEBHOOK_CHANNELS, WEBHOOKS_ALLOW_PRIVATE: "true" }).problems).toHaveLength(1);
    },
  );
});
