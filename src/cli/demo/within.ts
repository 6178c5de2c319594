import { setTimeout as sleep } from "node:timers/promises";

/** For one slot or run, until it has ended, and its instance too, ms. */
const WAIT_MS = 90_000;
/** Between two looks, ms. */
const LOOK_MS = 100;

/**
 * Looks until there is something to see.
 * @throws Error with `late`, when there is nothing in time
 */
export async function within<T>(
  late: string,
  signal: AbortSignal,
  look: () => Promise<{ value: T } | null>,
): Promise<T> {
  for (const until = Date.now() + WAIT_MS; Date.now() < until; await sleep(LOOK_MS)) {
    signal.throwIfAborted();
    const found = await look();
    if (found !== null) return found.value;
  }
  throw new Error(`${late} within ${WAIT_MS / 1_000} s`);
}
