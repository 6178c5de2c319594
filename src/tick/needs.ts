import { DAY, MINUTE } from "../core/time.ts";
import { LEDGER_BOUND } from "../jobs/obligations.ts";
import { readEnabled, readRow, type ScheduleRow } from "../schedules/rows.ts";

/** What needs a person: one list for every surface. Each kind reads a few rows by its index, whatever else there is. */

/** Part of a ledger's room from which it is said that it fills. */
const FILLING = 0.8;
/** A lost run, or a firing that was followed by others, needs a person for this long, ms. */
const RECENT_MS = DAY;
/** Without a tick for this long the runtime is degraded, ms: three minutes of a cron that fires each minute. */
export const DEGRADED_MS = 3 * MINUTE;
/** The latest ticks that are looked through for one that died: an hour. */
const TICKS_LOOKED = 60;
/** Occurrences of one kind that are read at most, the newest first. */
const KIND_MOST = 100;
/** Dead letters of a topic, and workspaces in a job's quarantine, that the list counts at most. */
const COUNT_MOST = 1_000;
/** Of a stored text, a need shows this much, characters. */
const TEXT_CHARS = 200;

/** In the order in which a person asks: does it run at all, what is held, what did not happen. */
export const NEED_KINDS = [
  "tick_late",
  "tick_died",
  "job_stopped",
  "quarantine",
  "ledger_filling",
  "schedule_invalid",
  "schedule_refused",
  "not_started",
  "run_lost",
  "dead_letters",
] as const;
export type NeedKind = (typeof NEED_KINDS)[number];

/** One occurrence of something that needs a person. */
export interface Occurrence {
  /** Names the occurrence. */
  key: string;
  kind: NeedKind;
  /** The job, schedule, command or topic that it is about; of a tick that died, the module it was in. */
  subject: string;
  /** Of the firing, the run or the tick; of others empty. */
  id: string;
  /** ms; null = that is not known */
  since: number | null;
  detail: string;
  /** How many there are, up to one more than was to be counted. */
  n: number;
}

/** Something that needs a person, with all its occurrences. */
export interface Need extends Omit<Occurrence, "key" | "n"> {
  /** One sentence without its full stop. */
  what: string;
  count: { value: number; capped: boolean };
}

export interface Looked {
  /** Jobs that are looked at besides those that were ever claimed. */
  jobs: readonly string[];
  topics: readonly string[];
  /** The stored schedules that are enabled. */
  schedules: readonly ScheduleRow[];
  /** ms */
  now: number;
  /** How many rows of a kind that is many by nature are counted; 0 = none is. */
  most: number;
  /** A condition in SQL on an occurrence as `one`; the others are left out. */
  where: string;
}

