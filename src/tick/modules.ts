import { type Amounts, amountsOf, type Budget, createBudget, less } from "../core/budget.ts";
import { splitTopicName } from "../core/names.ts";
import { type Floor, rotate, type Sharer, type Split, warningFor } from "../core/split.ts";
import { errorText } from "../core/text.ts";
import { since } from "../db/meter.ts";
import { drainWithin, PASS_COST } from "../outbox/drain.ts";
import type { Module } from "../outbox/module.ts";
import { contextFor, type Invocation } from "../outbox/runtime.ts";
import type { Path, Topic } from "../outbox/topic.ts";
import { type ModuleReport, markRunning, type TopicReport, topicReport } from "./record.ts";

/** Items of one pass of a drain; a tick makes as many passes as the share carries. */
const DRAIN_LIMIT = 500;

/** What a module has to do in this tick besides its own `scheduled`. */
export interface Drain {
  topic: Topic;
  /** `any` when the queue refused the topic this once. */
  path: Path | "any";
}

/** A module's turn, as the split shares it out and the tick runs it. */
export interface Turn extends Sharer {
  readonly module: Module;
  readonly drains: readonly Drain[];
  /** What a pass over one item of the oldest drain costs: `scheduled` leaves that much of the share. */
  readonly oneItem: Readonly<Amounts>;
  /** The record says when it begins: a statement of its own. A module without anything to do needs none. */
  readonly marked: boolean;
}

const NOTHING: Amounts = { subrequests: 0, queries: 0 };
/** What a `scheduled` without a floor is left beside a drain: something to ask for. */
const LEAST_SCHEDULED: Floor = { subrequests: 1, queries: 1 };

/**
 * The turns of a tick. A module with a drain is worth starting with one item of it and its own floor, not below: its
 * drain would be refused, tick after tick, while its share counts as offered.
 */
export function turnsOf(order: readonly Module[], drains: readonly Drain[]): Turn[] {
  return order.map((module) => {
    const own = drains.filter(({ topic }) => splitTopicName(topic.name).module === module.name);
    const [oldest] = own;
    const turn = { name: module.name, module, drains: own, marked: module.scheduled !== null || own.length > 0 };
    if (oldest === undefined) return { ...turn, floor: module.floor, oneItem: NOTHING };
    const { subrequests, queries } = amountsOf(oldest.topic.options.cost);
    const oneItem = { subrequests, queries: queries + PASS_COST.queries };
    const floor = module.floor ?? (module.scheduled === null ? {} : LEAST_SCHEDULED);
    return { ...turn, floor: plus(floor, oneItem), oneItem };
  });
}

function plus(floor: Floor, more: Readonly<Amounts>): Floor {
  return {
    ...floor,
    subrequests: (floor.subrequests ?? 0) + more.subrequests,
    queries: (floor.queries ?? 0) + more.queries,
  };
}

/**
 * Runs the modules one after another, each within its share: its own `scheduled`, then its topics that go by the
 * drain. A throw is recorded and spoils nobody's tick; nothing is ever cancelled; a module that was offered nothing is
 * still called. What a module leaves unspent rolls forward to those behind it, and what it used without asking is taken
 * from them, and said.
 */
export async function runModules(
  invocation: Invocation,
  tickId: number,
  split: Split,
  turns: readonly Turn[],
): Promise<{ modules: ModuleReport[]; topics: TopicReport[] }> {
  const { db, meter, runtime } = invocation;
  const { clock } = runtime.ports;
  const names = turns.map(({ name }) => name);
  const reports: ModuleReport[] = [];
  const topics: TopicReport[] = [];
  for (const [index, turn] of turns.entries()) {
    const { module } = turn;
    if (turn.marked) await mark(invocation, markRunning(db, tickId, names, module.name));
    const startedAt = clock();
    const used = { ...meter };
    const { budget, share, bornEmpty } = split.next(startedAt);
    const { drains, ...worked } = await runModule(invocation, turn, budget);
    topics.push(...drains);
    const measured = since(meter, used);
    split.settle(budget, measured);

    const endedAt = clock();
    const charged = { ...budget.spent };
    const report = {
      share,
      charged,
      measured: { subrequests: measured.subrequests, queries: measured.queries },
      bornEmpty,
    };
    const warning = warningFor({ ...report, startedAt, endedAt, deadline: budget.deadline });
    const behind = names.slice(index + 1);
    reports.push({
      module: module.name,
      ...report,
      ms: endedAt - startedAt,
      ...worked,
      warning: warning && { ...warning, behind },
    });
    if (warning !== null) {
      runtime.ports.log({ event: "budget_warning", level: "warn", module: module.name, ...warning, behind });
    }
  }
  return { modules: reports, topics };
}

async function runModule(invocation: Invocation, { module, drains, oneItem }: Turn, budget: Budget) {
  const { meter, runtime } = invocation;
  const { ports } = runtime;
  const { deadline, remaining } = budget;
  const own = createBudget({
    deadline,
    subrequests: less(remaining.subrequests, oneItem.subrequests),
    queries: less(remaining.queries, oneItem.queries),
  });
  const reports: TopicReport[] = [];
  let drained = 0;
  let error: string | null = null;
  try {
    await module.scheduled?.(contextFor(invocation, module.name, own) as never);
  } catch (thrown) {
    error = errorText(thrown);
    ports.log({ event: "module_failed", level: "error", module: module.name, error });
  }
  budget.trySpend(own.spent);
  for (const { topic, path } of drains) {
    const before = { ...meter };
    let ofTopic = 0;
    for (;;) {
      const report = await drainWithin(invocation, topic, budget, { limit: DRAIN_LIMIT }, path);
      ofTopic += report.processed;
      if (report.error !== null) error = report.error;
      if (report.stopped !== null || report.processed + report.lost < DRAIN_LIMIT) break;
    }
    const { calls: _, ...used } = since(meter, before);
    reports.push(topicReport(topic.name, { drained: ofTopic, ...used }));
    drained += ofTopic;
  }
  return { drained, error, drains: reports };
}

/** A mark that cannot be written is no reason not to run the module: the record then knows less. */
async function mark({ runtime }: Invocation, statement: D1PreparedStatement): Promise<void> {
  try {
    await statement.run();
  } catch (error) {
    runtime.ports.log({ event: "record_failed", level: "warn", error: errorText(error) });
  }
}

/** The modules in this tick's order. */
export function orderOf(modules: readonly Module[], start: string | null): Module[] {
  const byName = new Map(modules.map((module) => [module.name, module]));
  return rotate([...byName.keys()], start).flatMap((name) => byName.get(name) ?? []);
}
