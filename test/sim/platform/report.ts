import { MINUTE, SECOND } from "../../../src/core/time.ts";
import { costOf, noUsage, USUAL } from "../../../src/cost/cost.ts";
import { PLATFORM } from "./limits.ts";
import type { SimQueue } from "./queue.ts";
import type { Shard, SimTopic } from "./shard.ts";
import type { Plan } from "./simulate.ts";
import type { Tally } from "./tally.ts";

export interface Report {
  plan: Plan;
  born: number;
  settled: number;
  /** Born and not settled when the simulation ended. */
  left: number;
  repeated: number;
  failures: number;
  /** Rows that waited when the last fell due. */
  waitingAtLast: number;
  /** How long after the last fell due the last was settled, ms; null = not within a day. */
  drainedAfterMs: number | null;
  /** How late items were settled, s. */
  lateSeconds: { median: number; p99: number; most: number };
  oldestSeconds: number;
  /** Items a second, from the first that was due to the last that was settled. */
  itemsASecond: number;
  /** In use, parts of one, while rows came. */
  used: { database: number; queue: number; consumers: number };
  /** What was in use all the time, or what else held up the rows. */
  saturated: string;
  most: { messagesIn: number; messagesOut: number; consumers: number; databaseWaitMs: number };
  refusedSends: number;
  failedCalls: number;
  ticks: { run: number; failed: number };
  pump: { steps: number; ended: Record<string, number> };
  messages: number;
  batches: number;
  dollars: { all: number; perMillion: number };
}

/** Above this part of the time in use, a thing is saturated. */
const SATURATED = 0.8;

export function reportOf(of: {
  plan: Plan;
  tally: Tally;
  shards: readonly Shard[];
  queues: readonly SimQueue<SimTopic>[];
  lastDue: number;
}): Report {
  const { plan, tally, shards, queues, lastDue } = of;
  const { born, settled } = tally;
  const drained = settled === born;
  const span = Math.max(tally.lastSettled, MINUTE);
  const sum = (values: readonly number[]) => values.reduce((total, one) => total + one, 0);
  const most = (values: readonly number[]) => Math.max(...values);
  const used = {
    database: most(shards.map(({ database }) => database.busy / span)),
    queue: most(queues.map(({ sent }) => sent / (span / SECOND) / PLATFORM.queueMessagesASecond)),
    consumers: most(queues.map(({ consumerMs }) => consumerMs / span / PLATFORM.consumers)),
  };
  const messages = sum(queues.map(({ sent }) => sent));
  const batches = sum(queues.map(({ batches }) => batches));
  const usage = {
    ...noUsage(),
    requests: batches + tally.ticks,
    cpuMs: (settled + tally.failures) * USUAL.cpuMsAnItem,
    queueOperations: messages * 3,
    rowsWritten: tally.rowsWritten,
  };
  const { dollars } = costOf(usage, { allowances: false });
  const waitingAtLast = tally.waitingAtLast ?? 0;
  const held = waitingAtLast > plan.rowsAMinute;
  return {
    plan,
    born,
    settled,
    left: born - settled,
    repeated: tally.repeated,
    failures: tally.failures,
    waitingAtLast,
    drainedAfterMs: drained ? Math.max(0, tally.lastSettled - lastDue) : null,
    lateSeconds: { median: quantile(tally, 0.5), p99: quantile(tally, 0.99), most: quantile(tally, 1) },
    oldestSeconds: Math.round(tally.oldestMs / SECOND),
    itemsASecond: Math.round(settled / Math.max(1, (span - 2 * MINUTE) / SECOND)),
    used: { database: rounded(used.database), queue: rounded(used.queue), consumers: rounded(used.consumers) },
    saturated: saturatedOf(used, held, tally),
    most: {
      messagesIn: most(queues.map((queue) => queue.mostASecond.in)),
      messagesOut: most(queues.map((queue) => queue.mostASecond.out)),
      consumers: most(queues.map(({ mostConsumers }) => mostConsumers)),
      databaseWaitMs: Math.round(most(shards.map(({ database }) => database.longestWait))),
    },
    refusedSends: sum(queues.map(({ refused }) => refused)),
    failedCalls: sum(shards.map(({ database }) => database.failed)),
    ticks: { run: tally.ticks, failed: tally.ticksFailed },
    pump: { steps: tally.steps, ended: Object.fromEntries([...tally.ended].sort(([, a], [, b]) => b - a)) },
    messages,
    batches,
    dollars: { all: rounded(dollars), perMillion: rounded(dollars / (Math.max(1, settled) / 1_000_000)) },
  };
}

const rounded = (value: number) => Number(value.toFixed(2));

function saturatedOf(used: Report["used"], held: boolean, { ended }: Tally): string {
  const names = { database: "the D1 writer", queue: "the queue", consumers: "the consumers" };
  const [first] = Object.entries(used).sort(([, a], [, b]) => b - a);
  if (first !== undefined && first[1] >= SATURATED) return names[first[0] as keyof typeof names];
  if (!held) return "nothing";
  const [why] = [...ended].filter(([why]) => why !== "no full page was left").sort(([, a], [, b]) => b - a);
  return `the pump: ${why?.[0] ?? "its chains are slow"}`;
}

function quantile({ late, settled }: Tally, part: number): number {
  let left = Math.ceil(settled * part);
  for (const [second, count] of [...late].sort(([a], [b]) => a - b)) {
    left -= count;
    if (left <= 0) return second;
  }
  return 0;
}
