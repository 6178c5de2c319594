import { HOUR, SECOND } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import { LEDGER_BOUND } from "../jobs/obligations.ts";
import type { Selection } from "../jobs/selection.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { parseTick, type TickRow } from "../tick/record.ts";
import { expose, type Family, type Sample } from "./exposition.ts";

/**
 * What an operator's Prometheus scrapes. All of it is read from the database when it is asked for, in a bounded number
 * of rows, so that nearly all are gauges: how things stand, or what the last hour came to. The one true counter is the
 * claims of a job, which its row keeps.
 */

/** Rows of one topic and state that are looked at: the backlog's age says more than its exact size. */
const COUNT_CAP = 1_000;
/** Slots of a job that are looked at. */
const SLOTS_READ = 50;
/** Records of ticks, firings and runs of the last hour that are looked at. */
const TICKS_READ = 120;
const HOUR_READ = 2_000;

interface Asked {
  runtime: Runtime;
  catalog: readonly Job[];
  jobs: Selection;
  now: number;
}

/** All metrics, as text. */
export async function readMetrics({ runtime, catalog, jobs, now }: Asked): Promise<string> {
  const { db } = runtime;
  const ids = JSON.stringify(catalog.map(({ id }) => id));
  const topics = JSON.stringify([...runtime.topics.keys()]);
  const [lanes, letters, jobRows, slots, held, ticks, firings, ended, open] = await db.batch([
    lanesOf(db, topics),
    lettersOf(db, topics),
    db
      .prepare(
        `SELECT j.value AS job, generation, failures, stalled, stopped_at IS NOT NULL AS stopped FROM json_each(?1) j
         LEFT JOIN jobs ON jobs.id = j.value`,
      )
      .bind(ids),
    slotsOf(db, ids),
    heldOf(db, ids),
    db
      .prepare(
        `SELECT id, at, started_at, wall_until, modules, running, ended_at, report FROM ticks
         ORDER BY id DESC LIMIT ${TICKS_READ}`,
      )
      .bind(),
    lastHour(db, "outcome", "firings", "claimed_at", now),
    lastHour(db, "status", "runs", "admitted_at", now),
    openRuns(db),
  ]);
  const rows = (result: D1Result | undefined) => (result?.results ?? []) as Row[];
  return expose([
    ...topicFamilies(rows(lanes), rows(letters), now),
    ...jobFamilies(rows(jobRows), rows(slots), rows(held), jobs),
    ...tickFamilies(rows(ticks), now),
    gauge("duework_hour_firings", `Firings of stored schedules in the last hour, by outcome. ${capped(HOUR_READ)}`, [
      ...by(rows(firings), "outcome"),
    ]),
    gauge("duework_hour_runs", `Runs admitted in the last hour, by status. ${capped(HOUR_READ)}`, [
      ...by(rows(ended), "status"),
    ]),
    gauge("duework_open_runs", `Runs that have not ended, by status. ${capped(COUNT_CAP)}`, [
      ...by(rows(open), "status"),
    ]),
  ]);
}

type Row = Record<string, string | number | null>;

const gauge = (name: string, help: string, samples: readonly Sample[]): Family => {
  return { name, type: "gauge", help, samples };
};
const capped = (most: number) => `At most ${most} are counted: that number means as many or more.`;
const number = (value: unknown) => Number(value ?? 0);

/** A sample a row, its label and count. */
const by = (rows: readonly Row[], label: string): Sample[] =>
  rows.map((row) => ({ labels: { [label]: String(row[label]) }, value: number(row.n) }));

/** Backlog by topic and lane, each looked at to its bound. */
function lanesOf(db: D1Database, topics: string): D1PreparedStatement {
  const parts = ["ready", "leased", "running"].map((state, lane) => {
    const seen = `SELECT attempts, lapses FROM items WHERE topic = j.value AND lane = ${lane} LIMIT ${COUNT_CAP}`;
    return `SELECT j.value AS topic, '${state}' AS state,
        (SELECT json_array(count(*), total(attempts > 0), total(lapses > 0)) FROM (${seen})) AS counts,
        (SELECT due_at FROM items WHERE topic = j.value AND lane = ${lane} ORDER BY at LIMIT 1) AS oldest
      FROM json_each(?1) j`;
  });
  return db.prepare(parts.join(" UNION ALL ")).bind(topics);
}

function lettersOf(db: D1Database, topics: string): D1PreparedStatement {
  return db
    .prepare(
      `SELECT j.value AS topic,
         (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE topic = j.value LIMIT ${COUNT_CAP})) AS n,
         (SELECT max(died_at) FROM dead_letters WHERE topic = j.value) AS newest
       FROM json_each(?1) j`,
    )
    .bind(topics);
}

