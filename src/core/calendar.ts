import type { Cron } from "./cron.ts";
import { DAY, MINUTE } from "./time.ts";
import { type Offsets, offsetsAround } from "./zone.ts";

/*
 * When a cron fires in a zone, by walking civil days (days since 1970-01-01 on the zone's calendar). Instants are ms
 * since 1970. `zone` is one that `parseZone` gave: another throws a RangeError. Rules of local time:
 * - Spring gap: a fixed time that does not exist fires at the first instant after the gap, once however many do.
 * - Autumn repeat: a fixed time fires in the first pass only.
 * - `cron.realTime`: what the clock on the wall shows decides. It fires in both passes, and in a gap not at all.
 * These are Vixie cron's rules, crontab(5) and cron(8), given an exact instant. A day that a zone skipped
 * altogether (Apia, 30 December 2011) is no gap: it was never a day, and nothing fires for it.
 */

/**
 * A 29 February that must also be a certain weekday comes once in 40 years at the worst, over a century that is no leap
 * year; all else is sooner. So what does not fire within this many days does not fire.
 */
const HORIZON = 41 * 366;

/** Where `Date` ends, less what a walk may step over. */
const LAST_DAY = 100_000_000 - HORIZON - 3;

/**
 * The first fire strictly after `after`; on a due minute itself, the one that follows. Null when there is none: the
 * fixed dates that no year has are refused by `parseCron` already, but a wildcard hour or minute can lie in the gap on
 * every one of its days. Null too when `after` is not a `Date`'s instant. Bounded: 41 years of days, at most two offset
 * readings on each that matches, and the 18 of a bisection where the zone changes.
 */
export function nextFire(cron: Cron, after: number, zone = "UTC"): number | null {
  const today = dayOf(after, zone, Math.min);
  if (today === null) return null;
  for (let day = nextDay(cron, today, today + HORIZON); day !== null; day = nextDay(cron, day + 1, today + HORIZON)) {
    const offsets = offsetsAround(zone, day);
    const found = firstOn(cron, day, offsets, after);
    if (found === null) continue;
    // Where midnight comes twice, the next day's first minutes come before this day's last.
    const early = repeats(offsets) && matches(cron, day + 1) ? firstOn(cron, day + 1, offsets, after) : null;
    return early === null ? found : Math.min(found, early);
  }
  return null;
}

/**
 * The latest fire strictly before `before`: the inverse of {@link nextFire}, so that the next of the previous of a fire
 * is that fire. Null when there is none. Bounded likewise.
 */
export function previousFire(cron: Cron, before: number, zone = "UTC"): number | null {
  return previousSince(cron, before, zone, -Infinity);
}

/** How many passed-over fires {@link latestDue} counts: a week of every minute. */
export const MISSED_MAX = 10_000;

/** One slot for all that was due in a while. */
export interface Due {
  /** The latest fire. */
  readonly slot: number;
  /** How many earlier ones were passed over for it, at most 10,000. */
  readonly missed: number;
  /** True when there were more than `missed` says. */
  readonly missedCapped: boolean;
}

/**
 * The latest fire in (`after`, `until`], which stands for all of them, and how many it stands for. Null when none fell
 * in that time. Work is bounded by the count's cap, not by the length of the time.
 */
export function latestDue(cron: Cron, after: number, until: number, zone = "UTC"): Due | null {
  // Nothing fires between two whole ms.
  const slot = previousSince(cron, Math.floor(until) + 1, zone, after);
  if (slot === null) return null;
  let missed = 0;
  let cursor: number | null = slot;
  while (missed <= MISSED_MAX) {
    cursor = previousSince(cron, cursor, zone, after);
    if (cursor === null) return { slot, missed, missedCapped: false };
    missed += 1;
    // The rest of an ordinary day needs no stepping.
    const near = offsetsAround(zone, Math.floor(cursor / DAY));
    const day: number = Math.floor((cursor + (cursor < near.change ? near.before : near.after)) / DAY);
    const { before: offset, change } = offsetsAround(zone, day);
    if (change !== Infinity) continue;
    const start = day * DAY - offset;
    missed += countBetween(cron, Math.max(0, minuteAbove(after, start)), minuteBelow(cursor, start));
    if (start <= after) return capped(slot, missed);
    cursor = start;
  }
  return capped(slot, missed);
}

function capped(slot: number, missed: number): Due {
  return { slot, missed: Math.min(missed, MISSED_MAX), missedCapped: missed > MISSED_MAX };
}

/** The latest fire in (`floor`, `before`). */
function previousSince(cron: Cron, before: number, zone: string, floor: number): number | null {
  const today = dayOf(before, zone, Math.max);
  if (today === null) return null;
  // A day's fires, moved or not, lie within two days of its number in UTC.
  const last = Math.max(today - HORIZON, Math.floor(floor / DAY) - 2);
  for (let day = previousDay(cron, today, last); day !== null; day = previousDay(cron, day - 1, last)) {
    const offsets = offsetsAround(zone, day);
    const found = lastOn(cron, day, offsets, before);
    if (found === null) continue;
    const late = repeats(offsets) && matches(cron, day - 1) ? lastOn(cron, day - 1, offsets, before) : null;
    const latest = late === null ? found : Math.max(found, late);
    return latest > floor ? latest : null;
  }
  return null;
}

function repeats(offsets: Offsets): boolean {
  return offsets.after < offsets.before;
}

/** The civil day at `at`; near a change, by the lesser or the greater offset. Null when a walk could leave `Date`. */
function dayOf(at: number, zone: string, pick: (a: number, b: number) => number): number | null {
  const day = Math.floor(at / DAY);
  if (!(Math.abs(day) <= LAST_DAY)) return null;
  const { before, after } = offsetsAround(zone, day);
  return Math.floor((at + pick(before, after)) / DAY);
}

