import { execFile } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { getPlatformProxy } from "wrangler";

/** The documentation is held to the code: its numbers, its links, its examples, and the tests it names. */

const root = path.resolve(import.meta.dirname, "..");
const read = (file: string) => readFileSync(path.join(root, file), "utf8");
const filesIn = (folder: string, ending: string) =>
  readdirSync(path.join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(ending))
    .map((name) => `${folder}/${name.replaceAll(path.sep, "/")}`)
    .sort();

const pages = ["README.md", ...filesIn("docs", ".md")];

/** The rows of every table whose head begins with `first`, a list of cells each. */
function tableRows(file: string, first: string): string[][] {
  const rows: string[][] = [];
  let inside = false;
  for (const line of read(file).split("\n")) {
    if (!line.startsWith("|")) inside = false;
    else if (line.startsWith(`| ${first} |`)) inside = true;
    else if (inside && !line.startsWith("| ---")) {
      rows.push(
        line
          .split("|")
          .slice(1, -1)
          .map((cell) => cell.trim()),
      );
    }
  }
  return rows;
}

const unquoted = (cell = "") => /^`([^`]+)`$/.exec(cell)?.[1] ?? null;

type Value = number | string | null | readonly number[] | { readonly [key: string]: Value };

const sources = new Map([...filesIn("src", ".ts"), ...filesIn("src", ".tsx")].map((file) => [file, read(file)]));

/** The text behind `const NAME =` in a file, or in the one file that exports it. */
function declaration(name: string, file: string): string {
  const pattern = new RegExp(`^(?:export )?const ${name}(?::[^=]+)? = ([\\s\\S]+?);$`, "m");
  const own = pattern.exec(sources.get(file) ?? "")?.[1];
  if (own !== undefined) return own;
  for (const text of sources.values()) {
    const found = pattern.exec(text)?.[0].startsWith("export ") ? pattern.exec(text)?.[1] : undefined;
    if (found !== undefined) return found;
  }
  throw new Error(`${file} knows no constant ${name}`);
}

/** A constant's value, worked out from its source: many are no business of any other file, and are not exported. */
function constant(name: string, file: string): Value {
  return evaluate(declaration(name, file), file);
}

/** An expression as it stands in a file. */
function evaluate(source: string, file: string): Value {
  const text = source.replace(/\/\*[\s\S]*?\*\//g, "").replace(/\bas const\b[\s\S]*$/, "");
  const names = [...new Set(text.replace(/"[^"]*"/g, "").match(/\b[A-Z][A-Z0-9_]+\b/g) ?? [])];
  const values = names.map((each) => constant(each, file));
  return new Function(...names, `return (${text});`)(...values) as Value;
}

/** `NAME` or `NAME.key.key` of a file. */
function valueAt(expression: string, file: string): Value | undefined {
  const [name = "", ...keys] = expression.split(".");
  let value: Value | undefined = constant(name, file);
  for (const key of keys) value = (value as { [key: string]: Value } | null)?.[key];
  return value;
}

const number = (expression: string, file: string) => valueAt(expression, file) as number;

const UNIT_MS: Record<string, number> = { ms: 1, s: 1_000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/** How many ms the unit of a constant's own name is; null = its name says none. */
function unitOf(name: string): number | null {
  if (/(?:_MS|Ms)$/.test(name) || name === "BACKOFF") return 1;
  if (/(?:_SECONDS|Seconds)$/.test(name)) return 1_000;
  return /_DAYS$/.test(name) ? 86_400_000 : null;
}

/** A cell's value in the constant's own unit. */
function written(name: string, cell: string, unit: string): Value {
  if (cell === "none") return null;
  if (!/^[\d,. ]+$/.test(cell)) return cell;
  const own = unitOf(name);
  const factor = own === null ? 1 : (UNIT_MS[unit] ?? Number.NaN) / own;
  const numbers = cell.split(", ").map((each) => Number(each.replaceAll(",", "")) * factor);
  return numbers.length > 1 ? numbers : (numbers[0] ?? Number.NaN);
}

const wrangler = JSON.parse(read("wrangler.jsonc").replace(/^\s*\/\/.*$/gm, "")) as {
  queues: { consumers: Record<string, Value>[] };
};

describe("limits", () => {
  const rows = tableRows("docs/limits.md", "name").filter(([name]) => !name?.startsWith("**"));
  const named = rows.map(([name, value = "", unit = "", , where]) => ({
    name: unquoted(name) ?? "",
    value,
    unit,
    where: unquoted(where) ?? "",
  }));

  test("every number of the table is the code's", () => {
    expect(named.length).toBeGreaterThan(60);
    for (const { name, value, unit, where } of named) {
      const actual = where === "wrangler.jsonc" ? wrangler.queues.consumers[0]?.[name] : valueAt(name, where);
      const shown = where === "wrangler.jsonc" ? Number(value) : written(name, value, unit);
      expect(shown, `${name} of ${where}`).toEqual(actual);
    }
  });

  test("every bound of the outbox, the tick, the D1 client, commands and schedules is in the table", () => {
    const known = new Set(named.map(({ name, where }) => `${where} ${name.split(".")[0]}`));
    const missing = [...sources].flatMap(([file, text]) => {
      if (!/^src\/(?:commands|db|outbox|schedules|tick)\//.test(file)) return [];
      return [...text.matchAll(/^(?:export )?const ([A-Z][A-Z0-9_]+)(?::[^=]+)? = (?=[\d{A-Z])/gm)]
        .map(([, name]) => `${file} ${name}`)
        .filter((one) => !known.has(one) && !NO_LIMITS.test(one));
    });
    expect(missing).toEqual([]);
  });

  test("the relations hold", () => {
    const topic = "src/outbox/topic.ts";
    const [deadline, lease, margin] = [
      number("TOPIC_DEFAULTS.deadlineMs", topic),
      number("TOPIC_DEFAULTS.leaseMs", topic),
      number("SETTLE_MARGIN_MS", topic),
    ];
    expect(deadline + number("START_WINDOW_MS", topic) + margin).toBeLessThan(lease);
    expect(sources.get(topic)).toContain("deadlineMs + START_WINDOW_MS + SETTLE_MARGIN_MS");
    expect(number("DB_DEADLINE_MS", "src/db/client.ts")).toBeLessThanOrEqual(margin);
    expect(margin).toBeLessThan(30_000);

    const minute = 60_000;
    expect(number("CHAIN_MS", "src/outbox/pump.ts")).toBeLessThan(minute);
    const retries = Number(wrangler.queues.consumers[0]?.max_retries);
    const waited = ((retries * (retries + 1)) / 2) * number("PUMP_RETRY_SECONDS", "src/outbox/pump.ts");
    expect(waited * 1_000).toBeGreaterThanOrEqual(number("CHAIN_MS", "src/outbox/pump.ts"));
    expect(number("DEFAULT_LIMITS.wallMs", "src/core/budget.ts")).toBeLessThan(minute);
    expect(number("AHEAD_MS", "src/outbox/pump.ts")).toBeGreaterThanOrEqual(minute);
    expect(sources.get("src/outbox/settle.ts")).toContain("(Math.floor(now / MINUTE) + 2) * MINUTE");

    const topics = number("TOPICS_A_TICK", "src/tick/sends.ts");
    const [slot, closing] = ["SLOT_QUERIES", "CLOSING_QUERIES"].map((name) => number(name, "src/tick/tick.ts"));
    const queries = 9 + 3 + 9 + topics + 1 + 1 + slot! + closing!;
    expect(number("RUNTIME_RESERVE.queries", "src/tick/tick.ts")).toBeGreaterThanOrEqual(queries);
    const handOvers = number("HAND_OVERS_A_TICK", "src/jobs/hand-over.ts");
    const sends = handOvers + number("SENDS_A_TICK", "src/tick/sends.ts") + topics;
    expect(number("RUNTIME_RESERVE.subrequests", "src/tick/tick.ts")).toBeGreaterThanOrEqual(sends);
    for (const each of ["queries", "subrequests"]) {
      const limit = number(`DEFAULT_LIMITS.${each}`, "src/core/budget.ts");
      expect(limit).toBeLessThan(50);
      expect(number(`RUNTIME_RESERVE.${each}`, "src/tick/tick.ts")).toBeLessThan(limit);
    }

    expect(number("SHARED_CONCURRENCY", topic)).toBeLessThanOrEqual(6);
    expect(number("CONCURRENT_SENDS", "src/outbox/send.ts") + 1).toBeLessThanOrEqual(6);
    expect(handOvers + 1).toBeLessThanOrEqual(6);
    expect(number("JOBS_A_TICK", "src/jobs/hand-over.ts")).toBeLessThanOrEqual(100);
    const message = "src/outbox/message.ts";
    const metadata = 100 * number("MESSAGE_BATCH", message);
    expect(number("MESSAGE_BATCH_BYTES", message) + metadata).toBeLessThanOrEqual(256_000);
    expect(3 * number("PARAMETER_CHARS", "src/outbox/items.ts")).toBeLessThan(2_000_000);

    expect(number("CALL_MS", "src/modules/webhooks/deliver.ts")).toBeLessThan(deadline);
    expect(number("POLL_MS", "src/modules/merchants/poll.ts")).toBeLessThan(deadline);
    const waits = constant("BACKOFF", "src/modules/webhooks/deliver.ts") as readonly number[];
    const day = ((24 * 60 + 12) * 60 + 35) * 1_000;
    expect(waits.reduce((sum, wait) => sum + wait, 0)).toBe(day);
    expect(sources.get("src/modules/webhooks/deliver.ts")).toContain("maxAttempts: BACKOFF.length + 1");

    const runs = "src/commands/runs.ts";
    expect(number("SCHEDULES_MAX", "src/schedules/rows.ts")).toBeLessThanOrEqual(number("INSTANCES_A_CALL", runs));
    expect(number("MAKE_GOOD_AFTER_MS", runs)).toBeLessThan(minute);
    expect(number("START_WITHIN_MS", runs)).toBeLessThan(number("RUN_MS", runs));
    expect(number("END_MARGIN_MS", "src/commands/run.ts")).toBeLessThan(number("RUN_MS", runs));
    expect(number("CHECK_AFTER_MS", runs)).toBeLessThan(number("RUN_MS", runs));
    expect(number("FORGET_FIRINGS", "src/schedules/firings.ts")).toBeGreaterThan(1);

    const { baseMs, factor, capMs, jitter } = valueAt("TOPIC_DEFAULTS.backoff", topic) as Record<string, number>;
    const attempts = number("TOPIC_DEFAULTS.maxAttempts", topic);
    let least = 0;
    for (let nth = 0; nth < attempts - 1; nth += 1) {
      least += Math.min(baseMs! * factor! ** nth, capMs! / (1 + jitter!));
    }
    expect(Math.round(least / minute)).toBe(85);
    expect(Math.round((least * (1 + jitter!)) / minute)).toBe(102);
  });
});

describe("the table of topic options", () => {
  const page = "docs/module-authoring.md";
  const file = "src/outbox/topic.ts";
  const rows = new Map(tableRows(page, "option").map(([name, ...cells]) => [unquoted(name) ?? "", cells]));
  const defaults = constant("TOPIC_DEFAULTS", file) as Record<string, Value>;

  test("names every option once, and no other", () => {
    const options = sources.get(file)?.match(/export interface TopicOptions<[\s\S]*?\n}\n/)?.[0] ?? "";
    const optional = [...options.matchAll(/^ {2}(\w+)\?[:(]/gm)].map(([, name]) => name);
    expect(optional.length).toBeGreaterThan(10);
    expect([...rows.keys()].sort()).toEqual(optional.sort());
    expect(Object.keys(defaults).filter((name) => !rows.has(name))).toEqual([]);
  });

  test("gives each its default", () => {
    for (const [name, [shown = "", unit = ""]] of rows) {
      if (name === "onSettle") continue;
      const { [name]: value } = defaults;
      if (name === "backoff") {
        expect(value).toEqual({ baseMs: 10_000, factor: 2, capMs: 3_600_000, jitter: 0.2 });
        expect(shown).toBe("10 s, doubled to 1 h, jitter 0.2");
      } else if (name === "cost") {
        expect(value).toEqual({ subrequests: 1, queries: 3 });
        expect(shown).toBe("1 subrequest, 3 statements");
      } else expect(written(name, shown, unit), name).toEqual(value);
    }
  });

  test("gives each its range", () => {
    const bounds = [...(sources.get(file) ?? "").matchAll(/^ {2}whole\("(\w+)", (.+), (.+)\);$/gm)];
    expect(bounds.length).toBeGreaterThan(8);
    for (const [, name = "", least = "", most = ""] of bounds) {
      const [, , range = ""] = rows.get(name) ?? [];
      expect(range.split(" to ").map(amount), name).toEqual([least, most].map((text) => evaluate(text, file)));
    }
  });

  test("says how much of the lease is not the handler's", () => {
    const overhead = number("START_WINDOW_MS", file) + number("SETTLE_MARGIN_MS", file);
    expect(read(page)).toContain(`With ${overhead / 1_000} s to start and to settle it must fit`);
  });
});

test("the rules of payloads and keys are the code's", () => {
  const text = read("docs/module-authoring.md");
  expect(text).toContain(`more than ${number("PAYLOAD_MAX_DEPTH", "src/core/payload.ts")} levels`);
  expect(text).toContain(`more than ${number("PAYLOAD_MAX_BYTES", "src/core/payload.ts").toLocaleString("en")} bytes`);
  expect(text).toContain(`1 to ${number("KEY_MAX", "src/outbox/enqueue.ts")} characters`);
});

test("what the page about cells says of a slow D1 is in the simulation", () => {
  const [, one, four] = /settles ([\d,]+) items a second .+; four settle ([\d,]+) and/.exec(read("docs/cells.md"))!;
  const simulated = read("docs/simulation.md");
  expect(simulated).toContain(`| D1 five times slower: eight topics, eight queues | ${one} |`);
  expect(simulated).toContain(`| D1 five times slower: 32 topics, eight queues, four databases | ${four} |`);
});

/** `10 min`, `1,000`: in ms where there is a unit. */
function amount(text: string): number {
  const [count = "", unit] = text.trim().split(" ");
  return Number(count.replaceAll(",", "")) * (unit === undefined ? 1 : (UNIT_MS[unit] ?? Number.NaN));
}

describe("examples", () => {
  test.each(["README.md", "docs/cells.md", "docs/deploy.md", "docs/module-authoring.md"])(
    "of %s compile against the package",
    async (page) => {
      const blocks = [...read(page).matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map((match) => match[1] ?? "");
      expect(blocks.length).toBeGreaterThan(0);
      mkdirSync(path.join(root, ".wrangler"), { recursive: true });
      const folder = mkdtempSync(path.join(root, ".wrangler/docs-"));
      try {
        for (const [index, block] of blocks.entries()) {
          const name = /^\/\/ (\S+\.ts)\n/.exec(block)?.[1] ?? `block-${index}.ts`;
          writeFileSync(path.join(folder, name), block);
        }
        const paths = {
          duework: [path.join(root, "src/index.ts")],
          "duework/cells": [path.join(root, "src/cells.ts")],
          "duework/run": [path.join(root, "workflows/run.ts")],
        };
        const config = {
          extends: path.join(root, "tsconfig.json"),
          compilerOptions: { paths },
          include: ["*.ts"],
          exclude: [],
        };
        writeFileSync(path.join(folder, "tsconfig.json"), JSON.stringify(config));
        const tsc = path.join(root, "node_modules/typescript/bin/tsc");
        const answer = await promisify(execFile)(process.execPath, [tsc], { cwd: folder }).then(
          () => "",
          ({ stdout }: { stdout: string }) => stdout,
        );
        // What is wrong in the package itself is for `npm run types` to say.
        expect(answer.split("\n").filter((line) => /^[\w-]+\.ts\(/.test(line))).toEqual([]);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
  );

  test("the module of the README has at most 15 lines", () => {
    const [, first = ""] = /^```ts\n([\s\S]*?)^```$/m.exec(read("README.md")) ?? [];
    expect(
      first
        .trimEnd()
        .split("\n")
        .filter((line) => !line.startsWith("// ")).length,
    ).toBeLessThanOrEqual(15);
  });
});

describe("links", () => {
  test.each(pages)("of %s lead somewhere in the repository", (page) => {
    for (const [, target = ""] of read(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (target.startsWith("#")) continue;
      expect(target, page).not.toMatch(/^[a-z]+:/);
      const file = path.join(root, path.dirname(page), target.split("#")[0] ?? "");
      expect(file.startsWith(root) && existsSync(file), `${page} links ${target}`).toBe(true);
    }
  });
});

describe("tests that are named", () => {
  test.each(["docs/faults.md", "docs/invariants.md", "docs/security.md", "docs/states.md"])(
    "in %s exist under that title",
    (page) => {
      const named = [...read(page).matchAll(/\[((?:[^\]\\]|\\.)+)\]\(\.\.\/(test\/[^)]+)\)/g)];
      expect(named.length).toBeGreaterThan(10);
      const missing = named
        .filter(([, title = "", file = ""]) => !existsSync(path.join(root, file)) || !read(file).includes(title))
        .map(([, title, file]) => `${file}: ${title}`);
      expect(missing).toEqual([]);
    },
  );

  test("every promise, arrow, fault and threat names at least one", () => {
    const bare = [
      ...tableRows("docs/invariants.md", "promise").filter(([, by]) => !by?.startsWith("[")),
      ...tableRows("docs/faults.md", "kind of fault").filter(([, , by]) => !by?.startsWith("[")),
      ...tableRows("docs/security.md", "threat").filter(([, , by]) => !by?.startsWith("[")),
      ...tableRows("docs/states.md", "").filter((cells) => !cells.at(-1)?.startsWith("[")),
    ];
    expect(bare.map(([first, second]) => `${first} ${second}`)).toEqual([]);
  });
});

test("the glossary lists every log event of the Worker, and no other", () => {
  const worker = [...sources].filter(([file]) => !file.startsWith("src/cli/")).map(([, text]) => text);
  const consumers = filesIn("consumers", ".ts").map(read);
  const written = [...worker, ...consumers].flatMap((text) =>
    [...text.matchAll(/\bevent: "(\w+)"|\bctx\.log\("(\w+)"/g)].map(([, event, logged]) => event ?? logged ?? ""),
  );
  const listed = tableRows("docs/glossary.md", "event").map(([event]) => unquoted(event) ?? "");
  expect(listed).toEqual([...new Set(written)].sort());
});

test("the guide to deploying names the database and the queues of wrangler.jsonc", () => {
  const names = [...read("wrangler.jsonc").matchAll(/"(?:database_name|queue|dead_letter_queue)": "([^"]+)"/g)];
  expect(names.length).toBeGreaterThan(2);
  for (const [, name = ""] of names) expect(read("docs/deploy.md")).toMatch(new RegExp(` create ${name}\n`));
});

test("the rows billed for each design of the outbox's table are as decision 0002 gives them", async () => {
  const file = "docs/decisions/0002-the-outbox-key.md";
  const folder = mkdtempSync(path.join(tmpdir(), "duework-designs-"));
  const config = path.join(folder, "wrangler.json");
  const binding = { binding: "DB", database_name: "designs", database_id: "designs" };
  writeFileSync(config, JSON.stringify({ name: "designs", compatibility_date: "2026-08-01", d1_databases: [binding] }));
  const { env, dispose } = await getPlatformProxy<{ DB: Database }>({ configPath: config, persist: false });
  try {
    const rows = tableRows(file, "design");
    expect(rows.length).toBeGreaterThan(4);
    for (const [design = "", ...billed] of rows) {
      expect(await rowsBilled(env.DB, design), design).toEqual(billed.map(Number));
    }
  } finally {
    await dispose();
    rmSync(folder, { recursive: true, force: true });
  }
});

interface Database {
  exec(sql: string): Promise<unknown>;
  prepare(sql: string): { run(): Promise<{ meta: { rows_written: number } }> };
}

/** Rows billed for an insert, three moves, a change in place and a delete of one row, in a table of that design. */
async function rowsBilled(db: Database, design: string): Promise<number[]> {
  const at = design.search(/, (?:UNIQUE|INDEX) /);
  const [key, beside] = at < 0 ? [design, ""] : [design.slice(0, at), design.slice(at + 2)];
  const columns = "topic TEXT, lane INTEGER, at INTEGER, seq TEXT, turn INTEGER, k TEXT";
  const keyed = key === "rowid" ? "" : `, PRIMARY ${key}`;
  await db.exec("DROP TABLE IF EXISTS x");
  await db.exec(`CREATE TABLE x (${columns}${keyed})${key === "rowid" ? "" : " WITHOUT ROWID"}`);
  const index = /^(UNIQUE|INDEX) (\(.+\)) beside$/.exec(beside);
  if (index) await db.exec(`CREATE ${index[1] === "UNIQUE" ? "UNIQUE " : ""}INDEX i ON x ${index[2]}`);
  const billed: number[] = [];
  for (const sql of [
    "INSERT INTO x VALUES ('t', 0, 1000, 's', 0, 'k')",
    "UPDATE x SET lane = 1, at = 2000, turn = turn + 1",
    "UPDATE x SET lane = 2, at = 3000, turn = turn + 1",
    "UPDATE x SET lane = 0, at = 4000, turn = turn + 1",
    "UPDATE x SET turn = turn + 1",
    "DELETE FROM x WHERE topic = 't'",
  ]) {
    billed.push((await db.prepare(sql).run()).meta.rows_written);
  }
  return billed;
}

/** Constants that bound nothing: versions, forms of names, SQL. */
const NO_LIMITS =
  / (?:VERSION|DUE_DIGITS|TAIL_DIGITS|TAILS|LAST_DUE|LAST_INSTANT|LATE|NOTHING|LAST_TICK|SUPERSEDED|LOADED|HELD|COLUMNS|TICK|CONDITIONS|ESCAPES|INSTANCE_EXISTS)$/;
