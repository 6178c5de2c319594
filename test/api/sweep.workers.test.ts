import { beforeAll, describe, expect, test } from "vitest";
import * as v from "valibot";
import { checkoutExpiry } from "../../src/checkout/job.ts";
import { readRoutes } from "../../src/api/routes.ts";
import { deploy } from "../../src/create-worker.ts";
import { recordsRetention } from "../../src/index.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { webhooks } from "../../src/modules/webhooks/index.ts";
import { platformPorts } from "../../src/platform.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

/** Every route of the Worker, from the lists that serve it: who gets in, and what he is answered. */

const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");

const program = { modules: [webhooks, merchants], catalog: [recordsRetention, checkoutExpiry] };
const NOW = Date.parse("2026-06-01T12:00:30.000Z");
const ports = { ...platformPorts, clock: () => NOW, log: () => {} };

async function serve(grants: Record<string, readonly string[]>) {
  const tokens = Object.entries(grants).map(async ([subject, actions]) => {
    return { subject, sha256: await sha256(`token-of-${subject}`), grants: { actions } };
  });
  const env = {
    ...{ DB, ITEMS: new HeldQueue(), DUEWORK_TOKENS: JSON.stringify(await Promise.all(tokens)) },
    ...{ STOREFRONT_URL: "https://storefront.test/x", STOREFRONT_TOKEN: "hunter2", SLACK_SIGNING_SECRET: "hunter3" },
  };
  const { api, problems } = deploy(program, env, ports);
  expect(problems).toEqual([]);
  const ask = async (method: string, path: string, token: string | null) => {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (token !== null) headers.authorization = `Bearer ${token}`;
    const init = method === "GET" ? { headers } : { method, headers, body: "{}" };
    const response = await api.request(`https://duework.test${path}`, init);
    return { status: response.status, text: await response.text() };
  };
  return { api, ask };
}

/** The commands that this Worker has, each with the grant that it needs. */
async function listCommands() {
  const { ask } = await serve({ ann: [] });
  const { items } = JSON.parse((await ask("GET", "/api/commands", "token-of-ann")).text) as {
    items: { name: string; grant: string }[];
  };
  return items;
}

// What it serves with is of no account here: only its paths and grants are read.
const served = { ...program, runs: null, jobs: { active: [], problems: [] }, clock: () => NOW };
const reads = readRoutes(served as never).flatMap(({ grant, ...rest }) => (grant === null ? [] : [{ ...rest, grant }]));
const filled = (path: string) => path.replace(/:\w+/g, "x");

/** Those that nobody signs in to: one leads to the panel, one shows no secret, one's callers sign what they send. */
const OPEN = ["/", "/healthz", "/api/slack/events"];
/** Those that whoever is signed in may read. */
const FOR_ALL = ["/openapi.json", "/docs", "/docs/", "/docs/:file", "/api/commands", "/api/needs"];
const OTHERS = [
  { method: "GET", path: "/metrics", grant: "metrics:read" },
  { method: "POST", path: "/api/tick", grant: "tick:fire" },
];

