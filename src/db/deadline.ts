/** A call that did not answer in time. It may still land: never repeat it at once. */
export class TimedOut extends Error {
  override readonly name = "TimedOut";
}

/**
 * Races `work` against `ms`. The work itself is not stopped: D1 calls and queue sends take no AbortSignal, so what
 * was asked may still happen after the answer was given up.
 */
export async function withDeadline<T>(work: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | null = null;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new TimedOut(`${what} did not answer within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
