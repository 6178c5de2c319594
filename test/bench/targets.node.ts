import { type Measured, spreadOf, type Table } from "./report.node.ts";

/** What the figures are held to. A ratio of two medians, and what it should be. */
interface Target {
  what: string;
  least?: number;
  most?: number;
  of(median: Median): number | null;
}

/** The median of a figure in a case; the best of all contenders whose setting matches. Null: not measured. */
type Median = (name: string, system: RegExp, setting: RegExp, figure?: string) => number | null;

const PEERS = /graphile|boss|bull/;
const ANY = /./;
const ratio = (a: number | null, b: number | null) => (a === null || b === null || b === 0 ? null : a / b);

const TARGETS: readonly Target[] = [
  {
    what: "queue, 1 a message ÷ graphile-worker, 24 at a time",
    least: 2,
    of: (m) => ratio(m("drain", /duework/, /, 1 a/), m("drain", /graphile/, /^24/)),
  },
  {
    what: "queue, 1 a message ÷ BullMQ's best",
    least: 1,
    of: (m) => ratio(m("drain", /duework/, /, 1 a/), m("drain", /bull/, ANY)),
  },
  {
    what: "queue, 10 a message ÷ graphile-worker's best",
    least: 1,
    of: (m) => ratio(m("drain", /duework/, /, 10 a/), m("drain", /graphile/, ANY)),
  },
  {
    what: "queue, 50 a message ÷ the best of all three",
    least: 1,
    of: (m) => ratio(m("drain", /duework/, /, 50 a/), m("drain", PEERS, ANY)),
  },
  {
    what: "drain ÷ the best of all three",
    least: 1,
    of: (m) => ratio(m("drain", /duework/, /^drain/), m("drain", PEERS, ANY)),
  },
  {
    what: "bulk enqueue, ready ÷ the best of all three",
    least: 3,
    of: (m) => ratio(m("enqueue", /duework/, ANY), m("enqueue", PEERS, ANY)),
  },
  {
    what: "bulk enqueue, sent at once, 1 a message ÷ the best of all three",
    least: 1,
    of: (m) => ratio(m("enqueue-sent", /duework/, /, 1 a/), m("enqueue", PEERS, ANY)),
  },
  { what: "POSTs ÷ pg-boss", least: 1, of: (m) => ratio(m("post", /duework/, ANY), m("post", /boss/, ANY)) },
  { what: "POSTs ÷ BullMQ", least: 1, of: (m) => ratio(m("post", /duework/, ANY), m("post", /bull/, ANY)) },
  { what: "start latency p50, ms", most: 60, of: (m) => m("latency", /duework/, ANY, "p50") },
  ...[/, 1 a/, /, 10 a/, /, 50 a/, /^drain/].map((setting) => ({
    what: `time beside other rows ÷ beside none, ${/drain/.test(setting.source) ? "drain" : `queue${setting.source} message`}`,
    most: 1.2,
    of: (m: Median) => ratio(m("drain", /duework/, setting), m("beside", /duework/, setting)),
  })),
  {
    what: "time of POSTs beside other rows ÷ beside none",
    most: 1.2,
    of: (m) => ratio(m("post", /duework/, ANY), m("post-beside", /duework/, ANY)),
  },
];

/** Each target whose figures were measured, and whether it held. */
export function heldTo(measured: readonly Measured[]): Omit<Table, "title"> {
  const median: Median = (name, system, setting, figure = "perSecond") => {
    const found = measured
      .filter((one) => one.case === name && system.test(one.system) && setting.test(one.setting))
      .flatMap(({ rounds }) => spreadOf(rounds, figure)?.median ?? []);
    return found.length === 0 ? null : Math.max(...found);
  };
  const rows = TARGETS.flatMap(({ what, least, most, of }) => {
    const value = of(median);
    if (value === null) return [];
    const held = value >= (least ?? Number.NEGATIVE_INFINITY) && value <= (most ?? Number.POSITIVE_INFINITY);
    const bound = least === undefined ? `≤ ${most}` : `≥ ${least}`;
    return [[what, bound, value.toFixed(value < 10 ? 2 : 0), held ? "yes" : "no"]];
  });
  return { head: ["what", "target", "measured", "held"], rows };
}
