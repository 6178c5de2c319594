import * as v from "valibot";
import { CHANNEL, scheduleGrantsSchema } from "../commands/actor.ts";
import { TEXT_MAX_BYTES } from "../commands/chat.ts";
import { nextFire } from "../core/calendar.ts";
import { type Cron, parseCron } from "../core/cron.ts";
import { type Refusal, refuse } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { isoInstant } from "../core/time.ts";
import { parseZone } from "../core/zone.ts";

/** Every statement that writes `schedules`, and how a row is read: what a person may add is what may fire. */

/** Stored schedules of a deployment at most: one statement claims all that are due, and a page shows them. */
export const SCHEDULES_MAX = 100;

/** A row as the table has it, with what is known of its channel. */
export interface ScheduleRow {
  id: string;
  name: string;
  cron: string;
  time_zone: string;
  text: string;
  channel: string;
  thread: "new" | "standing";
  standing_thread: string | null;
  grants: string;
  enabled: 0 | 1;
  created_at: number;
  created_by: string;
  anchored_at: number;
  last_slot: number | null;
  claim: string | null;
  /** When its channel was last found to be gone; null = it is there, or was never asked for. */
  channel_gone_at: number | null;
}

/** When a schedule fires, once its expression and zone have been read. */
export interface When {
  cron: Cron;
  zone: string;
}

const wellFormed = v.check<string, string>(
  (text) => text.isWellFormed() && !text.includes("\0"),
  "a text has no NUL and no half of a surrogate pair",
);
const text = v.pipe(
  v.string(),
  wellFormed,
  v.check((value) => value.trim() !== "", "a text says something"),
  v.check(
    (value) => new TextEncoder().encode(value).length <= TEXT_MAX_BYTES,
    (issue) =>
      `a text is at most ${TEXT_MAX_BYTES} bytes, and this one has ${new TextEncoder().encode(issue.input).length}`,
  ),
);

/** What `schedule add` takes. The expression and the zone are read by {@link readWhen}, for a better message. */
export const addSchema = v.strictObject({
  name: v.pipe(v.string(), v.regex(NAME, "a name is 1 to 63 of a-z, 0-9 and -, and begins with neither -")),
  cron: v.pipe(v.string(), wellFormed),
  timeZone: v.optional(v.pipe(v.string(), wellFormed), "UTC"),
  text,
  channel: v.optional(
    v.pipe(v.string(), v.regex(CHANNEL, "a channel is inbox:<name>, slack:<name> or webhook:<name>")),
    "inbox:schedules",
  ),
  thread: v.optional(v.picklist(["new", "standing"]), "new"),
  grants: v.optional(scheduleGrantsSchema, {}),
});

/** Reads an expression and a zone: what is malformed, unknown or never fires is refused with its field. */
export function readWhen(
  cron: string,
  timeZone: string,
  now: number,
): ({ ok: true } & When) | Refusal<"bad_arguments"> {
  const zone = parseZone(timeZone);
  if (!zone.ok) return refuse("bad_arguments", "timeZone", zone.message);
  const parsed = parseCron(cron);
  if (!parsed.ok) {
    const at = parsed.field === "expression" ? "" : ` (${parsed.field}, "${parsed.token}" at ${parsed.position})`;
    return refuse("bad_arguments", "cron", `${parsed.message}${at}`);
  }
  // A wildcard hour may lie in the gap on every one of its days, which only the calendar knows.
  if (nextFire(parsed.cron, now, zone.zone) === null) return refuse("bad_arguments", "cron", "It never fires.");
  return { ok: true, cron: parsed.cron, zone: zone.zone };
}

/** ms since 1970, no later than a Date holds. */
const instant = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(8_640_000_000_000_000));
const instantsSchema = v.object({ created_at: instant, anchored_at: instant, last_slot: v.nullable(instant) });

const storedSchema = v.object({
  name: v.pipe(v.string(), v.regex(NAME, "it is none")),
  text,
  channel: v.pipe(v.string(), v.regex(CHANNEL)),
  grants: v.pipe(v.string(), v.parseJson(), scheduleGrantsSchema),
});

/** A row that has been read. `when` null: it never is due. `problem` null: it can be dispatched. */
export interface ReadRow {
  row: ScheduleRow;
  when: When | null;
  grants: v.InferOutput<typeof scheduleGrantsSchema> | null;
  problem: string | null;
}

