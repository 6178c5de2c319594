import { execFileSync, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { connect } from "../../src/cli/duework/deployment.ts";
import { duework } from "../../src/cli/duework/program.ts";
import { watch } from "../../src/cli/duework/watch.ts";

/** The command line against a server that replays answers: what it sends, what it shows, how it ends. */

const ROOT = path.resolve(import.meta.dirname, "../..");
const TOKEN = "tok-of-the-tests";

const text = { type: "string" };
const object = (properties: object, required: string[]) => ({
  type: "object",
  properties,
  required,
  additionalProperties: false,
});
const listOfText = { type: "array", items: { type: "string", pattern: "^[a-z-]+:[a-z]+$" }, default: [] };
const command = (name: string, positional: string[], args: object | null, more: object = {}) => ({
  ...{ name, effect: "write", grant: "thing:write", help: `Does ${name}.`, positional },
  ...{ scoped: false, secret: false, personOnly: false, args },
  ...more,
});

const COMMANDS = [
  command(
    "schedule.add",
    ["name", "cron"],
    object(
      {
        name: { type: "string", pattern: "^[a-z0-9-]{1,20}$" },
        cron: text,
        timeZone: { type: "string", default: "UTC" },
        text,
        thread: { type: "string", enum: ["new", "standing"] },
        grants: object({ actions: listOfText, channels: listOfText }, []),
      },
      ["name", "cron", "text"],
    ),
  ),
  command(
    "thing.set",
    ["id", "tags"],
    object(
      {
        id: text,
        tags: { type: "array", items: text },
        size: { type: "integer", minimum: 1, maximum: 9 },
        ratio: { type: "number" },
        deep: { type: "boolean" },
        maybe: { anyOf: [{ type: "integer" }, { type: "null" }] },
        payload: {},
        url: text,
        rows: { type: "array", items: object({ id: text, n: { type: "integer" } }, ["id"]) },
      },
      ["id"],
    ),
  ),
  command("thing.secret", [], object({}, []), { secret: true }),
  command("thing.list", [], object({ cursor: text, limit: { type: "integer" } }, []), { effect: "read" }),
  command("free.form", ["first"], null),
];

const query = (name: string, schema: object = text) => ({ name, in: "query", required: false, schema });
const limit = query("limit", { type: "integer", minimum: 1, maximum: 200 });
const read = (summary: string, ...parameters: object[]) => ({
  get: { summary, description: "Grant: `item:read`.", parameters },
});
const id = { name: "id", in: "path", required: true, schema: text };
const state = query("state", { type: "string", enum: ["ready", "dead"] });
const DOCUMENT = {
  paths: {
    "/healthz": read("Health"),
    "/api/commands": read("Commands"),
    "/api/items": read("Items", limit, query("cursor"), query("module"), query("topic"), state, query("key")),
    "/api/items/{id}": read("One item", id),
    "/api/topics": read("Topics", limit, query("cursor")),
    "/api/jobs/{id}/slots": read("Slots", id, limit),
  },
};

type Answer = { status?: number; type?: string; headers?: Record<string, string>; body: unknown };
interface Seen {
  method: string;
  url: string;
  headers: IncomingMessage["headers"];
  body: string;
}

let server: Server;
let url: string;
let seen: Seen[];
let answers: Record<string, Answer | ((seen: Seen) => Answer | null)>;

beforeEach(async () => {
  seen = [];
  answers = {
    "GET /api/commands": { body: { items: COMMANDS, nextCursor: null } },
    "GET /openapi.json": { body: DOCUMENT },
  };
  server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const { method = "", url = "", headers } = request;
    const one = { method, url, headers, body };
    if (!/^\/(api\/commands|openapi\.json)$/.test(url)) seen.push(one);
    const found = answers[`${method} ${url.split("?")[0]}`] ?? {
      status: 404,
      body: { code: "not_found", detail: "no" },
    };
    const answer = typeof found === "function" ? found(one) : found;
    // Null: it hangs.
    if (answer === null) return;
    response.writeHead(answer.status ?? 200, { "content-type": answer.type ?? "application/json", ...answer.headers });
    response.end(typeof answer.body === "string" ? answer.body : JSON.stringify(answer.body));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterEach(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

async function run(
  argv: string[],
  { columns = null as number | null, color = false, env = {}, deadlineMs = 5_000 } = {},
) {
  let [out, err] = ["", ""];
  const screen = {
    out: (said: string) => {
      out += said;
    },
    err: (said: string) => {
      err += said;
    },
    columns,
    color,
  };
  const surroundings = { screen, env: { DUEWORK_URL: url, DUEWORK_TOKEN: TOKEN, ...env }, deadlineMs };
  return { code: await duework(argv, surroundings), out, err };
}

const sent = () => seen.map(({ body }) => JSON.parse(body) as unknown);
const done: Answer = { body: { ok: true, result: { name: "nightly" } } };

describe("arguments of a command", () => {
  test("go by place, by name, by repeating, with commas and with dots, and the token goes with them", async () => {
    answers["POST /api/commands/schedule.add"] = done;
    const actions = ["--grants.actions", "webhooks:read", "--grants.actions", "item:read", "--grants.channels=a:b,c:d"];
    const answer = await run(["schedule", "add", "nightly", "0 3 * * *", "--text", "webhooks report", ...actions]);
    expect(answer).toEqual({ code: 0, out: "name\tnightly\n", err: "" });
    const grants = { actions: ["webhooks:read", "item:read"], channels: ["a:b", "c:d"] };
    expect(sent()).toEqual([{ name: "nightly", cron: "0 3 * * *", text: "webhooks report", grants }]);
    expect(seen[0]?.headers.authorization).toBe(`Bearer ${TOKEN}`);
  });

  test.each<[string, string[], object]>([
    ["numbers", ["--size", "7", "--ratio=-0.5"], { size: 7, ratio: -0.5 }],
    ["a switch", ["--deep"], { deep: true }],
    ["a switch turned off", ["--no-deep"], { deep: false }],
    ["a switch by its value", ["deep=false"], { deep: false }],
    ["a number or null", ["--maybe", "null"], { maybe: null }],
    ["a list at the last place", ["a", "b"], { tags: ["a", "b"] }],
    ["a list as JSON", ['tags:=["a,b"]'], { tags: ["a,b"] }],
    ["any value as JSON where it is JSON", ["--payload", '{"n": 7}'], { payload: { n: 7 } }],
    ["any value as text where it is none", ["--payload", "seven"], { payload: "seven" }],
    ["an open object by dots", ["--payload.a.b", "5"], { payload: { a: { b: 5 } } }],
    [
      "objects in a list",
      ["--rows", '{"id": "1", "n": 2}', "--rows", '{"id": "2"}'],
      { rows: [{ id: "1", n: 2 }, { id: "2" }] },
    ],
    ["an argument that is called like a flag", ["url=https://hooks.example/in"], { url: "https://hooks.example/in" }],
    ["words behind --", ["--", "--deep"], { tags: ["--deep"] }],
  ])("%s", async (_, argv, expected) => {
    answers["POST /api/commands/thing.set"] = done;
    expect((await run(["thing", "set", "x", ...argv])).err).toBe("");
    expect(sent()).toEqual([{ id: "x", ...expected }]);
  });

  test("of a command that tells no schema are sent as given", async () => {
    answers["POST /api/commands/free.form"] = done;
    await run(["free", "form", "5", "--a.b", "x", "c:=[1]"]);
    expect(sent()).toEqual([{ first: 5, a: { b: "x" }, c: [1] }]);
  });

  test("its idempotency key goes along", async () => {
    answers["POST /api/commands/thing.set"] = done;
    await run(["thing", "set", "x", "--idempotency-key", "k-1"]);
    expect(seen[0]?.headers["idempotency-key"]).toBe("k-1");
  });

  test.each<[string, string[], string]>([
    [
      "one is missing",
      ["schedule", "add", "nightly", "0 3 * * *"],
      "text: it is needed (duework schedule add NAME CRON --text TEXT)",
    ],
    ["one is of another form", ["schedule", "add", "N!", "x", "--text", "t"], "name: it is of the form"],
    [
      "one in a list is of another form",
      ["schedule", "add", "n", "x", "--text", "t", "--grants.actions", "a:b,c"],
      "grants.actions.1: ",
    ],
    [
      "one is no choice",
      ["schedule", "add", "n", "x", "--text", "t", "--thread", "old"],
      "thread: it is one of new, standing",
    ],
    ["one is no number", ["thing", "set", "x", "--size", "big"], "size: it takes a whole number"],
    ["one is a fraction", ["thing", "set", "x", "--size", "1.5"], "size: it takes a whole number"],
    ["one is out of range", ["thing", "set", "x", "--size", "10"], "size: it is at most 9"],
    ["one is in an object of a list", ["thing", "set", "x", "--rows", '{"n": 1}'], "rows.0.id: it is needed"],
    ["one is not JSON", ["thing", "set", "x", "tags:=["], "tags: what follows := is not JSON"],
    ["one is given twice", ["thing", "set", "x", "--size", "1", "--size", "2"], "size: it is given twice"],
    ["one is given by place and by name", ["thing", "set", "x", "--id", "y"], "id: it is given twice"],
    [
      "one is given whole and in parts",
      ["schedule", "add", "n", "x", "--grants", "{}", "--grants.actions", "a:b"],
      "grants.actions: it is given twice",
    ],
    ["there is no such one", ["thing", "set", "x", "--sise", "1"], "thing set has no --sise: was --size meant?"],
    [
      "there is no such one in an object",
      ["schedule", "add", "n", "x", "--grants.action", "a:b"],
      "has no --grants.action: was --grants.actions meant?",
    ],
    ["one is what every object inherits", ["thing", "set", "x", "--payload.__proto__", "1"], "payload.__proto__"],
    ["one has no value", ["thing", "set", "x", "--size"], "--size"],
    ["there is one too many", ["schedule", "add", "n", "x", "y"], "takes at most 2 (name, cron) without a name"],
    ["a key is on a read", ["topics", "--idempotency-key", "k"], "--idempotency-key is for what changes something"],
    ["a limit is out of range", ["topics", "--limit", "0"], "limit: it is at least 1"],
    ["all is asked of no list", ["item", "show", "x", "--all"], "--all is for lists"],
  ])("%s: ends with 2 before anything is sent", async (_, argv, message) => {
    const { code, out, err } = await run(argv);
    expect({ code, out, seen }).toEqual({ code: 2, out: "", seen: [] });
    expect(err).toContain(message);
  });
});

describe("words", () => {
  test.each<[string[], string]>([
    [["topcs"], 'was "topics" meant?'],
    [["schedule", "ad", "n"], 'was "schedule add" meant?'],
    [["stauts"], 'was "status" meant?'],
    [["thing"], "thing takes one of: list, secret, set"],
    [["nonsense", "words"], 'there is no command "nonsense words"'],
  ])("%j is no command: 2, and what was likely meant", async (argv, message) => {
    const { code, err } = await run(argv);
    expect(code).toBe(2);
    expect(err).toContain(message);
  });

  test("help of one command says its usage, its arguments, its grant and an example", async () => {
    const { code, out } = await run(["schedule", "add", "--help"]);
    expect(code).toBe(0);
    for (const part of [
      "NAME CRON --text TEXT",
      "--thread",
      "new | standing",
      "thing:write",
      'duework schedule add nightly "0 3',
    ]) {
      expect(out).toContain(part);
    }
  });

  test("commands lists commands and reads", async () => {
    const { out } = await run(["commands"]);
    expect(out.split("\n").map((line) => line.split("\t")[0])).toEqual(
      "free form,item explain,item show,items,job slots,schedule add,thing list,thing secret,thing set,topics,".split(
        ",",
      ),
    );
  });
});

describe("reads", () => {
  test("a topic may be given whole and without a name, and what filters it is checked and sent", async () => {
    answers["GET /api/items"] = { body: { items: [], nextCursor: null } };
    await run(["items", "webhooks.deliver", "--state", "dead", "--key", "a&b"]);
    expect(seen[0]?.url).toBe("/api/items?topic=deliver&state=dead&key=a%26b&module=webhooks");
    expect((await run(["items", "--state", "gone"])).err).toContain("state: it is one of ready, dead");
  });

  test("item explain is the one sentence", async () => {
    answers["GET /api/items/a%2Fb"] = { body: { id: "a/b", explanation: "It is due in 5 s." } };
    expect((await run(["item", "explain", "a/b"])).out).toBe("It is due in 5 s.\n");
  });

  const pages = (seen: Seen): Answer => {
    const cursor = Number(new URL(seen.url, url).searchParams.get("cursor") ?? 0);
    return {
      body: { items: cursor === 1 ? [] : [{ n: cursor }], nextCursor: cursor === 3 ? null : String(cursor + 1) },
    };
  };

  test("one page says where it goes on, and --all follows the cursors through an empty page", async () => {
    answers["GET /api/topics"] = pages;
    expect(await run(["topics", "--limit", "1"])).toMatchObject({
      out: "n\n0\n",
      err: "There is more: --cursor 1, or --all\n",
    });
    seen = [];
    expect(await run(["topics", "--all"])).toEqual({ code: 0, out: "n\n0\n2\n3\n", err: "" });
    expect(seen.map((one) => one.url)).toEqual(
      ["", "&cursor=1", "&cursor=2", "&cursor=3"].map((end) => `/api/topics?limit=200${end}`),
    );
    expect(JSON.parse((await run(["topics", "--all", "--json"])).out)).toEqual({
      items: [{ n: 0 }, { n: 2 }, { n: 3 }],
      nextCursor: null,
    });
  });

  test("--all of a command that reads follows its cursors too", async () => {
    answers["POST /api/commands/thing.list"] = ({ body }) => {
      const { cursor } = JSON.parse(body) as { cursor?: string };
      return {
        body: { ok: true, result: { items: [{ n: cursor ?? "0" }], nextCursor: cursor === undefined ? "1" : null } },
      };
    };
    expect((await run(["thing", "list", "--all"])).out).toBe("n\n0\n1\n");
  });

  test("--all ends at its bound when there is no end, and says where it goes on", async () => {
    const items = Array.from({ length: 200 }, (_, n) => ({ n }));
    let at = 0;
    answers["GET /api/topics"] = () => {
      at += 1;
      return { body: { items, nextCursor: `c${at}` } };
    };
    const { out, err } = await run(["topics", "--all"]);
    expect(out.split("\n")).toHaveLength(1 + 10_000 + 1);
    expect({ at, err }).toEqual({ at: 50, err: "There is more: --cursor c50, or --all\n" });
  });
});

describe("hostile rows", () => {
  const evil = "\u001b[2J\u001b]0;owned\u0007 \u0000 \u009b31m \u202egnp.exe a\tb\nc";
  const big = "x".repeat(1024 * 1024);
  const rows = [
    { id: evil, "col\u001b[31m": 1, note: big },
    { id: "漢字", "col\u001b[31m": 2, note: null },
  ];
  // What may stand in an output: line ends, and tabs between the values of a row.
  const steers = (said: string) =>
    [...said].filter((char) => /[\p{Cc}\p{Cf}\u2028\u2029]/u.test(char) && char !== "\n" && char !== "\t");

  test("reach neither a pipe nor a terminal nor --json as what they are", async () => {
    answers["GET /api/topics"] = { body: { items: rows, nextCursor: `${evil}'` } };
    for (const columns of [null, 80]) {
      const { out, err } = await run(["topics"], { columns });
      expect(steers(out + err)).toEqual([]);
      expect(out).toContain("\\u001b[2J");
    }
    const { out } = await run(["topics", "--json"]);
    expect(steers(out)).toEqual([]);
    expect(JSON.parse(out)).toEqual({ items: rows, nextCursor: `${evil}'` });
  });

  test("stay on lines of their own: as many as there are rows, none wider than the terminal", async () => {
    answers["GET /api/topics"] = { body: { items: rows, nextCursor: null } };
    const piped = (await run(["topics"])).out.split("\n");
    expect(piped.map((line) => line.split("\t").length)).toEqual([3, 3, 3, 1]);
    expect(piped[1]).toContain(big);
    const lines = (await run(["topics"], { columns: 60 })).out.trimEnd().split("\n");
    expect(lines).toHaveLength(3);
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(60);
    // Wide letters take two columns each, so that what stands behind them is one column further left as a text.
    expect(lines[2]?.indexOf("2")).toBe((lines[1]?.search(/1 +x/) ?? 0) - 2);
  });

  test("a table that is too wide keeps its instants whole, and names what it leaves out", async () => {
    const at = "2026-08-01T09:00:00.123Z";
    answers["GET /api/topics"] = { body: { items: [{ name: "n".repeat(50), at, third: "t".repeat(50), last: 1 }] } };
    const { out } = await run(["topics"], { columns: 40 });
    expect(out).toBe(
      `${["name".padEnd(8), "at".padEnd(20), "third"].join("  ")}\nnnnnnnn…  2026-08-01T09:00:00Z  ttttttt…\nToo narrow for: last\n`,
    );
  });

  test("in one thing, and in a refusal", async () => {
    answers["GET /api/items/x"] = { body: { id: evil, lastError: big, explanation: evil, steps: [{ name: evil }] } };
    const view = await run(["item", "show", "x"], { columns: 80 });
    expect(steers(view.out)).toEqual([]);
    expect(view.out.length).toBeLessThan(10_000);
    answers["GET /api/items/x"] = { status: 404, body: { code: evil, detail: evil + big } };
    const refused = await run(["item", "show", "x"]);
    expect(steers(refused.err)).toEqual([]);
    expect(refused.err.split("\n")).toHaveLength(2);
    expect(refused.err.length).toBeLessThan(1_000);
  });

  test("colours are the program's own, and only where they are wanted", async () => {
    answers["GET /api/topics"] = { body: { items: [{ id: "a" }], nextCursor: null } };
    expect((await run(["topics"], { columns: 80, color: true })).out).toBe("\u001b[1mid\u001b[0m\na\n");
    expect((await run(["topics"], { columns: 80 })).out).toBe("id\na\n");
  });
});

describe("what goes wrong", () => {
  const problem = (status: number, code: string, more: object = {}): Answer => ({
    status,
    type: "application/problem+json",
    body: { type: "about:blank", title: code, status, code, detail: `it is ${code}`, ...more },
  });

  test.each<[string, Answer, number, RegExp]>([
    ["a refusal", problem(409, "version_conflict"), 1, /^duework: it is version_conflict \(409 version_conflict\)\n$/],
    [
      "a field that the deployment refuses",
      problem(400, "bad_arguments", { field: "cron" }),
      1,
      /^duework: cron: it is bad_arguments \(400/,
    ],
    [
      "no such token",
      problem(401, "unauthorized"),
      1,
      /^duework: http:\/\/127\.0\.0\.1:\d+ does not know this token \(401 unauthorized\)\n$/,
    ],
    [
      "a grant that is lacking",
      problem(403, "not_granted", { grant: "item:read" }),
      1,
      /needs the grant item:read \(403 not_granted\)\n$/,
    ],
    ["a deployment that is misconfigured", problem(503, "misconfigured"), 1, /misconfigured/],
    [
      "a body that is not JSON",
      { type: "text/html", body: "<html>" },
      3,
      /answered 200 with a body that is not JSON \(text\/html\)/,
    ],
    ["a proxy's error", { status: 502, body: {} }, 3, /answered 502 and no reason/],
    [
      "a redirect",
      { status: 302, headers: { location: "https://login.example/?t=1" }, body: "" },
      3,
      /leads elsewhere \(302 to https:\/\/login\.example\)/,
    ],
  ])("%s is one line, without the token", async (_, answer, code, line) => {
    answers["GET /api/topics"] = answer;
    const ended = await run(["topics"]);
    expect(ended).toMatchObject({ code, out: "" });
    expect(ended.err).toMatch(line);
    expect(ended.err).not.toContain(TOKEN);
    expect(ended.err.trimEnd().split("\n")).toHaveLength(1);
  });

  test("nothing listens, or speaks no TLS there: 3", async () => {
    expect(await run(["topics"], { env: { DUEWORK_URL: "http://127.0.0.1:9999" } })).toMatchObject({
      code: 3,
      err: /nothing listens there|cannot be reached/,
    });
    const tls = await run(["topics"], { env: { DUEWORK_URL: url.replace("http:", "https:") } });
    expect(tls.code).toBe(3);
    expect(tls.err).toMatch(/^duework: https:\/\/127\.0\.0\.1:\d+ cannot be reached: no TLS is spoken there/);
  });

  test("no answer in time: 3, and a command may have been done all the same", async () => {
    answers["POST /api/commands/thing.set"] = () => null;
    const { code, err } = await run(["thing", "set", "x", "--idempotency-key", "k"], { deadlineMs: 300 });
    expect(code).toBe(3);
    expect(err).toContain(
      "no answer within 0.3 s; it may have been done all the same; with the same --idempotency-key it runs once",
    );
  });

  test.each<[string, string[], Record<string, string>]>([
    ["no token", ["topics"], { DUEWORK_TOKEN: "" }],
    ["a token with a line end in it", ["topics"], { DUEWORK_TOKEN: `${TOKEN}\nx` }],
    ["a token file that is not there", ["topics"], { DUEWORK_TOKEN: "", DUEWORK_TOKEN_FILE: "/nowhere/token" }],
    ["an address that is none", ["topics"], { DUEWORK_URL: "nowhere" }],
    ["an address with a password", ["topics"], { DUEWORK_URL: `http://u:${TOKEN}@127.0.0.1` }],
    ["an address with a path", ["topics", "--url", "https://hooks.example/in"], {}],
  ])("%s: 2, and nothing is asked", async (_, argv, env) => {
    const { code, err } = await run(argv, { env });
    expect(code).toBe(2);
    expect(err).not.toContain(TOKEN);
    expect(seen).toEqual([]);
  });

  test("a token may stand in a file", async () => {
    const folder = await mkdtemp(path.join(tmpdir(), "duework-token-"));
    try {
      await writeFile(path.join(folder, "token"), `${TOKEN}\n`);
      answers["GET /api/topics"] = { body: { items: [], nextCursor: null } };
      await run(["topics"], { env: { DUEWORK_TOKEN: "", DUEWORK_TOKEN_FILE: path.join(folder, "token") } });
      expect(seen[0]?.headers.authorization).toBe(`Bearer ${TOKEN}`);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  test("an address behind the words that is no deployment never sees the token", async () => {
    const { code, err } = await run(["thing", "set", "x", "--url", url], {
      env: { DUEWORK_URL: "http://127.0.0.1:9999" },
    });
    expect(code).toBe(3);
    expect(err).toContain("is no deployment of duework; a command's own argument is url=…");
    expect(seen.map(({ url, headers }) => [url, headers.authorization])).toEqual([["/healthz", undefined]]);
  });
});

test("a secret answer is shown, and said to be shown once", async () => {
  answers["POST /api/commands/thing.secret"] = { body: { ok: true, result: { secret: "whsec_1" } } };
  expect(await run(["thing", "secret"])).toEqual({
    ...{ code: 0, out: "secret\twhsec_1\n" },
    err: "The secret above is shown this once: keep it now.\n",
  });
});

describe("status", () => {
  const list = (...items: object[]): Answer => ({ body: { items, nextCursor: null } });
  const count = (value: number) => ({ value, capped: false });
  const topic = {
    module: "webhooks",
    topic: "deliver",
    path: "queue",
    paused: true,
    ready: count(3),
    leased: count(1),
  };
  const stop = { kind: "job_stopped", what: "The job sweep is stopped", subject: "sweep", id: "", detail: "5 failed" };
  const needs = (...items: object[]): Answer => ({ body: { items, nextCursor: null, unseen: [] } });
  const job = { id: "sweep", enabled: true, stopReason: null, failures: 0, lastSlot: null, nextAt: null };

  beforeEach(() => {
    answers["GET /healthz"] = { body: { status: "ok", lastTickAt: null, tickAgeSeconds: 12, problems: [] } };
    answers["GET /api/topics"] = list({ ...topic, dead: count(0), oldestDueAt: null });
    answers["GET /api/jobs"] = list({ ...job, stopped: false });
    answers["GET /api/needs"] = needs();
    answers["GET /api/schedules"] = list({
      kind: "stored",
      name: "nightly",
      state: "waiting",
      problem: null,
      nextAt: null,
    });
  });

  test("is quiet when nothing needs a person", async () => {
    const { code, out } = await run(["status", "--check"]);
    expect(code).toBe(0);
    for (const part of [
      ": ok, last tick 12 s ago",
      "Nothing needs a person.",
      "webhooks.deliver\tqueue (paused)\t3\t1\t0",
      "nightly\twaiting",
    ]) {
      expect(out).toContain(part);
    }
  });

  test.each<[string, string, Answer, string]>([
    [
      "a bad setting",
      "GET /healthz",
      {
        status: 503,
        body: {
          status: "misconfigured",
          lastTickAt: null,
          tickAgeSeconds: null,
          problems: [{ code: "bad", setting: "DB", detail: "gone" }],
        },
      },
      "DB: gone (bad)",
    ],
    ["a need", "GET /api/needs", needs(stop), "  The job sweep is stopped: 5 failed\n    duework job resume sweep\n"],
    [
      "a need of a kind that it does not know",
      "GET /api/needs",
      needs({ ...stop, kind: "flood", what: "The cellar is flooded", detail: "" }),
      "  The cellar is flooded\n",
    ],
    [
      "what could not be looked at",
      "GET /api/jobs",
      { status: 403, body: { code: "not_granted", detail: "no", grant: "job:read" } },
      "Not looked at: /api/jobs",
    ],
    [
      "what the token lets nobody see",
      "GET /api/needs",
      { body: { items: [], nextCursor: null, unseen: ["run:read"] } },
      "Not looked at: /api/needs: what needs the grant run:read",
    ],
  ])("%s: it says so, and exits 1 under --check alone", async (_, path, answer, message) => {
    answers[path] = answer;
    const checked = await run(["status", "--check"]);
    expect(checked.code).toBe(1);
    expect(checked.out).toContain(message);
    expect((await run(["status"])).code).toBe(0);
  });

  test("watch prints a line a look without a terminal, through an outage, until it is told to end", async () => {
    let looks = 0;
    answers["GET /api/needs"] = () => {
      looks += 1;
      return looks === 2 ? { type: "text/html", body: "down" } : needs();
    };
    const env = { ...process.env, DUEWORK_URL: url, DUEWORK_TOKEN: TOKEN };
    const child = spawn(process.execPath, [path.join(ROOT, "src/cli/main.ts"), "watch", "--every", "1"], { env });
    let out = "";
    const ended = new Promise((resolve) => child.on("exit", (code) => resolve(code)));
    await new Promise<void>((resolve) => {
      child.stdout.on("data", (chunk: Buffer) => {
        out += chunk;
        if (out.split("\n").length > 3) resolve();
      });
    });
    child.kill("SIGINT");
    expect(await ended).toBe(0);
    const [first, second, third] = out.split("\n").map((line) => line.slice(25));
    expect([first, third]).toEqual(Array(2).fill("ok tick 12 s ready 3 leased 1 dead 0 needs 0"));
    expect(second).toMatch(/^unreachable: /);
  });
});

test("watch draws over itself on a terminal, never more than it has lines, and gives it back at the end", async () => {
  const items = Array.from({ length: 40 }, (_, n) => ({ n }));
  answers["GET /healthz"] = { body: { status: "ok", lastTickAt: null, tickAgeSeconds: 1, problems: [] } };
  answers["GET /api/topics"] = { body: { items, nextCursor: null } };
  const ending = new AbortController();
  const frames: string[] = [];
  const screen = {
    out: (said: string) => {
      if (frames.push(said) === 3) ending.abort();
    },
    err: () => {},
    columns: 40,
    color: false,
  };
  await watch(connect({ url, token: TOKEN, deadlineMs: 5_000 }), screen, 10, () => 8, ending.signal);
  expect(frames).toHaveLength(4);
  expect([frames[0], frames[3]]).toEqual(["\u001b[?1049h\u001b[?25l", "\u001b[?25h\u001b[?1049l"]);
  for (const frame of frames.slice(1, 3)) {
    // Rows of another form are told as that, and it goes on.
    expect(frame).toContain("in a form that this version does not know (items.0.module)");
    expect(frame.split("\n").length).toBeLessThanOrEqual(8);
    expect(frame.startsWith("\u001b[H")).toBe(true);
  }
});

describe("completion", () => {
  const complete = (script: string, ...words: string[]) =>
    execFileSync(
      "bash",
      ["-c", `${script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _duework; echo "\${COMPREPLY[@]}"`, "-", ...words],
      { encoding: "utf8" },
    ).trim();

  test("bash completes nouns, verbs and names of arguments, and runs nothing that a deployment lists", async () => {
    const bad = command("$(touch /tmp/owned)", [], null);
    answers["GET /api/commands"] = {
      body: { items: [...COMMANDS, command("a.b", [], object({ "x$(id)": text, fine: text }, []))] },
    };
    const { code, out } = await run(["completion", "bash"]);
    expect(code).toBe(0);
    expect(complete(out, "duework", "sch")).toBe("schedule");
    expect(complete(out, "duework", "thing", "s")).toBe("secret set");
    expect(complete(out, "duework", "schedule", "add", "--gr")).toBe("--grants --grants.actions --grants.channels");
    expect(complete(out, "duework", "topics", "--l")).toBe("--limit");
    expect(out).not.toContain("$(id)");
    answers["GET /api/commands"] = { body: { items: [bad] } };
    expect((await run(["completion", "bash"])).out).not.toContain("touch");
  });

  test.each(["bash", "zsh", "fish"])("%s gets the program's own words when nothing is reachable", async (shell) => {
    const { code, out, err } = await run(["completion", shell], { env: { DUEWORK_URL: "http://127.0.0.1:9999" } });
    expect(code).toBe(0);
    expect(out).toContain("status watch completion");
    expect(err).toContain("only the program's own words are completed");
  });

  test("another shell: 2", async () => {
    expect((await run(["completion", "csh"])).code).toBe(2);
  });
});