/** The results of each job's latest slots, as a JSON list. */
function slotsOf(db: D1Database, ids: string): D1PreparedStatement {
  const latest = `SELECT result FROM slots WHERE job = j.value ORDER BY slot DESC LIMIT ${SLOTS_READ}`;
  return db
    .prepare(
      `SELECT j.value AS job, (SELECT json_group_array(coalesce(result, 'open')) FROM (${latest})) AS results
       FROM json_each(?1) j`,
    )
    .bind(ids);
}

function heldOf(db: D1Database, ids: string): D1PreparedStatement {
  const parts = ["owed", "quarantined"].map(
    (state) => `SELECT j.value AS job, '${state}' AS state,
        (SELECT count(*) FROM (
          SELECT 1 FROM obligations WHERE job = j.value AND state = '${state}' LIMIT ${LEDGER_BOUND})) AS n
      FROM json_each(?1) j`,
  );
  return db.prepare(parts.join(" UNION ALL ")).bind(ids);
}

/** Rows of the last hour by one column, the newest of them where there are more than are read. */
function lastHour(db: D1Database, column: string, table: string, at: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `SELECT ${column}, count(*) AS n FROM (
         SELECT ${column} FROM ${table} WHERE ${at} > ?1 ORDER BY ${at} DESC LIMIT ${HOUR_READ}) GROUP BY 1`,
    )
    .bind(now - HOUR);
}

function openRuns(db: D1Database): D1PreparedStatement {
  const parts = ["admitted", "running"].map(
    (status) => `SELECT '${status}' AS status, count(*) AS n FROM (
      SELECT 1 FROM runs WHERE status = '${status}' AND ended_at IS NULL LIMIT ${COUNT_CAP})`,
  );
  return db.prepare(parts.join(" UNION ALL "));
}

function topicFamilies(lanes: readonly Row[], letters: readonly Row[], now: number): Family[] {
  const counts = lanes.map((row) => {
    const [all, failing, lapsed] = JSON.parse(String(row.counts)) as number[];
    return { labels: { topic: String(row.topic), state: String(row.state) }, all, failing, lapsed };
  });
  const of = (which: "all" | "failing" | "lapsed") =>
    counts.map(({ labels, [which]: value }) => ({ labels, value: number(value) }));
  const topic = (row: Row) => ({ topic: String(row.topic) });
  const ready = lanes.filter(({ state }) => state === "ready");
  return [
    gauge("duework_topic_items", `Items by topic and state. ${capped(COUNT_CAP)}`, of("all")),
    gauge("duework_topic_failing_items", `Of those, items with failed attempts. ${capped(COUNT_CAP)}`, of("failing")),
    gauge(
      "duework_topic_lapsed_items",
      `Of those, items whose lease was lost: their worker died or was too slow. ${capped(COUNT_CAP)}`,
      of("lapsed"),
    ),
    gauge(
      "duework_topic_oldest_due_age_seconds",
      "How long the oldest ready item has been due. 0: none is due.",
      ready.map((row) => ({
        labels: topic(row),
        value: row.oldest === null ? 0 : Math.max(0, now - number(row.oldest)) / SECOND,
      })),
    ),
    gauge(
      "duework_topic_dead_letters",
      `Dead letters by topic. ${capped(COUNT_CAP)}`,
      letters.map((row) => ({ labels: topic(row), value: number(row.n) })),
    ),
    gauge(
      "duework_topic_newest_dead_letter_timestamp_seconds",
      "When the newest dead letter of a topic died, seconds since 1970.",
      letters.flatMap((row) =>
        row.newest === null ? [] : [{ labels: topic(row), value: number(row.newest) / SECOND }],
      ),
    ),
  ];
}

function jobFamilies(rows: readonly Row[], slots: readonly Row[], held: readonly Row[], jobs: Selection): Family[] {
  const of = (value: (row: Row) => unknown): Sample[] =>
    rows.map((row) => ({ labels: { job: String(row.job) }, value: number(value(row)) }));
  const enabled = new Set(jobs.active.map(({ job }) => job.id));
  return [
    gauge(
      "duework_job_enabled",
      "1: the job is on.",
      of(({ job }) => enabled.has(String(job))),
    ),
    gauge(
      "duework_job_stopped",
      "1: the job is stopped, and nothing begins until a person resumes it.",
      of(({ stopped }) => stopped),
    ),
    gauge(
      "duework_job_failed_slots_in_a_row",
      "Slots in a row that failed or ended unknown.",
      of(({ failures }) => failures),
    ),
    gauge(
      "duework_job_stalled_slots_in_a_row",
      "Degraded slots in a row without progress.",
      of(({ stalled }) => stalled),
    ),
    {
      name: "duework_job_claims_total",
      type: "counter",
      help: "Slots of the job that were claimed, ever: its generation.",
      samples: of(({ generation }) => generation),
    },
    gauge(
      "duework_job_recent_slots",
      `Results of the job's last ${SLOTS_READ} slots. open: not completed yet.`,
      slots.flatMap(({ job, results }) => resultsOf(String(job), JSON.parse(String(results)) as string[])),
    ),
    gauge(
      "duework_job_held_obligations",
      `Workspaces that the job owes or holds in quarantine. There is room for ${LEDGER_BOUND} of both together.`,
      held.map((row) => ({ labels: { job: String(row.job), state: String(row.state) }, value: number(row.n) })),
    ),
  ];
}