/** The occurrences, as three statements: D1 takes five SELECTs in one. */
export function findOccurrences(
  db: D1Database,
  { jobs, topics, schedules, now, most, where }: Looked,
): D1PreparedStatement[] {
  const union = (selects: readonly string[]) =>
    selects
      .map((one) => `SELECT * FROM (SELECT * FROM (${one}) one WHERE ${where} ORDER BY since DESC LIMIT ${KIND_MOST})`)
      .join(" UNION ALL ");
  const held = Math.floor(LEDGER_BOUND * FILLING);
  const cut = (text: string) => `substr(${text}, 1, ${TEXT_CHARS})`;
  const counted = (rows: string) => `(SELECT count(*) FROM (SELECT 1 FROM ${rows} LIMIT ?4))`;
  const known = "(SELECT id FROM jobs UNION SELECT value FROM json_each(?3))";
  const firing = `'firing-' || f.id || '-' || f.refires AS key, 'not_started' AS kind, f.name AS subject, f.id AS id,
    f.claimed_at AS since, ${cut("f.detail")} AS detail, 1 AS n`;
  const standing = [
    `SELECT 'job-' || id || '-' || stopped_at AS key, 'job_stopped' AS kind, id AS subject, '' AS id,
       stopped_at AS since, ${cut("stop_reason")} || ' (by ' || ${cut("stopped_by")} || ')' AS detail, 1 AS n
     FROM jobs WHERE stopped_at IS NOT NULL`,
    `SELECT 'quarantine-' || q.job || '-' || q.quarantined_at AS key, 'quarantine' AS kind, q.job AS subject, '' AS id,
       q.quarantined_at AS since, ${cut("coalesce(q.error, '')")} AS detail,
       ${counted("obligations WHERE job = j.id AND state = 'quarantined'")} AS n
     FROM ${known} j CROSS JOIN obligations q ON q.job = j.id AND q.workspace = (
       SELECT workspace FROM obligations WHERE job = j.id AND state = 'quarantined' ORDER BY since, workspace LIMIT 1)`,
    `SELECT 'ledger-' || j.id || '-' || (?1 / ${DAY}) AS key, 'ledger_filling' AS kind, j.id AS subject, '' AS id,
       NULL AS since, 'it holds ${held} of ${LEDGER_BOUND} or more' AS detail, 1 AS n
     FROM ${known} j WHERE EXISTS (SELECT 1 FROM obligations WHERE job = j.id LIMIT 1 OFFSET ${held - 1})`,
    `SELECT 'late-' || id AS key, 'tick_late' AS kind, '' AS subject, '' AS id, started_at AS since, '' AS detail, 1 AS n
     FROM (SELECT * FROM ticks ORDER BY id DESC LIMIT 1) WHERE started_at < ?1 - ${DEGRADED_MS}`,
    // An older one needs a person while it is its schedule's latest.
    `SELECT ${firing} FROM schedules s CROSS JOIN firings f ON f.id = s.claim
     WHERE f.outcome = 'claimed' AND f.claimed_at <= ?2`,
  ];
  const recent = [
    `SELECT ${firing} FROM firings f WHERE f.outcome = 'claimed' AND f.claimed_at > ?2`,
    `SELECT 'run-' || id AS key, 'run_lost' AS kind, ${cut("command")} AS subject, id, ended_at AS since,
       ${cut("coalesce(error, '')")} AS detail, 1 AS n
     FROM runs WHERE status = 'lost' AND ended_at > ?2`,
    `SELECT 'dead-' || d.topic || '-' || (d.died_at / ${DAY}) AS key, 'dead_letters' AS kind, d.topic AS subject,
       '' AS id, d.died_at AS since, ${cut("d.reason")} || ': ' || ${cut("d.error")} AS detail,
       ${counted("dead_letters WHERE topic = t.value")} AS n
     FROM json_each(?3) t CROSS JOIN dead_letters d ON d.id = (
       SELECT id FROM dead_letters WHERE topic = t.value ORDER BY died_at DESC, id DESC LIMIT 1)`,
    `SELECT 'tick-' || id AS key, 'tick_died' AS kind, ${cut("coalesce(running, 'its opening')")} AS subject,
       CAST(id AS TEXT) AS id, started_at AS since, '' AS detail, 1 AS n
     FROM (SELECT * FROM ticks ORDER BY id DESC LIMIT ${TICKS_LOOKED}) WHERE ended_at IS NULL AND wall_until <= ?1`,
    `SELECT 'invalid-' || (value->>0) AS key, 'schedule_invalid' AS kind, value->>1 AS subject, '' AS id, NULL AS since,
       value->>2 AS detail, 1 AS n
     FROM json_each(?5)`,
  ];
  // A busy thread is free again by itself; what else refuses a schedule refuses it each time. One alert a reason.
  const refused = [
    `SELECT 'refused-' || s.id || '-' || f.outcome AS key, 'schedule_refused' AS kind, s.name AS subject, f.id AS id,
       f.claimed_at AS since, substr(f.outcome, 9) || ': ' || ${cut("f.detail")} AS detail, 1 AS n
     FROM schedules s CROSS JOIN firings f ON f.id = s.claim
     WHERE s.enabled = 1 AND f.outcome GLOB 'refused:*' AND f.outcome <> 'refused:thread_busy'`,
  ];
  const from = now - RECENT_MS;
  const limit = most === 0 ? 0 : most + 1;
  return [
    db.prepare(union(standing)).bind(now, from, JSON.stringify(jobs), limit),
    db.prepare(union(recent)).bind(now, from, JSON.stringify(topics), limit, JSON.stringify(invalidOf(schedules, now))),
    db.prepare(union(refused)),
  ];
}