describe("nobody gets in without a grant", () => {
  test("no route of the Worker is in none of the lists", async () => {
    const { api } = await serve({});
    const routes = api.routes.filter(({ method }) => method !== "ALL").map(({ path }) => path);
    const listed = [...OPEN, ...FOR_ALL, ...OTHERS.map(({ path }) => path), ...reads.map(({ path }) => path)];
    expect([...new Set(routes)].sort()).toEqual([...listed, "/api/commands/:name"].sort());
  });

  test("every route, without a token, with a bad one, and with one that lacks its grant alone", async () => {
    const commands = await listCommands();
    const guarded = [
      ...OTHERS,
      ...reads.map(({ path, grant }) => ({ method: "GET", path: filled(path), grant })),
      ...commands.map(({ name, grant }) => ({ method: "POST", path: `/api/commands/${name}`, grant })),
    ];
    const all = [...new Set(guarded.map(({ grant }) => grant))];
    const lacking = Object.fromEntries(all.map((grant, n) => [`lacks-${n}`, all.filter((one) => one !== grant)]));
    const { ask } = await serve({ ...lacking, nothing: [] });
    const before = await snapshot();
    expect(guarded.length).toBeGreaterThan(50);
    for (const { method, path, grant } of guarded) {
      const what = `${method} ${path}`;
      for (const token of [null, "guess", await sha256("token-of-nothing"), ""]) {
        const answer = await ask(method, path, token);
        expect(answer.status, what).toBe(401);
        expect(JSON.parse(answer.text), what).toMatchObject({ code: "unauthorized" });
        expect(answer.text, what).not.toMatch(/hunter|guess|token-of/);
      }
      for (const subject of ["nothing", `lacks-${all.indexOf(grant)}`]) {
        const answer = await ask(method, path, `token-of-${subject}`);
        expect(answer.status, what).toBe(403);
        expect(JSON.parse(answer.text), what).toMatchObject({ code: "not_granted", grant });
        expect(answer.text, what).not.toMatch(/hunter|token-of/);
      }
    }
    for (const path of FOR_ALL) {
      for (const token of [null, "guess"]) expect((await ask("GET", filled(path), token)).status, path).toBe(401);
      const answer = await ask("GET", filled(path), "token-of-nothing");
      expect([200, 404], path).toContain(answer.status);
      expect(answer.text).not.toMatch(/hunter|token-of/);
    }
    expect(await snapshot()).toEqual(before);
  });

  test("who may fire the tick may do nothing else", async () => {
    const { ask } = await serve({ clock: ["tick:fire"] });
    const before = await snapshot();
    for (const { path } of reads) {
      expect((await ask("GET", filled(path), "token-of-clock")).status, path).toBe(403);
    }
    for (const { name } of await listCommands()) {
      expect((await ask("POST", `/api/commands/${name}`, "token-of-clock")).status, name).toBe(403);
    }
    expect(await snapshot()).toEqual(before);
    const fired = await ask("POST", "/api/tick", "token-of-clock");
    expect(fired).toMatchObject({ status: 200 });
    expect(JSON.parse(fired.text)).toMatchObject({ queries: expect.any(Number), modules: expect.any(Array) });
  });

  test("two ticks at once are two ticks, and both report", async () => {
    const { ask } = await serve({ clock: ["tick:fire"] });
    const both = await Promise.all([1, 2].map(() => ask("POST", "/api/tick", "token-of-clock")));
    expect(both.map(({ status }) => status)).toEqual([200, 200]);
  });
});

/** How many rows each table has. */
async function snapshot(): Promise<unknown> {
  const { results } = await DB.prepare(
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB '[a-z]*'",
  ).all<{
    name: string;
  }>();
  const tables = results.map(({ name }) => name).filter((name) => !/^(?:_cf|sqlite|d1)_/.test(name));
  const counts = await DB.batch<{ n: number }>(tables.map((name) => DB.prepare(`SELECT count(*) AS n FROM ${name}`)));
  return tables.map((name, at) => [name, counts[at]?.results[0]?.n]);
}

