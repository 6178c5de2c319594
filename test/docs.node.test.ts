import { execFile } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";

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

const sources = new Map(filesIn("src", ".ts").map((file) => [file, read(file)]));

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
  const text = declaration(name, file)
    .replace(/\/\*[\s\S]*?\*\//g, "")
    .replace(/\bas const\b[\s\S]*$/, "");
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

  test("every bound of the outbox, the tick and the D1 client is in the table", () => {
    const known = new Set(named.map(({ name, where }) => `${where} ${name.split(".")[0]}`));
    const missing = [...sources].flatMap(([file, text]) => {
      if (!/^src\/(?:db|outbox|tick)\//.test(file)) return [];
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
    expect(number("DEFAULT_LIMITS.wallMs", "src/core/budget.ts")).toBeLessThan(minute);
    expect(number("AHEAD_MS", "src/outbox/pump.ts")).toBeGreaterThanOrEqual(minute);
    expect(sources.get("src/outbox/settle.ts")).toContain("(Math.floor(now / MINUTE) + 2) * MINUTE");

    const topics = number("TOPICS_A_TICK", "src/tick/sends.ts");
    const queries = 4 + topics + 1 + 1 + number("CLOSING_QUERIES", "src/tick/tick.ts");
    expect(number("RUNTIME_RESERVE.queries", "src/tick/tick.ts")).toBeGreaterThanOrEqual(queries);
    const sends = number("SENDS_A_TICK", "src/tick/sends.ts") + topics;
    expect(number("RUNTIME_RESERVE.subrequests", "src/tick/tick.ts")).toBeGreaterThanOrEqual(sends);
    for (const each of ["queries", "subrequests"]) {
      const limit = number(`DEFAULT_LIMITS.${each}`, "src/core/budget.ts");
      expect(limit).toBeLessThan(50);
      expect(number(`RUNTIME_RESERVE.${each}`, "src/tick/tick.ts")).toBeLessThan(limit);
    }

    expect(number("SHARED_CONCURRENCY", topic)).toBeLessThanOrEqual(6);
    expect(number("CONCURRENT_SENDS", "src/outbox/send.ts") + 1).toBeLessThanOrEqual(6);
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

/** Constants that bound nothing: versions, forms of names, SQL. */
const NO_LIMITS =
  / (?:VERSION|DUE_DIGITS|TAIL_DIGITS|TAILS|LAST_DUE|LAST_INSTANT|LATE|LAST_TICK|SUPERSEDED|LOADED|HELD|COLUMNS)$/;
