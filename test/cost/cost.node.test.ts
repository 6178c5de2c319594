import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { readCostFlags } from "../../src/cli/cost.ts";
import { COST_TABLES, WAYS } from "../../src/cli/cost-tables.ts";
import { shownTable } from "../../src/cli/page-tables.ts";
import { costOf, freePlan, noUsage, peerDollars, perMillion, rowsOf, USUAL, usageOf } from "../../src/cost/cost.ts";
import { ADDED, PATHS } from "../../src/cost/envelope.ts";
import { LINES, PEERS, PRICES } from "../../src/cost/prices.ts";
import { topicCosts } from "../../src/cost/topics.ts";

const root = path.resolve(import.meta.dirname, "../..");
const read = (file: string) => readFileSync(path.join(root, file), "utf8");

describe("the envelope", () => {
  const measured = new Map(
    read("docs/envelope.md")
      .split("\n")
      .filter((line) => line.startsWith("| "))
      .map((line) => line.split("|").slice(1, -1))
      .map(([name = "", written = "", read = ""]) => [name.trim(), [Number(written), Number(read)]]),
  );

  test.each(Object.entries({ ...PATHS, ...ADDED }))("%s is as docs/envelope.md has it, measured", (name, figures) => {
    expect([figures.rowsWritten, figures.rowsRead]).toEqual(measured.get(name));
  });

  test("one and ten a message are what was measured, and a hundred a message share a message's rows", () => {
    const rows = (itemsPerMessage: number) => rowsOf({ ...USUAL, itemsPerMessage }).rowsWritten;
    expect([rows(1), rows(10), rows(100)].map((one) => Number(one.toFixed(6)))).toEqual([3, 2.1, 2.01]);
  });
});

describe("targets", () => {
  test.each(WAYS)("$name: a million items cost at most $target dollars", ({ workload, target }) => {
    expect(perMillion(workload)).toBeLessThanOrEqual(target ?? 0);
  });
});

describe("a bill", () => {
  test("with allowances pays what is beyond them, and the plan", () => {
    const usage = { ...noUsage(), rowsWritten: 51_000_000, queueOperations: 900_000 };
    expect(costOf(usage, { allowances: true }).dollars).toBeCloseTo(5 + 1, 9);
    expect(costOf(usage, { allowances: false }).dollars).toBeCloseTo(51 + 0.36, 9);
  });

  test("is the sum of its lines, and every line has a price, a page and a day", () => {
    const usage = Object.fromEntries(LINES.map((line, index) => [line, (index + 1) * 1_000_000])) as never;
    const { dollars, lines } = costOf(usage, { allowances: false });
    expect(lines.map(({ line }) => line)).toEqual([...LINES]);
    expect(lines.reduce((sum, one) => sum + one.dollars, 0)).toBeCloseTo(dollars, 9);
    for (const { source } of Object.values(PRICES)) expect(source).toMatch(/^developers\.cloudflare\.com\/.+\/$/);
    for (const { readAt } of PEERS) expect(readAt).toMatch(/^\d{4}-\d\d-\d\d$/);
  });

  test("of a message is three operations and a part of an invocation; a drain sends none", () => {
    const queue = usageOf({ ...USUAL, items: 1_000, itemsPerMessage: 10, messagesABatch: 50 });
    expect([queue.queueOperations, queue.requests]).toEqual([300, 2]);
    const drain = usageOf({ ...USUAL, items: 1_000, path: "drain" });
    expect([drain.queueOperations, drain.requests]).toEqual([0, 0]);
  });

  test("of what comes one by one pays a whole invocation a message: more than a bulk", () => {
    expect(perMillion({ ...USUAL, messagesABatch: 1 }) - perMillion(USUAL)).toBeCloseTo(0.3 * 0.99, 9);
  });

  test("the Free plan is ended by the first of its daily allowances", () => {
    expect(freePlan(USUAL)).toEqual({ items: 3_333, endedBy: "queueOperations" });
    expect(freePlan({ ...USUAL, path: "drain" }).endedBy).toBe("rowsWritten");
  });

  test("a peer's list price begins after what is included, and ends where it names no more", () => {
    const peer = { ...PEERS[0]!, base: 10, included: 100, perMillion: 1_000_000, most: 200 };
    expect([50, 150, 201].map((items) => peerDollars(peer, items))).toEqual([10, 60, null]);
  });
});

describe("a topic's cost", () => {
  const of = (figures: object) => ({
    topic: "a.a",
    sent: 0,
    messages: 0,
    pumped: 0,
    drained: 0,
    rowsRead: 0,
    rowsWritten: 0,
    ...figures,
  });

  test("is what ticks measured and, for the same items' birth and consumer, the envelope", () => {
    const records = [
      [of({ sent: 500_000, messages: 50_000, rowsWritten: 500_000 })],
      [
        of({ sent: 500_000, messages: 50_000, rowsWritten: 500_000 }),
        of({ topic: "b.b", drained: 10, rowsWritten: 20 }),
      ],
    ];
    const [dear, cheap] = topicCosts(records);
    // A million items due later, ten a message: four million rows less what ten share, and 100,000 messages.
    expect(dear).toMatchObject({ topic: "a.a", items: 1_000_000, measured: { rowsWritten: 1_000_000 } });
    expect(dear?.dollars).toBeCloseTo(perMillion({ ...USUAL, due: "later", itemsPerMessage: 10, cpuMsAnItem: 0 }), 1);
    expect(cheap).toMatchObject({ topic: "b.b", items: 10, byEnvelope: { rowsWritten: 10, queueOperations: 0 } });
  });

  test("what pumps claimed counts as what ticks sent", () => {
    const sent = topicCosts([[of({ sent: 1_000, messages: 1_000, rowsWritten: 1_000, rowsRead: 5_030 })]])[0];
    const pumped = topicCosts([[of({ pumped: 1_000 })]])[0];
    expect(pumped?.dollars).toBeCloseTo(sent?.dollars ?? 0, 6);
  });
});

describe("docs/costs.md", () => {
  test.each(Object.entries(COST_TABLES))("shows the %s table as the script makes it", (name, make) => {
    expect(shownTable(read("docs/costs.md"), name)).toBe(make());
  });
});

describe("npm run cost", () => {
  const run = (...flags: string[]) =>
    execFileSync(process.execPath, [path.join(root, "src/cli/cost.ts"), ...flags], { encoding: "utf8" });

  test("--json is one line, of the asked items and path alone", () => {
    const report = JSON.parse(run("--items", "1000000", "--path", "drain", "--json"));
    expect(report.ways.map(({ name }: { name: string }) => name)).toEqual(["drain"]);
    expect(report.ways[0].months).toHaveLength(1);
    expect(report.ways[0].dollarsAMillion).toBeCloseTo(perMillion(WAYS.at(-1)!.workload), 9);
  });

  test("flags change the workload, and a wrong one is refused by name", () => {
    const { ways } = readCostFlags(["--path", "queue", "--due", "later", "--per-message", "50", "--key"]);
    expect(ways.map(({ workload }) => [workload.due, workload.itemsPerMessage, workload.keyed])).toEqual([
      ["later", 50, true],
    ]);
    expect(() => readCostFlags(["--path", "post"])).toThrow('--path takes queue or drain, not "post"');
    expect(() => readCostFlags(["--items", "-1"])).toThrow();
  });
});