describe("every read answers what the OpenAPI document says", () => {
  const at = NOW - 30_000;
  const workspace = "00000000-0000-4000-8000-000000000001";
  const job = "inventory-checkout-expiry";
  const instance = `${job}-${at / 60_000}-1`;
  const item = (lane: number) =>
    `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, k, payload, error)
     VALUES ('webhooks.deliver', ${lane}, ${at}, '00000000000000000${lane}', 0, ${at}, ${at}, 'k${lane}', '{}', 'e')`;
  const rows = [
    ...[0, 1, 2].map(item),
    `INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
     VALUES ('webhooks.deliver-d', 'webhooks.deliver', '{"a":1}', 'gone', 'e', 1, 1, ${at}, ${at})`,
    `INSERT INTO jobs (id, generation, claimed, last_slot, stopped_at, stop_reason, stopped_by)
     VALUES ('${job}', 1, 0, ${at}, ${at}, 'r', 'b')`,
    `INSERT INTO slots (job, slot, generation, processor, missed, claimed_at, deadline, completed_at, result, instance_id)
     VALUES ('${job}', ${at}, 1, 'workflow', 0, ${at}, ${at}, ${at}, 'degraded', '${instance}')`,
    `INSERT INTO workflow_steps (workflow, instance_id, position, name, started_at, updated_at, progress)
     VALUES ('checkout-expiry', '${instance}', 0, 'reconcile', ${at}, ${at}, '{}')`,
    `INSERT INTO obligations (job, workspace, state, version, since, charges)
     VALUES ('${job}', '${workspace}', 'owed', 1, ${at}, 0)`,
    `INSERT INTO settlements (job, settled_at, workspace, version, since, how, settled_by, reason)
     VALUES ('${job}', ${at}, '${workspace}', 1, ${at}, 'by hand', 'http:ann', 'r')`,
    `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by,
       anchored_at, last_slot, claim)
     VALUES ('s', 'nightly', '0 3 * * *', 'UTC', 't', 'inbox:x', 'new', '{}', 1, ${at}, 'http:ann', ${at}, ${at}, 'f')`,
    `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, thread, run)
     VALUES ('f', 's', 'nightly', ${at}, ${at}, 0, '0 3 * * *', 'UTC', 'service:tick', 'admitted', 't', 'r')`,
    `INSERT INTO threads (id, channel, title, opened_at, opened_by, latest_at)
     VALUES ('t', 'inbox:x', 't', ${at}, 'http:ann', ${at})`,
    `INSERT INTO messages (id, thread, at, author, kind, text) VALUES ('m', 't', ${at}, 'http:ann', 'lead', 'x')`,
    `INSERT INTO runs (id, actor, actor_kind, grants, command, args, channel, thread, firing, status, admitted_at,
       started_at, ended_at, result)
     VALUES ('r', 'schedule:nightly', 'schedule', '{}', 'job.list', '{}', 'inbox:x', 't', 'f', 'succeeded', ${at}, ${at},
       ${at}, '{}')`,
    `INSERT INTO ticks (at, started_at, wall_until, modules, running) VALUES (${at}, ${at}, ${at}, '["a","b"]', 'a')`,
  ];
  beforeAll(() => DB.batch(rows.map((sql) => DB.prepare(sql))));

  /** What stands for each part of a path; `:id` is of what the path lists. */
  const IDS: Record<string, string> = {
    jobs: job,
    threads: "t",
    runs: "r",
    workflows: instance,
    items: "webhooks.deliver-d",
  };
  const pathOf = (path: string) =>
    path
      .replace(":name", "nightly")
      .replace(":workflow", "checkout-expiry")
      .replace(":id", IDS[path.split("/")[2] ?? ""] ?? "");

  test.for(reads.map(({ path }) => path))("%s", async (path) => {
    const route = reads.find((one) => one.path === path);
    const { ask } = await serve({ ann: [route?.grant ?? ""] });
    const query = ["/api/items", "/api/dead-letters"].includes(path) ? "?module=webhooks&topic=deliver" : "";
    const { status, text } = await ask("GET", pathOf(path) + query, "token-of-ann");
    expect(status, text).toBe(200);
    const json = JSON.parse(text) as { items?: unknown[] };
    if (json.items !== undefined) expect(json.items.length).toBeGreaterThan(0);
    const parsed = v.safeParse(route?.answer as v.GenericSchema, json);
    expect(parsed.issues?.map((issue) => `${v.getDotPath(issue)}: ${issue.message}`)).toBeUndefined();
  });
});
