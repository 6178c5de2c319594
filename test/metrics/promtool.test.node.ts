import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createClient, fireTick } from "../../src/cli/client.ts";
import { freePort, type Local, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";

/** What `/metrics` of a running Worker says, as Prometheus's own linter reads it. */

const token = newToken();
let folder: string;
let local: Local;

beforeAll(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "duework-metrics-"));
  const vars = path.join(folder, "vars");
  writeFileSync(vars, [...Object.values(localVars(token)), "ENABLED_JOBS=records-retention"].join("\n"));
  const flags = ["--env-file", vars];
  local = await startLocal({ dir: path.join(folder, "state"), port: await freePort(), flags, frozen: true });
});
afterAll(async () => {
  await local?.stop();
  rmSync(folder, { recursive: true, force: true });
});

function lint(text: string) {
  const { error, status, stdout, stderr } = spawnSync("promtool", ["check", "metrics"], {
    input: text,
    encoding: "utf8",
  });
  if (error !== undefined) throw new Error("promtool is not installed: it is in Debian's package prometheus");
  return { status, said: stdout + stderr };
}

test("promtool finds nothing, neither in a fresh runtime's metrics nor in a used one's", async () => {
  const client = createClient(local.url, token);
  const scrape = async () => {
    const answer = await fetch(`${local.url}/metrics`, { headers: { authorization: `Bearer ${token}` } });
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
    return answer.text();
  };
  expect(lint(await scrape())).toEqual({ status: 0, said: "" });

  const grants = { actions: ["job:read"] };
  await client.command("webhooks.endpoint-add", { url: "http://127.0.0.1:1/", events: ["*"] });
  await client.command("webhooks.publish", { type: "order.paid", data: {} });
  await client.command("schedule.add", {
    name: "s",
    cron: "* * * * *",
    text: "job list",
    channel: "inbox:x",
    thread: "new",
    grants,
  });
  for (const minutes of [0, 2]) await fireTick(local.url, Date.now() + minutes * 60_000);
  const used = await scrape();
  expect(used).toContain('duework_hour_ticks{state="closed"} 2');
  expect(used).toMatch(/duework_hour_firings\{outcome="[a-z:_]+"\} \d/);
  expect(lint(used)).toEqual({ status: 0, said: "" });
});

test("the alerts of docs/operations.md are PromQL over metrics that there are", async () => {
  const page = readFileSync(path.resolve(import.meta.dirname, "../../docs/operations.md"), "utf8");
  const [, section = ""] = page.split("\n## What to have Prometheus tell\n");
  const rows = [...section.matchAll(/^\| ([a-z][^|]*?) \| `((?:\\\||[^|`])+)` \|/gm)];
  const rules = rows.map(([, alert, expr = ""]) => ({ alert, expr: expr.replaceAll("\\|", "|") }));
  expect(rules.length).toBeGreaterThan(12);
  const file = path.join(folder, "rules.yml");
  writeFileSync(file, JSON.stringify({ groups: [{ name: "duework", rules }] }));
  const { status, stdout, stderr } = spawnSync("promtool", ["check", "rules", file], { encoding: "utf8" });
  expect({ status, said: stdout + stderr }).toMatchObject({ status: 0 });

  const source = readFileSync(path.resolve(import.meta.dirname, "../../src/api/metrics.ts"), "utf8");
  const known = new Set([...source.matchAll(/"(duework_\w+)"/g)].map(([, name]) => name));
  const named = rules.flatMap(({ expr }) => [...expr.matchAll(/duework_\w+/g)].map(([name]) => name));
  expect(named.filter((name) => !known.has(name))).toEqual([]);
});

test("promtool finds what it is asked to find", () => {
  expect(
    lint("# HELP duework_items_total Items.\n# TYPE duework_items_total gauge\nduework_items_total 1\n").status,
  ).not.toBe(0);
});
