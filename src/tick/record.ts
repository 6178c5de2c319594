import * as v from "valibot";
import { DAY } from "../core/time.ts";
import type { Meter } from "../db/meter.ts";

/** Every statement that writes `ticks`: one row a tick, opened before any work and closed after it. */

/** How long a tick's record is kept, ms, and how many old ones a tick deletes at most. */
export const KEEP_TICKS_MS = 7 * DAY;
const FORGET_A_TICK = 20;
/** How many of the latest records a tick looks at for one that was left open. */
const LOOK_BACK = 10;

const amounts = v.object({ subrequests: v.number(), queries: v.number() });
const bounded = v.object({
  subrequests: v.nullable(v.number()),
  queries: v.nullable(v.number()),
  wallMs: v.nullable(v.number()),
});

const moduleReportSchema = v.object({
  module: v.string(),
  /** What it was offered; null = unbounded. */
  share: bounded,
  /** What it spent by asking. */
  charged: amounts,
  /** What it really used. */
  measured: amounts,
  ms: v.number(),
  bornEmpty: v.boolean(),
  drained: v.number(),
  warning: v.nullable(
    v.object({ reason: v.string(), amount: v.number(), unit: v.string(), behind: v.array(v.string()) }),
  ),
  error: v.nullable(v.string()),
});

const topicReportSchema = v.object({
  topic: v.string(),
  /** Rows that this tick claimed for the queue, and those whose message the queue took. */
  claimed: v.optional(v.number(), 0),
  sent: v.optional(v.number(), 0),
  messages: v.optional(v.number(), 0),
  /** Rows that the topic's last pump chain claimed, told by the first tick after its end. */
  pumped: v.optional(v.number(), 0),
  drained: v.optional(v.number(), 0),
  /** What the claim, the sends and the drain of this topic really used, its handlers' part of a drain included. */
  queries: v.optional(v.number(), 0),
  rowsRead: v.optional(v.number(), 0),
  rowsWritten: v.optional(v.number(), 0),
  subrequests: v.optional(v.number(), 0),
});

const reportSchema = v.object({
  /** Job slots that were claimed. */
  slots: v.optional(v.number(), 0),
  /** Due minutes of stored schedules that were claimed. */
  firings: v.optional(v.number(), 0),
  claimed: v.optional(v.number(), 0),
  sent: v.optional(v.number(), 0),
  drained: v.optional(v.number(), 0),
  /** Parts of the tick (claims, sends, modules, drains) that ended in an error. */
  failed: v.optional(v.number(), 0),
  calls: v.optional(v.number(), 0),
  queries: v.optional(v.number(), 0),
  rowsRead: v.optional(v.number(), 0),
  rowsWritten: v.optional(v.number(), 0),
  subrequests: v.optional(v.number(), 0),
  modules: v.optional(v.array(moduleReportSchema), []),
  /** The topics that had something to do, a bounded number a tick. What a topic costs is read from here. */
  topics: v.optional(v.array(topicReportSchema), []),
  /** Topics whose send was refused, and which were drained this once. */
  refused: v.optional(v.array(v.string()), []),
  /** Where the next tick starts; null = at the first module. */
  nextStart: v.optional(v.nullable(v.string()), null),
});

export type ModuleReport = v.InferOutput<typeof moduleReportSchema>;
export type TopicReport = v.InferOutput<typeof topicReportSchema>;
export type TickReport = v.InferOutput<typeof reportSchema>;

const rowSchema = v.object({
  id: v.number(),
  at: v.number(),
  started_at: v.number(),
  wall_until: v.number(),
  modules: v.pipe(v.string(), v.parseJson(), v.array(v.string())),
  running: v.nullable(v.string()),
  ended_at: v.nullable(v.number()),
  report: v.pipe(v.string(), v.parseJson(), reportSchema),
});

export type TickRow = v.InferOutput<typeof rowSchema>;

/** Reads a tick's row; null when it is none of ours (written by hand, or by another version). */
export function parseTick(row: unknown): TickRow | null {
  const parsed = v.safeParse(rowSchema, row);
  return parsed.success ? parsed.output : null;
}

