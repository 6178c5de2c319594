const MINUTE_MS = 60_000;

/**
 * Calls `fire` at each minute boundary, as the platform's cron does: a call that takes long does not hold up the next.
 * Answers how to end it.
 */
export function eachMinute(fire: (minute: number) => Promise<void>, failed: (error: unknown) => void): () => void {
  let timer: NodeJS.Timeout;
  const wait = (after: number) => {
    const minute = (Math.floor(after / MINUTE_MS) + 1) * MINUTE_MS;
    timer = setTimeout(() => {
      // A timer may come a moment early; the minute has not begun then.
      if (Date.now() < minute) return wait(after);
      fire(minute).catch(failed);
      wait(minute);
    }, minute - Date.now());
  };
  wait(Date.now());
  return () => clearTimeout(timer);
}
