import { MINUTE } from "../../../src/core/time.ts";
import type { Report } from "./report.ts";
import { type Plan, simulate, USUAL_PLAN } from "./simulate.ts";

/** How long rows come in each line of the table, minutes: what cannot keep up shows in a few. */
const LINE_MINUTES = 15;

type Line = [name: string, change: Partial<Plan>];

/** What more queues and databases give. */
export const SHARDING: readonly Line[] = [
  ["one topic, one queue", { topics: 1 }],
  ["eight topics, one queue", {}],
  ["eight topics, four queues", { queues: 4 }],
  ["eight topics, eight queues", { queues: 8 }],
  ["16 topics, eight queues, two databases", { topics: 16, queues: 8, databases: 2 }],
  ["32 topics, eight queues, four databases", { topics: 32, queues: 8, databases: 4 }],
  ["one a message: eight topics, one queue", { itemsPerMessage: 1 }],
  ["one a message: eight topics, eight queues", { itemsPerMessage: 1, queues: 8 }],
  ["D1 five times slower: eight topics, eight queues", { queues: 8, slower: 5 }],
  ["D1 five times slower: 32 topics, eight queues, four databases", { topics: 32, queues: 8, databases: 4, slower: 5 }],
];

const count = (value: number) => Math.round(value).toLocaleString("en");
const percent = (part: number) => `${Math.round(part * 100)} %`;

export function drained({ drainedAfterMs }: Report): string {
  if (drainedAfterMs === null) return "not in a day";
  return drainedAfterMs < MINUTE ? "within a minute" : `${count(Math.ceil(drainedAfterMs / MINUTE))} min`;
}

const HEAD = [
  "simulated",
  "items a second",
  "drained after the last",
  "oldest, s",
  "D1 writer",
  "queue",
  "consumers",
  "saturated first",
  "dollars a million",
];

export function table(lines: readonly Line[], plan: Partial<Plan> = {}): string {
  const rows = lines.map(([name, change]) => {
    const report = simulate({ ...USUAL_PLAN, minutes: LINE_MINUTES, stalls: 0, ...plan, ...change });
    const { used } = report;
    return [
      name,
      count(report.itemsASecond),
      drained(report),
      count(report.oldestSeconds),
      percent(used.database),
      percent(used.queue),
      percent(used.consumers),
      report.saturated,
      report.dollars.perMillion.toFixed(2),
    ];
  });
  const rule = HEAD.map((_, index) => (index === 0 || index === 7 ? "---" : "---:"));
  return [HEAD, rule, ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}

/** What docs/simulation.md shows, by the name of its place. */
export const SIMULATION_TABLES: Record<string, () => string> = {
  day: () => summary(simulate(USUAL_PLAN)),
  sharding: () => table(SHARDING),
};

/** One run in a few lines. */
export function summary(report: Report): string {
  const { plan, lateSeconds, used, most, pump } = report;
  const ended = Object.entries(pump.ended).map(([why, times]) => `${why} ${count(times)}`);
  const rows: [string, string][] = [
    ["rows due a minute, minutes", `${count(plan.rowsAMinute)}, ${count(plan.minutes)}`],
    ["topics, queues, databases", `${plan.topics}, ${plan.queues}, ${plan.databases}`],
    ["items a message, handler, failing", `${plan.itemsPerMessage}, ${plan.handlerMs} ms, ${percent(plan.failing)}`],
    ["stalls of a minute, seed", `${plan.stalls}, ${plan.seed}`],
    ["born, settled, left", `${count(report.born)}, ${count(report.settled)}, ${count(report.left)}`],
    ["ran twice, since their settle was not written", count(report.repeated)],
    ["items a second", count(report.itemsASecond)],
    ["waiting when the last fell due", count(report.waitingAtLast)],
    ["drained after the last fell due", drained(report)],
    [
      "late, median, p99, most",
      `${count(lateSeconds.median)} s, ${count(lateSeconds.p99)} s, ${count(lateSeconds.most)} s`,
    ],
    [
      "in use: D1 writer, queue, consumers",
      `${percent(used.database)}, ${percent(used.queue)}, ${percent(used.consumers)}`,
    ],
    ["most in a second: sent, delivered", `${count(most.messagesIn)}, ${count(most.messagesOut)}`],
    ["most consumers, longest wait for D1", `${most.consumers}, ${count(most.databaseWaitMs)} ms`],
    ["sends refused, calls of D1 given up", `${count(report.refusedSends)}, ${count(report.failedCalls)}`],
    ["pages pumped; why chains ended", `${count(pump.steps)}; ${ended.join(", ")}`],
    ["saturated first", report.saturated],
    [
      "dollars, every unit paid; a million items",
      `${count(report.dollars.all)}; ${report.dollars.perMillion.toFixed(2)}`,
    ],
  ];
  return ["| simulated | |", "| --- | ---: |", ...rows.map((cells) => `| ${cells.join(" | ")} |`)].join("\n");
}