/** Reads a stored row, which may have been written by hand or by an older version. Never throws. */
export function readRow(row: ScheduleRow, now: number): ReadRow {
  const when = readWhen(row.cron, row.time_zone, now);
  const instants = v.safeParse(instantsSchema, row);
  const stored = v.safeParse(storedSchema, row);
  const [issue] = [...(instants.issues ?? []), ...(stored.issues ?? [])];
  const wrong = issue === undefined ? null : `${v.getDotPath(issue) ?? "row"}: ${issue.message}`;
  return {
    row,
    // What is no instant is in no calendar.
    when: when.ok && instants.success ? when : null,
    grants: stored.success ? stored.output.grants : null,
    problem: when.ok ? wrong : `${when.field}: ${when.message}`,
  };
}

/** An instant of a row as every surface shows it; null = it is none. */
export function instantText(at: number): string | null {
  return v.is(instant, at) ? isoInstant(at) : null;
}

const SELECT = `SELECT s.*, CASE WHEN c.gone_at IS NOT NULL THEN c.checked_at END AS channel_gone_at
  FROM schedules s LEFT JOIN channel_states c ON c.channel = s.channel`;

/** All rows by name; there are few. */
export function readSchedules(db: D1Database): D1PreparedStatement {
  return db.prepare(`${SELECT} ORDER BY s.name`);
}

/** The rows that may be due: those that are enabled. */
export function readEnabled(db: D1Database): D1PreparedStatement {
  return db.prepare(`${SELECT} WHERE s.enabled = 1`);
}

/** One row by its name. */
export function findSchedule(db: D1Database, name: string): D1PreparedStatement {
  return db.prepare(`${SELECT} WHERE s.name = ?1`).bind(name);
}

export type NewSchedule = Omit<ScheduleRow, "enabled" | "anchored_at" | "last_slot" | "claim" | "channel_gone_at">;

/** Adds a row, unless its name is taken or there are as many as there may be. Answers its id when it was added. */
export function insertSchedule(db: D1Database, row: NewSchedule): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, standing_thread, grants, enabled,
         created_at, created_by, anchored_at)
       SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, ?10, ?11, ?10
       WHERE (SELECT count(*) FROM schedules) < ${SCHEDULES_MAX}
       ON CONFLICT (name) DO NOTHING RETURNING id`,
    )
    .bind(
      row.id,
      row.name,
      row.cron,
      row.time_zone,
      row.text,
      row.channel,
      row.thread,
      row.standing_thread,
      row.grants,
      row.created_at,
      row.created_by,
    );
}

/** Removes a row. Its firings and threads stay. */
export function deleteSchedule(db: D1Database, name: string): D1PreparedStatement {
  return db.prepare("DELETE FROM schedules WHERE name = ?1 RETURNING id").bind(name);
}

/** Turns a row on, counting from now on, so that it does not fire at once for the time it was off; or off. */
export function setEnabled(db: D1Database, name: string, enabled: boolean, now: number): D1PreparedStatement {
  return enabled
    ? db.prepare("UPDATE schedules SET enabled = 1, anchored_at = ?2 WHERE name = ?1 AND enabled = 0").bind(name, now)
    : db.prepare("UPDATE schedules SET enabled = 0 WHERE name = ?1 AND enabled = 1").bind(name);
}

/** A due minute that is to be claimed, and what the row was when that was found. */
export interface Claim {
  schedule: string;
  /** Its firing's id, which no other claim has. */
  firing: string;
  slot: number;
  lastSlot: number | null;
  anchoredAt: number;
}

/**
 * Claims due minutes, each by comparing its row with what was read: of all that see the same row one wins, and the
 * others write nothing. @param byHand a row that is off is fired by hand only
 */
export function claimSlots(db: D1Database, claims: readonly Claim[], byHand: boolean): D1PreparedStatement {
  return db
    .prepare(
      `UPDATE schedules SET last_slot = j.value->>'slot', claim = j.value->>'firing' FROM json_each(?1) j
       WHERE schedules.id = j.value->>'schedule' AND last_slot IS j.value->>'lastSlot'
         AND anchored_at = j.value->>'anchoredAt' AND (enabled = 1 OR ?2)
         AND (last_slot IS NULL OR last_slot < j.value->>'slot')
       RETURNING id`,
    )
    .bind(JSON.stringify(claims), byHand ? 1 : 0);
}
