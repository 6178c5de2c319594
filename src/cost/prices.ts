/**
 * What the platform asks, and what others ask for comparison: list prices in US dollars, as their own public pages gave
 * them on {@link READ_AT}. Whoever changes a price changes the day with it, and `docs/costs.md` after them.
 */

/** The day on which the pages were read. */
export const READ_AT = "2026-11-30";

/** The lines of a bill. */
export const LINES = [
  "requests",
  "cpuMs",
  "queueOperations",
  "rowsRead",
  "rowsWritten",
  "storedGbMonths",
  "workflowSteps",
] as const;
export type Line = (typeof LINES)[number];

/** An amount of each line. */
export type Usage = Record<Line, number>;

export interface Price {
  /** What it is called on a bill. */
  readonly name: string;
  /** Dollars for so many of them. */
  readonly dollars: number;
  readonly per: number;
  /** In a month of the Paid plan before the price begins. */
  readonly included: number;
  /** In a day of the Free plan; null = it has none, or counts it otherwise. */
  readonly freeADay: number | null;
  /** The page that says so. */
  readonly source: string;
}

const MILLION = 1_000_000;
const WORKERS = "developers.cloudflare.com/workers/platform/pricing/";
const QUEUES = "developers.cloudflare.com/queues/platform/pricing/";
const D1 = "developers.cloudflare.com/d1/platform/pricing/";
const WORKFLOWS = "developers.cloudflare.com/workflows/reference/pricing/";

/** The Paid plan's own price, dollars a month: every allowance below comes with it. */
export const PLAN_DOLLARS = 5;

export const PRICES: Readonly<Record<Line, Price>> = {
  requests: {
    name: "Workers requests",
    dollars: 0.3,
    per: MILLION,
    included: 10 * MILLION,
    freeADay: 100_000,
    source: WORKERS,
  },
  // The Free plan bounds an invocation, 10 ms, and not a day.
  cpuMs: {
    name: "Workers CPU, ms",
    dollars: 0.02,
    per: MILLION,
    included: 30 * MILLION,
    freeADay: null,
    source: WORKERS,
  },
  // A write, a read and a delete of each 64 KB.
  queueOperations: {
    name: "Queues operations",
    dollars: 0.4,
    per: MILLION,
    included: MILLION,
    freeADay: 10_000,
    source: QUEUES,
  },
  rowsRead: {
    name: "D1 rows read",
    dollars: 0.001,
    per: MILLION,
    included: 25_000 * MILLION,
    freeADay: 5 * MILLION,
    source: D1,
  },
  rowsWritten: {
    name: "D1 rows written",
    dollars: 1,
    per: MILLION,
    included: 50 * MILLION,
    freeADay: 100_000,
    source: D1,
  },
  storedGbMonths: { name: "D1 storage, GB-months", dollars: 0.75, per: 1, included: 5, freeADay: null, source: D1 },
  workflowSteps: {
    name: "Workflows steps",
    dollars: 0.8,
    per: 100_000,
    included: 500_000,
    freeADay: 3_000,
    source: WORKFLOWS,
  },
};

/** A service that runs a job an item, at its list price. */
export interface Peer {
  readonly name: string;
  /** What one item is there, and what its price leaves out. */
  readonly counted: string;
  /** Dollars of a month that are asked whatever is used. */
  readonly base: number;
  /** Items of a month before the price begins. */
  readonly included: number;
  /** Dollars per million items after that. */
  readonly perMillion: number;
  /** Most items of a month at this price; null = it names none. */
  readonly most: number | null;
  readonly source: string;
  /** The day of the copy of that page which was read. */
  readonly readAt: string;
}

/**
 * List prices, without discounts or negotiation, and of different things: some only carry, some also run the work. What
 * each leaves out is said with it.
 */
export const PEERS: readonly Peer[] = [
  {
    name: "Google Cloud Tasks",
    counted: "two operations: a create and a push; the record, the database and the computing are the caller's",
    base: 0,
    included: 500_000,
    perMillion: 0.8,
    most: 2_500_000_000,
    source: "cloud.google.com/tasks/pricing",
    readAt: "2026-12-01",
  },
  {
    name: "Upstash QStash",
    counted: "one message; the endpoint's computing is the caller's",
    base: 0,
    included: 0,
    perMillion: 10,
    most: null,
    source: "upstash.com/pricing/qstash",
    readAt: "2026-12-01",
  },
  {
    name: "Trigger.dev",
    counted: "one run of one second on the smallest machine",
    base: 50,
    // The plan's own price is its credit: 50 dollars at what a run costs.
    included: Math.floor(50 / (0.000025 + 0.0000169)),
    perMillion: (0.000025 + 0.0000169) * MILLION,
    most: null,
    source: "trigger.dev/pricing",
    readAt: "2026-05-22",
  },
  {
    name: "Inngest",
    counted: "one execution: a run without steps; the computing is the caller's",
    base: 75,
    included: MILLION,
    perMillion: 50,
    most: 5 * MILLION,
    source: "inngest.com/pricing",
    readAt: "2026-05-22",
  },
  {
    name: "AWS Step Functions, Standard",
    counted: "one state transition; the computing is billed apart",
    base: 0,
    included: 4_000,
    perMillion: 25,
    most: null,
    source: "aws.amazon.com/step-functions/pricing/",
    readAt: "2026-12-01",
  },
];