const RESULTS = ["succeeded", "degraded", "failed", "unknown", "open"];
const resultsOf = (job: string, results: readonly string[]): Sample[] =>
  RESULTS.map((result) => ({ labels: { job, result }, value: results.filter((one) => one === result).length }));

const SUMS = ["queries", "calls", "rowsRead", "rowsWritten", "subrequests", "slots", "firings", "failed"] as const;
const SUM_NAMES: Record<(typeof SUMS)[number], [name: string, help: string]> = {
  queries: ["duework_hour_tick_queries", "D1 statements of the last hour's ticks"],
  calls: ["duework_hour_tick_database_calls", "Calls to D1 of the last hour's ticks"],
  rowsRead: ["duework_hour_tick_rows_read", "D1 rows read by the last hour's ticks"],
  rowsWritten: ["duework_hour_tick_rows_written", "D1 rows written by the last hour's ticks"],
  subrequests: ["duework_hour_tick_subrequests", "Subrequests of the last hour's ticks"],
  slots: ["duework_hour_tick_slots", "Slots of jobs that the last hour's ticks claimed"],
  firings: ["duework_hour_tick_firings", "Firings that the last hour's ticks claimed"],
  failed: ["duework_hour_tick_failed_parts", "Parts of the last hour's ticks that ended in an error"],
};

/** The ticks' own records: what the consumers and requests used is in none of them. */
function tickFamilies(rows: readonly Row[], now: number): Family[] {
  const known = rows.flatMap((row) => parseTick(row) ?? []);
  const [last] = known;
  const recent = known.filter(({ started_at }) => started_at > now - HOUR);
  const durations = recent.flatMap(({ started_at, ended_at }) => (ended_at === null ? [] : [ended_at - started_at]));
  durations.sort((a, b) => a - b);
  const p95 = durations[Math.ceil(durations.length * 0.95) - 1];
  const one = (value: number | undefined): Sample[] => (value === undefined ? [] : [{ labels: {}, value }]);
  const sum = (of: (tick: TickRow) => number) => recent.reduce((all, tick) => all + of(tick), 0);
  const states = { closed: 0, running: 0, died: 0 };
  for (const { ended_at, wall_until } of recent) {
    states[ended_at !== null ? "closed" : wall_until > now ? "running" : "died"] += 1;
  }
  const moved = (["claimed", "sent", "drained"] as const).map((step) => {
    return { labels: { step }, value: sum(({ report }) => report[step]) };
  });
  return [
    gauge(
      "duework_tick_age_seconds",
      "Since the last tick began. Absent: there was none yet.",
      one(last === undefined ? undefined : Math.max(0, now - last.started_at) / SECOND),
    ),
    gauge(
      "duework_tick_duration_seconds",
      `How long the last closed tick took, and the 95th percentile of the last hour's.`,
      [
        ...one(durationOf(known)).map(({ value }) => ({ labels: { of: "last" }, value: value / SECOND })),
        ...one(p95).map(({ value }) => ({ labels: { of: "p95" }, value: value / SECOND })),
      ],
    ),
    gauge(
      "duework_hour_ticks",
      "Ticks of the last hour, by what became of them.",
      Object.entries(states).map(([state, value]) => ({ labels: { state }, value })),
    ),
    gauge("duework_hour_tick_items", "Items that the last hour's ticks claimed, sent or drained.", moved),
    ...SUMS.map((key) => {
      const [name, help] = SUM_NAMES[key];
      return gauge(name, `${help}, as their records say.`, one(sum(({ report }) => report[key])));
    }),
  ];
}

function durationOf(known: readonly TickRow[]): number | undefined {
  const closed = known.find(({ ended_at }) => ended_at !== null);
  return closed?.ended_at == null ? undefined : closed.ended_at - closed.started_at;
}
