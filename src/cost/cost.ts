import { ADDED, IDLE_TICK, type Measured, PATHS, shared, TICKS_A_MONTH } from "./envelope.ts";
import { type Line, LINES, PEERS, type Peer, PLAN_DOLLARS, PRICES, type Usage } from "./prices.ts";

/** A month's items of one kind, and how they go. */
export interface Workload {
  /** Items a month. */
  items: number;
  path: "queue" | "drain";
  itemsPerMessage: number;
  /** `now` = enqueued with `enqueueNow`; `later` = due at a time of its own, and claimed by the tick. */
  due: "now" | "later";
  keyed: boolean;
  /** Bytes of an item's payload as it is stored. */
  payloadBytes: number;
  /** How long an item stands in the table, days. */
  waitDays: number;
  /** Messages in a batch that the consumer gets. */
  messagesABatch: number;
  /** Runs of an item that fail, or move on to the next two minutes, before its last. */
  retries: number;
  /** CPU of one run, the runtime's part and the handler's, ms. Assumed: no local figure says what the platform bills. */
  cpuMsAnItem: number;
}

/** One tiny item a message, in full batches: what a bulk of no-op items costs. */
export const USUAL: Workload = {
  items: 1_000_000,
  path: "queue",
  itemsPerMessage: 1,
  due: "now",
  keyed: false,
  payloadBytes: 200,
  waitDays: 1 / 24,
  messagesABatch: 100,
  retries: 0,
  cpuMsAnItem: 1,
};

/** A message is written, read and deleted: three operations. One that carries references is far below 64 KB. */
const OPERATIONS_A_MESSAGE = 3;
/** Bytes of a row beside its payload: its key, its times and its counters. */
const ROW_BYTES = 120;
const GB = 1_000_000_000;
/** CPU of a tick with nothing due, ms. Assumed, as that of an item. */
const TICK_CPU_MS = 5;

export function noUsage(): Usage {
  return Object.fromEntries(LINES.map((line) => [line, 0])) as Usage;
}

export function plus(one: Usage, other: Usage): Usage {
  return Object.fromEntries(LINES.map((line) => [line, one[line] + other[line]])) as Usage;
}

/** What one item writes and reads, from its enqueue to its last row gone. */
export function rowsOf({ path, due, itemsPerMessage, keyed, retries }: Workload): Measured {
  const plain =
    path === "drain"
      ? PATHS["by the drain, settled one by one"]
      : due === "now"
        ? shared(
            PATHS["enqueued now, by the queue"],
            PATHS["enqueued now, by the queue, ten a message"],
            itemsPerMessage,
          )
        : shared(PATHS["due later, by the queue"], PATHS["due later, by the queue, ten a message"], itemsPerMessage);
  const parts: [Measured, number][] = [
    [plain, 1],
    [ADDED["+ a unique key, over its life"], keyed ? 1 : 0],
    [ADDED["+ a run that fails or moves on within two minutes"], retries],
  ];
  return {
    rowsWritten: parts.reduce((sum, [part, times]) => sum + times * part.rowsWritten, 0),
    rowsRead: parts.reduce((sum, [part, times]) => sum + times * part.rowsRead, 0),
  };
}

/** What a month's items use, without the ticks of the month. The enqueuing request is the caller's own. */
export function usageOf(workload: Workload): Usage {
  const { items, path, itemsPerMessage, payloadBytes, waitDays, messagesABatch, retries, cpuMsAnItem } = workload;
  const { rowsWritten, rowsRead } = rowsOf(workload);
  // A run that moves on within two minutes travels by itself.
  const messages = path === "drain" ? 0 : items / itemsPerMessage + items * retries;
  return {
    ...noUsage(),
    requests: messages / messagesABatch,
    cpuMs: items * (1 + retries) * cpuMsAnItem,
    queueOperations: messages * OPERATIONS_A_MESSAGE,
    rowsRead: items * rowsRead,
    rowsWritten: items * rowsWritten,
    storedGbMonths: (items * (payloadBytes + ROW_BYTES) * (waitDays / 30)) / GB,
  };
}

/** What the month's ticks use when nothing is due: the price of being there. */
export function idleUsage(): Usage {
  return {
    ...noUsage(),
    requests: TICKS_A_MONTH,
    cpuMs: TICKS_A_MONTH * TICK_CPU_MS,
    rowsRead: TICKS_A_MONTH * IDLE_TICK.rowsRead,
    rowsWritten: TICKS_A_MONTH * IDLE_TICK.rowsWritten,
  };
}

/** One Workflow instance an item, with so many steps: what this runtime leaves to work that has several. */
export function workflowUsage(items: number, steps: number): Usage {
  return { ...noUsage(), requests: items, cpuMs: items * USUAL.cpuMsAnItem, workflowSteps: items * steps };
}

/** Dollars, by line and together. */
export interface Bill {
  lines: { line: Line; name: string; amount: number; dollars: number }[];
  dollars: number;
}

/** A month's usage at list price: every unit paid, or those beyond the Paid plan's allowances, and the plan. */
export function costOf(usage: Usage, { allowances }: { allowances: boolean }): Bill {
  const lines = LINES.filter((line) => usage[line] > 0).map((line) => {
    const { name, dollars, per, included } = PRICES[line];
    const paid = allowances ? Math.max(0, usage[line] - included) : usage[line];
    return { line, name, amount: usage[line], dollars: (paid / per) * dollars };
  });
  const plan = allowances ? PLAN_DOLLARS : 0;
  return { lines, dollars: lines.reduce((sum, one) => sum + one.dollars, plan) };
}

/** Dollars a million items, every unit paid. */
export function perMillion(workload: Omit<Workload, "items">): number {
  return costOf(usageOf({ ...workload, items: 1_000_000 }), { allowances: false }).dollars;
}

/** Items a day that the Free plan's daily allowances carry, ticks included; and which of them ends first. */
export function freePlan(workload: Omit<Workload, "items">): { items: number; endedBy: Line } {
  const one = usageOf({ ...workload, items: 1_000_000 });
  const idle = idleUsage();
  const most = LINES.flatMap((line) => {
    const { freeADay } = PRICES[line];
    if (freeADay === null || one[line] === 0) return [];
    return [{ items: Math.floor(((freeADay - idle[line] / 30) / one[line]) * 1_000_000), endedBy: line }];
  });
  return most.reduce((least, each) => (each.items < least.items ? each : least));
}

/** A peer's month at list price; null where its list price ends. */
export function peerDollars({ base, included, perMillion, most }: Peer, items: number): number | null {
  if (most !== null && items > most) return null;
  return base + (Math.max(0, items - included) / 1_000_000) * perMillion;
}

/** What others ask for so many items a month, by name. */
export function peersAt(items: number): { name: string; dollars: number | null }[] {
  const workflow = costOf(workflowUsage(items, 1), { allowances: true }).dollars;
  return [
    { name: "One Workflow instance an item, one step", dollars: workflow },
    ...PEERS.map((peer) => ({ name: peer.name, dollars: peerDollars(peer, items) })),
  ];
}
