/**
 * The first instant of an account's grid (`from`, and every `everyMs` after it) that is strictly after `now`. Periods
 * that were missed are passed over, and a poll that was late or failed does not shift those that follow. Pure; in ms.
 */
export function nextOnGrid(from: number, everyMs: number, now: number): number {
  if (now < from) return from;
  return from + (Math.floor((now - from) / everyMs) + 1) * everyMs;
}