/** The modules of a tick that died which it had not reached. */
export function notReached({ modules, running }: Pick<TickRow, "modules" | "running">): string[] {
  return running === null ? modules : modules.slice(modules.indexOf(running) + 1);
}

const COLUMNS = "id, at, started_at, wall_until, modules, running, ended_at, report";

/** The latest tick before this one, whatever became of it. */
export function readLatest(db: D1Database): D1PreparedStatement {
  return db.prepare(`SELECT ${COLUMNS} FROM ticks ORDER BY id DESC LIMIT 1`);
}

/** Marks the ticks that were left open longer than their wall, and answers them: each is told of once. */
export function buryDead(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE ticks SET buried = 1
       WHERE id IN (SELECT id FROM ticks ORDER BY id DESC LIMIT ${LOOK_BACK})
         AND ended_at IS NULL AND buried = 0 AND wall_until <= ?1
       RETURNING ${COLUMNS}`,
    )
    .bind(now);
}

/** Opens a record. Answers its id. */
export function open(
  db: D1Database,
  {
    now,
    startedAt,
    wallUntil,
    modules,
  }: { now: number; startedAt: number; wallUntil: number; modules: readonly string[] },
): D1PreparedStatement {
  return db
    .prepare("INSERT INTO ticks (at, started_at, wall_until, modules) VALUES (?1, ?2, ?3, ?4) RETURNING id")
    .bind(now, startedAt, wallUntil, JSON.stringify(modules));
}

/** Says which module runs now, in which order. Should the tick die, this is what is known. */
export function markRunning(db: D1Database, id: number, order: readonly string[], module: string): D1PreparedStatement {
  return db
    .prepare("UPDATE ticks SET running = ?2, modules = ?3 WHERE id = ?1 AND ended_at IS NULL")
    .bind(id, module, JSON.stringify(order));
}

/** Closes a record. */
export function close(db: D1Database, id: number, endedAt: number, report: TickReport): D1PreparedStatement {
  return db
    .prepare("UPDATE ticks SET ended_at = ?2, running = NULL, report = ?3 WHERE id = ?1")
    .bind(id, endedAt, JSON.stringify(report));
}

/** Deletes old records, a bounded number a tick. */
export function forgetOld(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM ticks WHERE id IN (SELECT id FROM ticks ORDER BY id LIMIT ${FORGET_A_TICK}) AND started_at < ?1`,
    )
    .bind(now - KEEP_TICKS_MS);
}

/** A topic's report with nothing in it yet. */
export function topicReport(topic: string, of: Partial<TopicReport> = {}): TopicReport {
  const nothing = { claimed: 0, sent: 0, messages: 0, pumped: 0, drained: 0 };
  return { topic, ...nothing, queries: 0, rowsRead: 0, rowsWritten: 0, subrequests: 0, ...of };
}

/** One report a topic: what several parts of a tick say of the same topic is added up. */
export function byTopic(reports: readonly TopicReport[]): TopicReport[] {
  const sums = new Map<string, TopicReport>();
  for (const { topic, ...figures } of reports) {
    const sum = sums.get(topic) ?? topicReport(topic);
    for (const [name, figure] of Object.entries(figures)) sum[name as keyof typeof figures] += figure;
    sums.set(topic, sum);
  }
  return [...sums.values()];
}

/** The meter's figures as the report holds them. */
export function usage({ calls, queries, rowsRead, rowsWritten, subrequests }: Meter) {
  return { calls, queries, rowsRead, rowsWritten, subrequests };
}

/** A page of records, newest first, older than `before`. */
export function listTicks(db: D1Database, before: number | null, limit: number): D1PreparedStatement {
  return db
    .prepare(`SELECT ${COLUMNS} FROM ticks WHERE id < ?1 ORDER BY id DESC LIMIT ?2`)
    .bind(before ?? Number.MAX_SAFE_INTEGER, limit);
}