/** Minutes of a civil day that one offset, or one instant, gives. Empty when `low` is above `high`. */
interface Stretch {
  readonly low: number;
  readonly high: number;
  /** The instant of the day's minute 0 by this offset, reached or not. */
  readonly start: number;
  /** Set on a gap: the one instant at which all its minutes fire. */
  readonly at?: number;
}

const LAST_MINUTE = DAY / MINUTE - 1;

/** A day's minutes in the order of their instants, by the rules at the head of this file. */
function stretchesOf(cron: Cron, day: number, { before, after, change }: Offsets): readonly Stretch[] {
  const start = day * DAY - before;
  if (change === Infinity) return [{ low: 0, high: LAST_MINUTE, start }];
  const restart = day * DAY - after;
  const unchanged = { low: 0, high: Math.min(LAST_MINUTE, minuteBelow(change, start)), start };
  // The first minute that neither clock shows before the change: what is below was fired already, or is the gap.
  const fresh = Math.max(0, minuteAbove(change - 1, start));
  const changed = { low: Math.max(0, minuteAbove(change - 1, restart)), high: LAST_MINUTE, start: restart };
  if (cron.realTime) return [unchanged, changed];
  if (after < before) return [unchanged, { ...changed, low: Math.max(changed.low, fresh) }];
  const gap = { low: fresh, high: Math.min(LAST_MINUTE, minuteBelow(change, restart)), start, at: change };
  const skipped = gap.low === 0 && gap.high === LAST_MINUTE;
  return skipped ? [] : [unchanged, gap, changed];
}

/** The day's first fire after `after`. */
function firstOn(cron: Cron, day: number, offsets: Offsets, after: number): number | null {
  for (const { low, high, start, at } of stretchesOf(cron, day, offsets)) {
    if (at !== undefined) {
      if (at > after && countBetween(cron, low, high) > 0) return at;
      continue;
    }
    const minute = minuteFrom(cron, Math.max(low, minuteAbove(after, start)));
    if (minute !== null && minute <= high) return start + minute * MINUTE;
  }
  return null;
}

/** The day's last fire before `before`. */
function lastOn(cron: Cron, day: number, offsets: Offsets, before: number): number | null {
  for (const { low, high, start, at } of stretchesOf(cron, day, offsets).toReversed()) {
    if (at !== undefined) {
      if (at < before && countBetween(cron, low, high) > 0) return at;
      continue;
    }
    const minute = minuteTo(cron, Math.min(high, minuteBelow(before, start)));
    if (minute !== null && minute >= low) return start + minute * MINUTE;
  }
  return null;
}

/** The first minute, counted from `start`, whose instant is after `at`. */
function minuteAbove(at: number, start: number): number {
  return Math.floor((at - start) / MINUTE) + 1;
}

/** The last minute, counted from `start`, whose instant is before `at`. */
function minuteBelow(at: number, start: number): number {
  return Math.ceil((at - start) / MINUTE) - 1;
}

/** The cron's first minute of the day at or after `minute`. */
function minuteFrom(cron: Cron, minute: number): number | null {
  const [hour, rest] = [Math.floor(minute / 60), minute % 60];
  if (cron.hours.includes(hour)) {
    const found = cron.minutes.find((each) => each >= rest);
    if (found !== undefined) return hour * 60 + found;
  }
  const later = cron.hours.find((each) => each > hour);
  return later === undefined ? null : later * 60 + cron.minutes[0]!;
}

/** The cron's last minute of the day at or before `minute`. */
function minuteTo(cron: Cron, minute: number): number | null {
  const [hour, rest] = [Math.floor(minute / 60), minute % 60];
  if (cron.hours.includes(hour)) {
    const found = cron.minutes.findLast((each) => each <= rest);
    if (found !== undefined) return hour * 60 + found;
  }
  const earlier = cron.hours.findLast((each) => each < hour);
  return earlier === undefined ? null : earlier * 60 + cron.minutes.at(-1)!;
}

/** How many of the cron's minutes of the day lie in [`low`, `high`]. */
function countBetween(cron: Cron, low: number, high: number): number {
  return low > high ? 0 : countTo(cron, high) - countTo(cron, low - 1);
}

function countTo(cron: Cron, minute: number): number {
  const [hour, rest] = [Math.floor(minute / 60), minute - Math.floor(minute / 60) * 60];
  const whole = cron.hours.filter((each) => each < hour).length * cron.minutes.length;
  return whole + (cron.hours.includes(hour) ? cron.minutes.filter((each) => each <= rest).length : 0);
}

function nextDay(cron: Cron, from: number, last: number): number | null {
  for (let day = from; day <= last; ) {
    if (matches(cron, day)) return day;
    const date = new Date(day * DAY);
    // A month that is not asked for is stepped over whole.
    day = cron.months.includes(date.getUTCMonth() + 1) ? day + 1 : date.setUTCMonth(date.getUTCMonth() + 1, 1) / DAY;
  }
  return null;
}

function previousDay(cron: Cron, from: number, last: number): number | null {
  for (let day = from; day >= last; ) {
    if (matches(cron, day)) return day;
    const date = new Date(day * DAY);
    day = cron.months.includes(date.getUTCMonth() + 1) ? day - 1 : date.setUTCDate(0) / DAY;
  }
  return null;
}

function matches(cron: Cron, day: number): boolean {
  const date = new Date(day * DAY);
  if (!cron.months.includes(date.getUTCMonth() + 1)) return false;
  const month = cron.daysOfMonth.includes(date.getUTCDate());
  const week = cron.daysOfWeek.includes(date.getUTCDay());
  return cron.eitherDay ? month || week : month && week;
}
