import { amountsOf, type Budget, type Cost, COUNTED } from "../core/budget.ts";
import { splitTopicName } from "../core/names.ts";
import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { since } from "../db/meter.ts";
import { begin, claim, type LoadedRow } from "./items.ts";
import type { DrainOptions, DrainReport } from "./outbox.ts";
import { type Delivery, deliver, exhausted } from "./run.ts";
import { contextFor, type Invocation, instantOf, leaseOf } from "./runtime.ts";
import { fenceOf, type Release, settle } from "./settle.ts";
import { runningLeaseMs, SETTLE_MARGIN_MS, type Path, type Topic } from "./topic.ts";

/** Statements of a pass itself, charged before it claims: the claim, and giving back what was not worked. */
export const PASS_COST = { queries: 2 };
/** An item is not begun with less wall time than this left (or its own deadline, when that is shorter), ms. */
const LEAST_ITEM_MS = SECOND;

/**
 * Works due items of a topic inside this invocation. Spends the cost before each item; when the budget refuses, gives
 * the rest back at their old due time, in order, unleased, with nothing counted. Items are settled one by one unless
 * the topic says otherwise. When a claim, a settle or a release cannot be written the pass ends: what is settled stays
 * settled, the others keep their leases until they lapse.
 *
 * Nothing is sent: what is moved on waits for the tick.
 *
 * @param path whose items to take: `any` when the queue has refused them this once
 */
export async function drainWithin(
  invocation: Invocation,
  topic: Topic,
  budget: Budget,
  { limit, cost = topic.options.cost }: DrainOptions,
  path: Path | "any" = "any",
): Promise<DrainReport> {
  const { runtime, db } = invocation;
  const { clock } = runtime.ports;
  if (!Number.isSafeInteger(limit) || limit < 0) {
    throw new RangeError(`a limit is a whole number from 0, not ${String(limit)}`);
  }
  const report: DrainReport = { processed: 0, released: 0, lost: 0, stopped: null, error: null };
  if (budget.exhausted(clock())) return { ...report, stopped: "budget" };
  if (limit === 0) return report;
  // Charged first: what cannot carry one item after the pass itself must not claim and give back, tick after tick.
  if (!budget.trySpend(PASS_COST)) return { ...report, stopped: "budget" };
  const most = Math.min(limit, budget.affords(cost) ?? limit);
  if (most === 0) return { ...report, stopped: "budget" };

  try {
    // A pass may come late in a long tick: its leases count from when they are given.
    const now = instantOf(invocation);
    const lease = leaseOf(runtime, topic);
    const rows = await db
      .batch<Claimed>([claim(db, lease, { now, ahead: now, limit: most, path, load: true })])
      .then(([result]) => result?.results ?? []);
    if (most < limit && rows.length >= most) report.stopped = "budget";
    await work(invocation, topic, budget, cost, ordered(topic, rows), report);
  } catch (error) {
    report.stopped = "failed";
    report.error = errorText(error);
    runtime.ports.log({ event: "drain_failed", level: "error", topic: topic.name, error: report.error });
  }
  return report;
}

/** A row as a claim loads it: of the topic asked for, and leased. */
type Claimed = Omit<LoadedRow, "topic" | "lane">;

/** Oldest first; rows that have lapsed last, the least delivered of them first, so that a poison row harms no other. */
function ordered(topic: Topic, rows: readonly Claimed[]): LoadedRow[] {
  return rows
    .map((row) => ({ ...row, topic: topic.name, lane: 1 as const }))
    .sort(
      (a, b) =>
        Number(a.lapses > 0) - Number(b.lapses > 0) ||
        (a.lapses > 0 ? a.deliveries - b.deliveries : 0) ||
        a.due_at - b.due_at ||
        (a.seq < b.seq ? -1 : 1),
    );
}

async function work(
  invocation: Invocation,
  topic: Topic,
  budget: Budget,
  cost: Cost,
  rows: readonly LoadedRow[],
  report: DrainReport,
): Promise<void> {
  const { clock } = invocation.runtime.ports;
  const { deadlineMs, maxDeliveries, settleEvery } = topic.options;
  const context = contextFor(invocation, splitTopicName(topic.name).module, budget);
  const least = Math.min(LEAST_ITEM_MS, deadlineMs);
  const carries = carrier(invocation, budget, cost);
  let pending: Delivery[] = [];
  const flush = async (rest: readonly Release[] = []) => {
    const { settled, released, lost } = await settle(invocation, pending, rest, { resend: false });
    report.processed += settled;
    report.released += released;
    report.lost += lost;
    pending = [];
  };

  const giveBack = async (stopped: "lease" | "budget", rest: readonly LoadedRow[]) => {
    await flush(rest.map((row) => ({ topic, row })));
    report.stopped = stopped;
  };

  for (const [index, row] of rows.entries()) {
    const at = clock();
    const share = budget.deadline === null ? deadlineMs : Math.min(deadlineMs, budget.deadline - at);
    if (!lasts(invocation, topic, row)) return giveBack("lease", rows.slice(index));
    if (share < least || !carries() || !budget.trySpend(cost)) return giveBack("budget", rows.slice(index));
    // It may kill its worker: nothing that has run may hang on it.
    if (row.lapses > 0) await flush();
    if (row.lapses > 0 && row.deliveries >= maxDeliveries) pending.push(exhausted(topic, row));
    else {
      const begun = row.lapses > 0 ? await beginOne(invocation, topic, row) : row;
      if (begun === null) report.lost += 1;
      else if (!lasts(invocation, topic, begun)) return giveBack("lease", [begun, ...rows.slice(index + 1)]);
      else pending.push(await deliver(invocation, context, topic, begun, share));
    }
    if (pending.length >= settleEvery || row.lapses > 0) await flush();
  }
  await flush();
}

/** Whether a row's lease lasts as long as its handler may, and the settle after it. */
function lasts(invocation: Invocation, topic: Topic, row: LoadedRow): boolean {
  return row.at - instantOf(invocation) >= topic.options.deadlineMs + SETTLE_MARGIN_MS;
}

/**
 * Answers whether what is left still carries one more item, together with what the items before it used beyond their
 * cost (a handler that asks twice, the dead letter of a keyed item): an invocation's limits are the platform's too.
 */
function carrier({ meter }: Invocation, budget: Budget, cost: Cost): () => boolean {
  const unit = amountsOf(cost);
  const usedBefore = { ...meter };
  const spentBefore = budget.spent;
  return () => {
    const used = since(meter, usedBefore);
    const { spent, remaining } = budget;
    return COUNTED.every((each) => {
      const excess = Math.max(0, used[each] - (spent[each] - spentBefore[each]));
      return (remaining[each] ?? Number.POSITIVE_INFINITY) - excess >= unit[each];
    });
  };
}

/** A row that has lapsed before begins on its own, so that only its own begins count against it. Null: lost. */
async function beginOne(invocation: Invocation, topic: Topic, row: LoadedRow): Promise<LoadedRow | null> {
  const [begun] = await invocation.db.batch<LoadedRow>([
    begin(invocation.db, [[fenceOf(row), runningLeaseMs(topic)]], instantOf(invocation)),
  ]);
  return begun?.results[0] ?? null;
}
