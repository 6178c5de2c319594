import {
  type Bill,
  costOf,
  freePlan,
  idleUsage,
  perMillion,
  peersAt,
  plus,
  USUAL,
  usageOf,
  type Workload,
} from "../cost/cost.ts";
import { LINES, PEERS, PRICES, READ_AT } from "../cost/prices.ts";

/** The tables of docs/costs.md, by the name of their place. */
export const COST_TABLES: Record<string, () => string> = {
  "per-million": () => perMillionTable(),
  added: () => addedTable(),
  month: () => monthTable(),
  peers: () => peersTable(),
  "peers-sources": () => peersSources(),
  free: () => freeTable(),
  prices: () => pricesTable(),
};

/** A kind of month. */
export interface Way {
  name: string;
  workload: Workload;
  /** What a million items may cost at most; null = none was set. */
  target: number | null;
}

/** The ways of an item that `npm run cost` and docs/costs.md show, in this order. */
export const WAYS: readonly Way[] = [
  { name: "queue, now, one a message", workload: USUAL, target: 4.3 },
  { name: "queue, later, one a message", workload: { ...USUAL, due: "later" }, target: 5.3 },
  { name: "queue, now, ten a message", workload: { ...USUAL, itemsPerMessage: 10 }, target: 2.35 },
  { name: "queue, later, ten a message", workload: { ...USUAL, itemsPerMessage: 10, due: "later" }, target: 3.35 },
  { name: "drain", workload: { ...USUAL, path: "drain", due: "later" }, target: 3.3 },
];

/** Items a month, 10⁴ to 10⁹. */
export const SIZES = [4, 5, 6, 7, 8, 9].map((power) => 10 ** power);

/** A Markdown table; every column but the first is of figures. */
export function table(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  figures = head.length - 1,
): string {
  const rule = head.map((_, index) => (index >= head.length - figures ? "---:" : "---"));
  return [head, rule, ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}

export const count = (value: number) => Math.round(value).toLocaleString("en");

/** Dollars: cents while they matter. */
export function money(dollars: number): string {
  if (dollars >= 1_000) return count(dollars);
  return dollars.toFixed(dollars > 0 && dollars < 0.1 ? 3 : 2);
}

/** Dollars a million items, by line, every unit paid. */
export function perMillionTable(ways = WAYS): string {
  const bills = ways.map(({ workload }) => costOf(usageOf({ ...workload, items: 1_000_000 }), { allowances: false }));
  const dollarsOf = (bill: Bill, line: string) => bill.lines.find((one) => one.line === line)?.dollars ?? 0;
  const lines = LINES.filter((line) => bills.some((bill) => dollarsOf(bill, line) > 0));
  const head = ["dollars a million items", ...ways.map(({ name }) => name)];
  const rows = lines.map((line) => [PRICES[line].name, ...bills.map((bill) => money(dollarsOf(bill, line)))]);
  const targets = ways.flatMap(({ target }) => (target === null ? [] : [money(target)]));
  return table(head, [
    ...rows,
    ["**together**", ...bills.map(({ dollars }) => `**${money(dollars)}**`)],
    ...(targets.length === ways.length ? [["at most", ...targets]] : []),
  ]);
}

/** Dollars a month with the Paid plan and its allowances, the ticks of the month included. */
export function monthTable(sizes = SIZES, ways = WAYS): string {
  const dollars = (workload: Workload, items: number) =>
    costOf(plus(usageOf({ ...workload, items }), idleUsage()), { allowances: true }).dollars;
  const head = ["dollars a month", ...sizes.map(count)];
  return table(
    head,
    ways.map(({ name, workload }) => [name, ...sizes.map((items) => money(dollars(workload, items)))]),
  );
}

/** The same for others, at their list prices. */
export function peersTable(sizes = SIZES): string {
  const at = sizes.map(peersAt);
  const names = at[0]?.map(({ name }) => name) ?? [];
  const head = ["list price, dollars a month", ...sizes.map(count)];
  const cell = (dollars: number | null | undefined) => (typeof dollars === "number" ? money(dollars) : "no list price");
  return table(
    head,
    names.map((name, index) => [name, ...at.map((peers) => cell(peers[index]?.dollars))]),
  );
}

/** What the peers' prices are of, and where they stand. */
export function peersSources(): string {
  return table(
    ["list price of", "an item is counted as", "read on", "page"],
    PEERS.map(({ name, counted, readAt, source }) => [name, counted, readAt, `\`${source}\``]),
    0,
  );
}

/** The platform's prices. */
export function pricesTable(): string {
  const free = (freeADay: number | null) => (freeADay === null ? "none" : count(freeADay));
  return table(
    [`price on ${READ_AT}`, "dollars", "for", "included a month", "Free plan, a day", "page"],
    LINES.map((line) => {
      const { name, dollars, per, included, freeADay, source } = PRICES[line];
      return [name, String(dollars), count(per), count(included), free(freeADay), `\`${source}\``];
    }),
    5,
  );
}

/** Items a day that the Free plan carries. */
export function freeTable(ways = WAYS): string {
  return table(
    ["Free plan", "items a day", "ended by"],
    ways.map(({ name, workload }) => {
      const { items, endedBy } = freePlan(workload);
      return [name, count(items), PRICES[endedBy].name];
    }),
    2,
  );
}

/** What else adds to a million items. */
export function addedTable(): string {
  const plain = perMillion(USUAL);
  const more = (change: Partial<Workload>) => money(perMillion({ ...USUAL, ...change }) - plain);
  return table(
    ["to a million items that are enqueued now, one a message", "dollars more"],
    [
      ["a unique key", more({ keyed: true })],
      ["one run more that fails, or moves on within two minutes", more({ retries: 1 })],
      ["batches of one message: items that come one by one", more({ messagesABatch: 1 })],
      ["10 ms of CPU an item instead of one", more({ cpuMsAnItem: 10 })],
      ["payloads of 10 KB instead of 200 bytes, that wait a day", more({ payloadBytes: 10_000, waitDays: 1 })],
    ],
  );
}
