import type { Dispatcher } from "../commands/dispatcher.ts";
import { type NewMessage, openThreads, say } from "../commands/threads.ts";
import { errorText } from "../core/text.ts";
import { DAY, isoInstant } from "../core/time.ts";
import { LEDGER_BOUND } from "../jobs/obligations.ts";
import type { Invocation } from "../outbox/runtime.ts";

/** What needs a person, told once per occurrence in the channel that `ALERTS_CHANNEL` names. */

/** Part of a ledger's room from which it is told. */
const FILLING = 0.8;
/** How far back a tick looks for what may have happened since the last one, ms. */
const LOOK_BACK_MS = DAY;
/** Alerts that one tick tells at most; the others are told by the next. */
const ALERTS_A_TICK = 20;
/** Of a failure's text, an alert shows this much, UTF-16 units. */
const DETAIL_CHARS = 200;

/** One occurrence of something that needs a person. */
export interface Need {
  /** Names the occurrence: told once under this. */
  key: string;
  kind: "job_stopped" | "quarantine" | "ledger_filling" | "not_started" | "run_lost" | "dead_letters" | "tick_died";
  subject: string;
  /** ms */
  since: number;
  detail: string;
}

/**
 * What needs a person now and was not told yet: two statements, since D1 takes five SELECTs in one, that read a few rows
 * of each kind by its index, whatever else there is.
 */
export function readNeeds(db: D1Database, topics: readonly string[], now: number): D1PreparedStatement[] {
  const held = Math.floor(LEDGER_BOUND * FILLING);
  const untold = (selects: readonly string[]) =>
    `SELECT * FROM (${selects.join(" UNION ALL ")})
     WHERE NOT EXISTS (SELECT 1 FROM messages WHERE id = 'alert-' || key) ORDER BY since LIMIT ${ALERTS_A_TICK}`;
  const ofJobs = [
    `SELECT 'job-' || id || '-' || stopped_at AS key, 'job_stopped' AS kind, id AS subject, stopped_at AS since,
       stop_reason AS detail FROM jobs WHERE stopped_at IS NOT NULL`,
    `SELECT 'quarantine-' || q.job || '-' || q.quarantined_at, 'quarantine', q.job, q.quarantined_at,
       coalesce(q.error, '') FROM jobs j JOIN obligations q ON q.job = j.id AND q.workspace = (
         SELECT workspace FROM obligations WHERE job = j.id AND state = 'quarantined' ORDER BY since, workspace LIMIT 1)`,
    `SELECT 'ledger-' || j.id || '-' || (?1 / ${DAY}), 'ledger_filling', j.id, ?1,
       'holds ${held} of ${LEDGER_BOUND} or more'
     FROM jobs j WHERE EXISTS (SELECT 1 FROM obligations WHERE job = j.id LIMIT 1 OFFSET ${held - 1})`,
  ];
  const ofOthers = [
    `SELECT 'firing-' || id || '-' || refires AS key, 'not_started' AS kind, name AS subject, claimed_at AS since, detail
     FROM firings WHERE outcome = 'claimed' AND claimed_at > ?2`,
    `SELECT 'run-' || id, 'run_lost', command, ended_at, coalesce(error, '') FROM runs
     WHERE status = 'lost' AND ended_at > ?2`,
    `SELECT 'dead-' || d.topic || '-' || (d.died_at / ${DAY}), 'dead_letters', d.topic, d.died_at,
       d.reason || ': ' || d.error FROM json_each(?1) t JOIN dead_letters d ON d.id = (
         SELECT id FROM dead_letters WHERE topic = t.value ORDER BY died_at DESC, id DESC LIMIT 1) WHERE d.died_at > ?2`,
    `SELECT 'tick-' || id, 'tick_died', coalesce(running, 'its opening'), started_at, '' FROM (
       SELECT * FROM ticks ORDER BY id DESC LIMIT 10) WHERE buried = 1`,
  ];
  return [
    db.prepare(untold(ofJobs)).bind(now),
    db.prepare(untold(ofOthers)).bind(JSON.stringify(topics), now - LOOK_BACK_MS),
  ];
}

const WORDS: Record<Need["kind"], (need: Need) => string> = {
  job_stopped: ({ subject, detail }) => `The job ${subject} is stopped: ${detail}. Resume it once that is mended.`,
  quarantine: ({ subject, detail }) =>
    `The job ${subject} holds work in quarantine: ${detail}. Only a person settles it.`,
  ledger_filling: ({ subject, detail }) => `The ledger of ${subject} ${detail}: fresh work will stop.`,
  not_started: ({ subject }) =>
    `The schedule ${subject} was claimed and not started. Fire it: schedule fire ${subject}`,
  run_lost: ({ subject, detail }) => `A run of ${subject} was lost: ${detail}. What it did is not known.`,
  dead_letters: ({ subject, detail }) => `The topic ${subject} has dead letters, the latest because of ${detail}`,
  tick_died: ({ subject }) => `A tick died in ${subject}.`,
};

/** Tells what needs a person and was not told. Answers 1 when that failed: the next tick tells it. */
export async function tellNeeds(invocation: Invocation, dispatcher: Dispatcher | null): Promise<number> {
  const channel = dispatcher?.alertsTo ?? null;
  if (dispatcher === null || channel === null) return 0;
  const { db, now, runtime } = invocation;
  try {
    const found = await db.batch<Need>(readNeeds(db, [...runtime.topics.keys()], now));
    const results = found.flatMap(({ results }) => results);
    if (results.length === 0) return 0;
    const thread = `thread-alerts-${channel}`;
    const messages = results.map(
      (need): NewMessage => ({
        id: `alert-${need.key}`,
        thread,
        at: now,
        author: "duework",
        kind: "text",
        text: `${isoInstant(need.since)} ${WORDS[need.kind]({ ...need, detail: need.detail.slice(0, DETAIL_CHARS) })}`,
        data: { code: need.kind },
      }),
    );
    await dispatcher.channels.commit(
      invocation,
      [openThreads(db, [{ id: thread, channel, title: "Alerts", openedBy: "duework" }], now), ...say(db, messages)],
      messages.map(({ id }) => ({ channel, message: id })),
    );
    return 0;
  } catch (error) {
    runtime.ports.log({ event: "alert_failed", level: "error", error: errorText(error) });
    return 1;
  }
}
