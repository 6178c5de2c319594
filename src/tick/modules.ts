import type { Budget } from "../core/budget.ts";
import { rotate, type Split, warningFor } from "../core/split.ts";
import { errorText } from "../core/text.ts";
import { since } from "../db/meter.ts";
import { drainWithin } from "../outbox/drain.ts";
import type { Module } from "../outbox/module.ts";
import { contextFor, type Invocation } from "../outbox/runtime.ts";
import type { Path, Topic } from "../outbox/topic.ts";
import { type ModuleReport, markRunning } from "./record.ts";

/** Items of one pass of a drain; a tick makes as many passes as the share carries. */
const DRAIN_LIMIT = 500;

/** What a module has to do in this tick besides its own `scheduled`. */
export interface Drain {
  topic: Topic;
  /** `any` when the queue refused the topic this once. */
  path: Path | "any";
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
  order: readonly Module[],
  drains: readonly Drain[],
): Promise<ModuleReport[]> {
  const { db, meter, runtime } = invocation;
  const { clock } = runtime.ports;
  const names = order.map(({ name }) => name);
  const reports: ModuleReport[] = [];
  for (const [index, module] of order.entries()) {
    const own = drains.filter(({ topic }) => topic.name.startsWith(`${module.name}.`));
    const before = { ...meter };
    if (module.scheduled !== null || own.length > 0)
      await mark(invocation, markRunning(db, tickId, names, module.name));
    split.charge(since(meter, before));

    const startedAt = clock();
    const used = { ...meter };
    const { budget, share, bornEmpty } = split.next(startedAt);
    const worked = await runModule(invocation, module, budget, own);
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
  return reports;
}

async function runModule(invocation: Invocation, module: Module, budget: Budget, drains: readonly Drain[]) {
  const { ports } = invocation.runtime;
  let drained = 0;
  let error: string | null = null;
  try {
    await module.scheduled?.(contextFor(invocation, module.name, budget) as never);
  } catch (thrown) {
    error = errorText(thrown);
    ports.log({ event: "module_failed", level: "error", module: module.name, error });
  }
  for (const { topic, path } of drains) {
    for (;;) {
      const report = await drainWithin(invocation, topic, budget, { limit: DRAIN_LIMIT }, path);
      drained += report.processed;
      if (report.error !== null) error = report.error;
      if (report.stopped !== null || report.processed + report.lost < DRAIN_LIMIT) break;
    }
  }
  return { drained, error };
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
