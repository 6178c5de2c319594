import { writeFile } from "node:fs/promises";
import path from "node:path";
import { ROOT } from "../../src/cli/local.ts";
import { chart } from "./chart.node.ts";
import type { Machine } from "./machine.node.ts";
import type { Figures } from "./measure.node.ts";
import { heldTo } from "./targets.node.ts";

/** What one contender did in one case, round by round. */
export interface Measured {
  case: string;
  system: string;
  setting: string;
  source: string | null;
  rounds: Figures[];
}

export interface Report {
  machine: Machine & { loadAfter: number[] };
  rounds: number;
  quick: boolean;
  measured: Measured[];
}

export interface Table {
  title: string;
  head: string[];
  rows: string[][];
}

const TITLES: Record<string, string> = {
  enqueue: "Bulk enqueue, ready",
  "enqueue-sent": "Bulk enqueue, sent at once",
  drain: "Drain of items that do nothing",
  beside: "The same drain beside rows that are not due, or finished",
  latency: "Enqueue to start, one item at a time",
  post: "Items that each POST to a local server, six connections",
  "post-beside": "The same POSTs beside rows that are not due, or finished",
  kill: "A worker killed in the middle",
};

/** A figure's name, and how many digits of it mean something. */
const COLUMNS: Record<string, readonly [head: string, digits: number]> = {
  perSecond: ["a second", 0],
  cpuPer1000: ["CPU s per 1,000", 3],
  twice: ["twice", 0],
  lost: ["lost", 0],
  p50: ["p50, ms", 0],
  p99: ["p99, ms", 0],
  max: ["longest, ms", 0],
  recoveredAfter: ["last item back after, s", 1],
  settledAfter: ["all settled after, s", 1],
  missing: ["not back in the window", 0],
};

/** Median, and the least and most of the rounds. */
export function spreadOf(rounds: readonly Figures[], name: string) {
  const sorted = rounds.flatMap((round) => round[name] ?? []).sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)];
  if (middle === undefined) return null;
  const even = sorted.length % 2 === 0 ? (sorted[sorted.length / 2 - 1] as number) : middle;
  return { median: (middle + even) / 2, min: sorted[0] as number, max: sorted.at(-1) as number };
}

export function tables({ measured }: Report): Table[] {
  return [...Map.groupBy(measured, (one) => one.case)].map(([name, all]) => {
    const names = Object.keys(COLUMNS).filter((column) =>
      all.some(({ rounds }) => rounds.some((one) => column in one)),
    );
    return {
      title: TITLES[name] ?? name,
      head: ["system", "setting", ...names.map((column) => COLUMNS[column]?.[0] ?? column)],
      rows: all.map(({ system, setting, rounds }) => [system, setting, ...names.map((column) => cell(rounds, column))]),
    };
  });
}

function cell(rounds: readonly Figures[], column: string): string {
  const spread = spreadOf(rounds, column);
  if (spread === null) return "";
  const shown = (value: number) => number(value, COLUMNS[column]?.[1] ?? 0);
  const { median, min, max } = spread;
  return shown(min) === shown(max) ? shown(median) : `${shown(median)} (${shown(min)} to ${shown(max)})`;
}

function number(value: number, digits: number): string {
  const finer = digits === 0 && Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : digits;
  return value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: finer });
}

/** Writes docs/benchmarks.md and its chart. */
export async function writePage(report: Report): Promise<void> {
  const drains = report.measured.filter((one) => one.case === "drain");
  await writeFile(path.join(ROOT, "docs/benchmarks.svg"), chart("Items that do nothing, a second", drains));
  await writeFile(path.join(ROOT, "docs/benchmarks.md"), page(report));
}

function page(report: Report): string {
  const { machine, rounds, quick, measured } = report;
  const { versions, load, loadAfter } = machine;
  const named = (names: readonly string[]) => names.map((name) => `${name} ${versions[name]}`).join(", ");
  const sources = new Map(measured.flatMap(({ system, source }) => (source === null ? [] : [[system, source]])));
  const killed = TITLES.kill;
  const parts = [
    "# Benchmarks",
    "",
    "Written by `npm run bench -- --write`; do not edit it by hand. One machine, one run, the systems in turn, each",
    "round all of them; the figure is the median of the rounds, the least and the most of them in brackets.",
    "",
    ...(quick ? ["**A quick run of one round with few items: a smoke test, not a measurement.**", ""] : []),
    `Taken ${machine.takenAt.slice(0, 10)} on ${machine.cores} cores of ${machine.cpu}, ${machine.memoryGiB} GiB, ${rounds} ` +
      `round${rounds === 1 ? "" : "s"}; load averages before: ${load.join(", ")}, after: ${loadAfter.join(", ")}.`,
    `Ours at commit ${versions.duework}: ${named(["node", "wrangler", "workerd"])}. Beside it:`,
    `${named(["graphile-worker", "pg-boss", "bullmq", "postgresql", "redis"])}, the servers with their default durability.`,
    "",
    "![Items that do nothing, a second](benchmarks.svg)",
    "",
    ...tables(report).flatMap((table) => [
      `## ${table.title}`,
      "",
      ...(table.title === killed ? [...AFTER_A_KILL, ""] : []),
      ...markdown(table),
      "",
    ]),
    ...section("Held to the targets", markdown(heldTo(measured))),
    "## What these figures do not say",
    "",
    ...CAVEATS,
    "",
    "## Settings",
    "",
    "Documented settings are from:",
    "",
    ...[...sources].map(([system, source]) => `- ${system}: <${source}>`),
    "",
  ];
  return `${parts.join("\n").trimEnd()}\n`;
}

const AFTER_A_KILL = [
  "Killed with SIGKILL when a quarter of the items had come, and started again at once. Ours loses its local queue with",
  "its process, which the platform's does not: so it waits for its leases and for the tick of the minute.",
  "graphile-worker frees what a dead worker had locked after 4 hours, pg-boss without a heartbeat after 15 minutes:",
  "what is not back in the window is not lost, and comes then.",
];

const CAVEATS = [
  "- Ours runs on the local simulator: one isolate, one consumer at a time, a queue in memory, SQLite in the same",
  "  process. Production runs up to 250 consumers beside each other on a database across a network, takes 5,000",
  "  messages a second a queue, and bills by row and message: see [known limits](known-limits.md).",
  "- So these figures compare what each system's own work costs on one machine. They are no promise of a rate.",
  "- The peers' figures are of one worker process and one server on the same two ends of a loopback. Theirs, too, grow",
  "  with more workers.",
  "- Durability differs: PostgreSQL syncs each commit, Redis takes a snapshot now and then, and the simulator's SQLite",
  "  does what workerd has it do.",
  "- CPU seconds count a system's processes and its server: for ours `wrangler dev` and workerd, for the others Node",
  "  and PostgreSQL or Redis. The receiver of POSTs is counted for none.",
];

function section(title: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : [`## ${title}`, "", ...lines, ""];
}

function markdown({ head, rows }: Omit<Table, "title">): string[] {
  if (rows.length === 0) return [];
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)];
}
