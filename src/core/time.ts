/** Lengths of time in ms. A day is 24 hours: civil days, which may be longer or shorter, are `calendar.ts`'s business. */
export const SECOND = 1_000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

/** ISO 8601 in UTC, always with milliseconds. `ms` counts from 1970; outside ±8.64e15 or NaN it throws a RangeError. */
export function isoInstant(ms: number): string {
  return new Date(ms).toISOString();
}

/** The first whole UTC minute strictly after `ms`: on the minute itself, the one that follows. */
export function nextMinute(ms: number): number {
  return (Math.floor(ms / MINUTE) + 1) * MINUTE;
}

/** The later of two instants: a tick's `now` is the later of when it was scheduled and what the clock says. */
export function laterOf(a: number, b: number): number {
  return Math.max(a, b);
}
