import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { readArguments } from "../../src/cli/duework/arguments.ts";
import { type Entry, findEntry, loadCatalog } from "../../src/cli/duework/catalog.ts";
import { connect } from "../../src/cli/duework/deployment.ts";
import { exampleOf } from "../../src/cli/duework/examples.ts";
import { freePort, type Local, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";

/** The command line, as users run it, against a runtime of this repository's Worker. */

const ROOT = path.resolve(import.meta.dirname, "../..");
const token = newToken();

let folder: string;
let local: Local;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "duework-cli-"));
  const vars = path.join(folder, "vars");
  await writeFile(vars, Object.values(localVars(token)).join("\n"));
  await writeFile(path.join(folder, "token"), token);
  const flags = ["--env-file", vars];
  local = await startLocal({ dir: path.join(folder, "state"), port: await freePort(), flags, frozen: true });
});
afterAll(async () => {
  await local?.stop();
  await rm(folder, { recursive: true, force: true });
});

function duework(...argv: string[]): Promise<{ code: number | null; out: string; err: string }> {
  const env = { ...process.env, DUEWORK_URL: local.url, DUEWORK_TOKEN_FILE: path.join(folder, "token") };
  const child = spawn(process.execPath, [path.join(ROOT, "src/cli/main.ts"), ...argv], { env });
  let [out, err] = ["", ""];
  child.stdout.on("data", (chunk: Buffer) => {
    out += chunk;
  });
  child.stderr.on("data", (chunk: Buffer) => {
    err += chunk;
  });
  return new Promise((resolve) => child.on("close", (code) => resolve({ code, out, err })));
}

/** The rows of a piped answer, by the names of its columns. */
function rows(out: string): Record<string, string>[] {
  const [head = [], ...lines] = out
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.split("\t"));
  return lines.map((line) => Object.fromEntries(head.map((name, column) => [name, line[column] ?? ""])));
}

test("a schedule is added, is seen, and cannot be added twice", async () => {
  const add = ["schedule", "add", "nightly", "0 3 * * *", "--text", "webhooks report", "--channel", "inbox:ops"];
  const added = await duework(...add, "--grants.actions", "webhooks:read", "--grants.channels", "inbox:ops");
  expect(added).toMatchObject({ code: 0, err: "" });
  const { out } = await duework("schedules");
  const grants = JSON.stringify({ actions: ["webhooks:read"], channels: ["inbox:ops"], scopes: [] });
  expect(rows(out).find(({ name }) => name === "nightly")).toMatchObject({ text: "webhooks report", grants });
  const again = await duework(...add);
  expect(again).toMatchObject({ code: 1, out: "" });
  expect(again.err).toContain("nightly");
});

test("a topic is flipped, an item is put on it and explained, and status counts it", async () => {
  expect(await duework("topic", "path", "merchants.poll", "drain")).toMatchObject({ code: 0, err: "" });
  expect(await duework("topic", "pause", "merchants.poll")).toMatchObject({ code: 0, err: "" });
  const { out: topics } = await duework("topics");
  expect(rows(topics).find(({ topic }) => topic === "poll")).toMatchObject({ path: "drain", paused: "true" });

  const account = JSON.stringify([{ id: "m", url: "http://127.0.0.1:1/", everySeconds: 3_600 }]);
  expect(await duework("merchants", "add", `accounts:=${account}`)).toMatchObject({ code: 0, err: "" });
  const { out: items } = await duework("items", "merchants.poll");
  const [item] = rows(items);
  const explained = await duework("item", "explain", item?.id ?? "");
  expect(explained).toMatchObject({ code: 0, err: "" });
  expect(explained.out).toBe(`${item?.explanation}\n`);
  expect(explained.out).toContain("paused");
  expect((await duework("status")).out).toContain("merchants.poll\tdrain (paused)\t1\t0\t0");
});

test("a secret is shown once, and a repeat with the same key is refused it", async () => {
  const add = ["webhooks", "endpoint-add", "https://hooks.example/in", "*", "--idempotency-key", "one"];
  const first = await duework(...add);
  expect(first.code).toBe(0);
  expect(first.out).toMatch(/^secret\twhsec_/m);
  const again = await duework(...add);
  expect(again.code).toBe(1);
  expect(again.out + again.err).not.toContain("whsec_");
});

test("the exit code is 0 for done, 1 for refused, 2 for usage, 3 for unreachable", async () => {
  const codes = await Promise.all([
    duework("item", "enqueue", "merchants.poll", "[]"),
    duework("job", "show", "nope"),
    duework("topics", "--token", "another"),
    duework("job", "stop", "nope"),
    duework("topics", "--url", `http://127.0.0.1:${await freePort()}`),
    duework("schedule", "preview", "0 9 * * mon", "--count", "2", "--json"),
  ]);
  expect(codes.map(({ code }) => code)).toEqual([2, 1, 1, 2, 3, 0]);
  expect(codes.map(({ err }) => err).join("")).not.toContain(token);
});

describe("the registry", () => {
  let entries: Entry[];
  beforeAll(async () => {
    entries = await loadCatalog(connect({ url: local.url, token, deadlineMs: 60_000 }));
  });

  test("gives each command an example that its schema takes", () => {
    expect(entries.length).toBeGreaterThan(50);
    for (const entry of entries) {
      const argv = shellWords(exampleOf(entry)).slice(1);
      expect(findEntry(entries, argv), exampleOf(entry)).toBe(entry);
      expect(() => readArguments(argv, entry), exampleOf(entry)).not.toThrow();
    }
  });

  test("is what docs/cli.md lists; UPDATE_DOCS=1 writes it", async () => {
    const file = path.join(ROOT, "docs/cli.md");
    const page = await readFile(file, "utf8");
    const lines = entries.map(({ words, help }) => `| \`${words.join(" ")}\` | ${help} |`);
    const table = ["| words | what |", "| --- | --- |", ...lines].join("\n");
    const written = page.replace(/\| words \| what \|\n[\s\S]*?(?=\n\n|\n$)/, () => table);
    if (process.env.UPDATE_DOCS === "1") await writeFile(file, written);
    else expect(page, "UPDATE_DOCS=1 writes it").toBe(written);
    expect(written).toContain(table);
  });
});

/** A line cut as a shell cuts it: quotes of both kinds, without escapes. */
function shellWords(line: string): string[] {
  const words = line.match(/(?:[^\s"']|"[^"]*"|'[^']*')+/g) ?? [];
  return words.map((word) =>
    word.replace(/"([^"]*)"|'([^']*)'/g, (_, double?: string, single?: string) => double ?? single ?? ""),
  );
}