/** The rows that fire no more, as they stand: what names the row since it was last enabled, its name, why. */
function invalidOf(schedules: readonly ScheduleRow[], now: number): [key: string, name: string, problem: string][] {
  return schedules.flatMap((row) => {
    const { problem } = readRow(row, now);
    const cut = (text: unknown) => String(text).slice(0, TEXT_CHARS);
    return problem === null ? [] : [[`${cut(row.id)}-${cut(row.anchored_at)}`, String(row.name), cut(problem)]];
  });
}

/** What needs a person now, the gravest kind first. */
export async function readNeeds(
  db: D1Database,
  { jobs, topics, now }: Pick<Looked, "jobs" | "topics" | "now">,
): Promise<Need[]> {
  const { results: schedules } = await readEnabled(db).all<ScheduleRow>();
  const found = await db.batch<Occurrence>(
    findOccurrences(db, { jobs, topics, schedules, now, most: COUNT_MOST, where: "TRUE" }),
  );
  return gathered(
    found.flatMap(({ results }) => results),
    now,
  );
}

/** Occurrences of one kind about one subject are one need: the newest speaks for all. */
function gathered(all: readonly Occurrence[], now: number): Need[] {
  const groups = Map.groupBy(all, ({ kind, subject }) => `${kind} ${subject}`);
  const needs = [...groups.values()].flatMap((group): Need[] => {
    const [newest] = group.toSorted((a, b) => (b.since ?? 0) - (a.since ?? 0));
    if (newest === undefined) return [];
    const { kind, subject, id, since, detail } = newest;
    const sum = group.reduce((total, { n }) => total + n, 0);
    const most = COUNTED.has(kind) ? COUNT_MOST : KIND_MOST - 1;
    const count = { value: Math.min(sum, most), capped: sum > most };
    return [{ kind, subject, id, since, detail, count, what: sentence({ ...newest, n: sum }, now, count) }];
  });
  const rank = ({ kind }: Need) => NEED_KINDS.indexOf(kind);
  return needs.sort((a, b) => rank(a) - rank(b) || (b.since ?? now) - (a.since ?? now));
}

const COUNTED: ReadonlySet<NeedKind> = new Set(["quarantine", "dead_letters"]);

/** One sentence about a need, without its full stop. @param count null = it was not counted */
export function sentence(
  { kind, subject, since, n }: Pick<Occurrence, "kind" | "subject" | "since" | "n">,
  now: number,
  count: Need["count"] | null,
): string {
  const many = count === null ? null : `${count.value.toLocaleString("en")}${count.capped ? "+" : ""}`;
  switch (kind) {
    case "tick_late":
      return `No tick for ${Math.floor((now - (since ?? now)) / MINUTE).toLocaleString("en")} min`;
    case "tick_died":
      return n === 1 ? `A tick died in ${subject}` : `${many} ticks died in ${subject}`;
    case "job_stopped":
      return `The job ${subject} is stopped`;
    case "quarantine":
      return `${many ?? "Workspaces"} in quarantine of ${subject}`;
    case "ledger_filling":
      return `The ledger of ${subject} is filling`;
    case "schedule_invalid":
      return `The schedule ${subject} is invalid`;
    case "schedule_refused":
      return `The schedule ${subject} was refused`;
    case "not_started":
      return `${subject} was claimed and not started${n === 1 ? "" : `, ${many} times`}`;
    case "run_lost":
      return n === 1 ? `A run of ${subject} was lost` : `${many} runs of ${subject} were lost`;
    case "dead_letters":
      return count?.value === 1 ? `1 dead letter of ${subject}` : `${many ?? "New"} dead letters of ${subject}`;
  }
}

/** What a person does about a kind, or what follows from it. */
export const mendingOf = (kind: NeedKind): string => mending[kind];

const mending: Readonly<Record<NeedKind, string>> = {
  tick_late: "Nothing that waits for one moves: is the cron trigger there?",
  tick_died: "The next ticks go on behind it.",
  job_stopped: "Resume it once that is mended.",
  quarantine: "Nothing asks about them again until a person settles them.",
  ledger_filling: "Without room no batch begins.",
  schedule_invalid: "It fires no more: remove it, and add it anew.",
  schedule_refused: "It will be again, until its text, its grants or its author is another.",
  not_started: "Nothing retries it by itself: fire it, once, by hand.",
  run_lost: "Its instance is gone, and nobody knows what it did.",
  dead_letters: "Nothing tries them again until somebody replays them.",
};
