import type { Dispatcher } from "../commands/dispatcher.ts";
import { type NewMessage, openThreads, say } from "../commands/threads.ts";
import { errorText } from "../core/text.ts";
import { isoInstant } from "../core/time.ts";
import type { Invocation } from "../outbox/runtime.ts";
import type { ScheduleRow } from "../schedules/rows.ts";
import { findOccurrences, mendingOf, type Occurrence, sentence } from "./needs.ts";

/** What needs a person, told once per occurrence in the channel that `ALERTS_CHANNEL` names. */

/** Alerts that one tick tells at most; the others are told by the next. */
const ALERTS_A_TICK = 20;
/** An occurrence is told under the id of its message: what has one was told. */
const UNTOLD = "NOT EXISTS (SELECT 1 FROM messages WHERE id = 'alert-' || one.key)";

/** What needs a person now and was not told yet. */
export function findUntold(
  db: D1Database,
  topics: readonly string[],
  schedules: readonly ScheduleRow[],
  now: number,
): D1PreparedStatement[] {
  return findOccurrences(db, { jobs: [], topics, schedules, now, most: 0, where: UNTOLD });
}

/**
 * Tells what needs a person and was not told. Answers 1 when that failed: the next tick tells it.
 * @param schedules the stored schedules that are enabled
 */
export async function tellNeeds(
  invocation: Invocation,
  dispatcher: Dispatcher | null,
  schedules: readonly ScheduleRow[],
): Promise<number> {
  const channel = dispatcher?.alertsTo ?? null;
  if (dispatcher === null || channel === null) return 0;
  const { db, now, runtime } = invocation;
  try {
    const found = await db.batch<Occurrence>(findUntold(db, [...runtime.topics.keys()], schedules, now));
    const untold = found
      .flatMap(({ results }) => results)
      .sort((a, b) => (a.since ?? now) - (b.since ?? now))
      .slice(0, ALERTS_A_TICK);
    if (untold.length === 0) return 0;
    const thread = `thread-alerts-${channel}`;
    const messages = untold.map(
      (one): NewMessage => ({
        id: `alert-${one.key}`,
        thread,
        at: now,
        author: "duework",
        kind: "text",
        text: alertOf(one, now),
        data: { code: one.kind },
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

function alertOf(one: Occurrence, now: number): string {
  const what = sentence(one, now, null);
  return `${isoInstant(one.since ?? now)} ${what}${one.detail === "" ? "" : `: ${one.detail.replace(/\.$/, "")}`}. ${mendingOf(one.kind)}`;
}
