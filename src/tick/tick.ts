import type { Amounts, Limits } from "../core/budget.ts";
import { createSplit, nextStart } from "../core/split.ts";
import { errorText } from "../core/text.ts";
import { MINUTE, SECOND } from "../core/time.ts";
import { since } from "../db/meter.ts";
import { beginInvocation, type Invocation, type Runtime } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import type { Topic } from "../outbox/topic.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { type OpenRun, readOpenRuns } from "../commands/runs.ts";
import { type ClaimedSlot, claimDueSlots } from "../jobs/hand-over.ts";
import { type JobsAtWork, NO_JOBS } from "../jobs/selection.ts";
import { type JobRow, readJobs } from "../jobs/slots.ts";
import { workSlot } from "../jobs/work.ts";
import { readEnabled, type ScheduleRow } from "../schedules/rows.ts";
import { type DueTopic, dueTopics, readDue } from "./due.ts";
import { tellNeeds } from "./alerts.ts";
import { fireSchedules } from "./firings.ts";
import { type Drain, orderOf, runModules, turnsOf } from "./modules.ts";
import {
  buryDead,
  byTopic,
  close,
  forgetOld,
  notReached,
  open,
  parseTick,
  readLatest,
  type TickReport,
  type TickRow,
  type TopicReport,
  topicReport,
  usage,
} from "./record.ts";
import { sendDue } from "./sends.ts";
import { forgetHeldKeys } from "../outbox/items.ts";

/** Statements the tick keeps for closing its record, out of the modules' pool. */
const CLOSING_QUERIES = 1;
/**
 * The most statements and sends the runtime itself makes in a tick, out of the same limits, besides a statement for each
 * module that says which one runs: see `docs/envelope.md`.
 */
export const RUNTIME_RESERVE = { queries: 35, subrequests: 22 } as const;
/**
 * Wall time that an open record may outlive its limit before the tick counts as dead, ms: for a last call to D1. At the
 * default limits the very next tick tells of a dead one.
 */
const WALL_MARGIN_MS = 15 * SECOND;
/** Statements of a slot that is worked in the tick: its begin and its completion. */
const SLOT_QUERIES = 3;
/** The platform's own wall for a cron invocation, ms: what an unbounded tick is held to in its record. */
const PLATFORM_WALL_MS = 15 * MINUTE;
/** Held keys a tick frees at most. */
const FORGET_KEYS_A_TICK = 100;

/**
 * One minute: opens the record, claims and sends what is due by the queue, runs the modules within their shares with
 * the drains among them, closes the record. Each part is isolated: what fails is recorded and the next part runs.
 *
 * @param scheduledTime ms; the tick's `now` is the later of it and the clock
 * @throws what D1 throws when the record cannot be opened: a tick that cannot read does nothing, the next makes good
 */
export async function tick(
  runtime: Runtime,
  scheduledTime: number,
  limits: Limits,
  jobs: JobsAtWork = NO_JOBS,
  dispatcher: Dispatcher | null = null,
): Promise<TickReport> {
  const startedAt = runtime.ports.clock();
  const now = Math.max(scheduledTime, startedAt);
  const invocation = beginInvocation(runtime, now);
  const opened = await openTick(invocation, startedAt, limits, jobs, dispatcher);
  const order = orderOf(runtime.modules, opened.start);

  const slots = await claimDueSlots(invocation, jobs.queue, jobs.active, opened.jobs);
  const firings = await fireSchedules(invocation, dispatcher, opened);
  const chain = createSeqs(runtime.ports.bytes)(now);
  const sends = await sendDue(invocation, opened.due, chain);

  const drains = drainsOf(runtime, opened.due, sends.refused);
  const turns = turnsOf(order, drains);
  const split = createSplit(limits, turns, startedAt);
  const until = split.next(runtime.ports.clock()).budget.deadline;
  const { queries, subrequests } = invocation.meter;
  split.charge({ queries: queries + turns.filter(({ marked }) => marked).length + CLOSING_QUERIES, subrequests });
  const { share } = split.next(runtime.ports.clock());
  split.charge(await workRefused(invocation, slots.refused, until, share));
  const { modules, topics } = await runModules(invocation, opened.id, split, turns);
  const untold = await tellNeeds(invocation, dispatcher, opened.schedules);

  const report: TickReport = {
    slots: slots.claimed,
    firings: firings.claimed,
    claimed: sends.claimed,
    sent: sends.sent,
    drained: modules.reduce((sum, { drained }) => sum + drained, 0),
    failed:
      slots.failed + firings.failed + sends.failed + untold + modules.filter(({ error }) => error !== null).length,
    refused: sends.refused.map(({ name }) => name),
    modules,
    topics: byTopic([...sends.topics, ...opened.pumped, ...topics]),
    nextStart: nextStart(
      order.map(({ name }) => name),
      modules.map(({ module: name, bornEmpty }) => ({ name, bornEmpty })),
    ),
    ...usage(invocation.meter),
  };
  await closeTick(invocation, opened.id, report);
  return report;
}

/**
 * Slots of `module` jobs that the queue refused: the first is worked here, the others while one module's share has room.
 * Each until the deadline of that share. What is left is charged by the next claim. Answers what all of it used.
 */
async function workRefused(
  invocation: Invocation,
  refused: readonly ClaimedSlot[],
  until: number | null,
  share: Limits,
): Promise<Amounts> {
  const { meter, runtime } = invocation;
  const before = { ...meter };
  const room = () => {
    const { queries, subrequests } = since(meter, before);
    if (until !== null && runtime.ports.clock() >= until) return false;
    if (share.subrequests !== null && subrequests > share.subrequests) return false;
    return share.queries === null || queries + SLOT_QUERIES <= share.queries;
  };
  for (const [nth, { active, slot }] of refused.entries()) {
    if (nth > 0 && !room()) break;
    await workSlot(invocation, active, slot, until).catch((error) => {
      runtime.ports.log({ event: "slot_failed", level: "error", job: slot.job, error: errorText(error) });
    });
  }
  return since(meter, before);
}

interface Opened {
  id: number;
  /** The module to start with. */
  start: string | null;
  due: DueTopic[];
  /** What the pump chains claimed that ended since the last tick. */
  pumped: TopicReport[];
  /** The rows of the jobs that are on. */
  jobs: JobRow[];
  /** The stored schedules that are enabled, and the runs that need the tick. */
  schedules: ScheduleRow[];
  runs: OpenRun[];
}

async function openTick(
  invocation: Invocation,
  startedAt: number,
  limits: Limits,
  jobs: JobsAtWork,
  dispatcher: Dispatcher | null,
): Promise<Opened> {
  const { db, now, runtime } = invocation;
  const wallUntil = startedAt + (limits.wallMs ?? PLATFORM_WALL_MS) + WALL_MARGIN_MS;
  const modules = runtime.modules.map(({ name }) => name);
  const ids = jobs.active.map(({ job }) => job.id);
  // What is old goes here and not at the end: ticks that die, one after the other, must not keep it.
  const [dead, latest, opened, due, , , ...others] = await db.batch([
    buryDead(db, startedAt),
    readLatest(db),
    open(db, { now, startedAt, wallUntil, modules }),
    readDue(db, runtime),
    forgetOld(db, now),
    forgetHeldKeys(db, now, FORGET_KEYS_A_TICK),
    ...(dispatcher === null ? [] : [readEnabled(db), readOpenRuns(db, now)]),
    ...(ids.length > 0 ? [readJobs(db, ids)] : []),
  ]);
  const [schedules, runs] = dispatcher === null ? [] : others;
  const stored = ids.length > 0 ? others.at(-1) : undefined;
  for (const row of dead?.results ?? []) tellDead(invocation, parseTick(row));
  const [row] = (opened as D1Result<{ id: number }>).results;
  if (row === undefined) throw new Error("the tick's record was not written");
  const last = parseTick(latest?.results[0]);
  const topics = dueTopics(runtime, due?.results ?? [], now);
  return {
    id: row.id,
    start: startOf(last),
    due: topics,
    pumped: pumpedSince(topics, last?.at ?? 0, now),
    jobs: (stored?.results ?? []) as unknown as JobRow[],
    schedules: (schedules?.results ?? []) as unknown as ScheduleRow[],
    runs: (runs?.results ?? []) as unknown as OpenRun[],
  };
}

/** Each chain is told of once: by the first tick after its end. */
function pumpedSince(topics: readonly DueTopic[], last: number, now: number): TopicReport[] {
  return topics.flatMap(({ topic, chain }) => {
    if (chain === null || chain.claimed === 0 || chain.until < last || chain.until >= now) return [];
    return [topicReport(topic.name, { pumped: chain.claimed })];
  });
}

function tellDead({ runtime }: Invocation, row: TickRow | null): void {
  if (row === null) return;
  runtime.ports.log({
    event: "tick_died",
    level: "error",
    tick: row.id,
    at: row.at,
    in: row.running,
    notReached: notReached(row),
  });
}

/** Where this tick starts: behind the module that the last tick died in, or at the first that it offered nothing. */
function startOf(latest: TickRow | null): string | null {
  if (latest === null) return null;
  if (latest.ended_at !== null) return latest.report.nextStart;
  if (latest.running === null) return null;
  return nextStart(latest.modules, [], latest.running);
}

/** Topics on the drain, and those that the queue has just refused. */
function drainsOf(runtime: Runtime, due: readonly DueTopic[], refused: readonly Topic[]): Drain[] {
  return due
    .filter(({ paused, oldest }) => !paused && oldest !== null)
    .flatMap(({ topic, path }): Drain[] => {
      // Off-platform there is nothing but the drain, whatever is stored.
      if (refused.includes(topic) || runtime.queue(topic) === null) return [{ topic, path: "any" }];
      return path === "drain" ? [{ topic, path }] : [];
    });
}

async function closeTick({ db, runtime, meter }: Invocation, id: number, report: TickReport): Promise<void> {
  try {
    const counted = {
      ...report,
      queries: report.queries + CLOSING_QUERIES,
      calls: report.calls + 1,
      // The record itself.
      rowsWritten: report.rowsWritten + 1,
    };
    await db.batch([close(db, id, runtime.ports.clock(), counted)]);
    Object.assign(report, usage(meter));
  } catch (error) {
    runtime.ports.log({ event: "record_failed", level: "error", error: errorText(error) });
  }
}
