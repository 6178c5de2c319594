/**
 * What an item really uses, as it was measured: the figures of `docs/envelope.md` that cost money, each held to that
 * page by a test, and the page to D1's own counts by another. Whoever computes a cost reads them here.
 */

/** Of one item. */
export interface Measured {
  readonly rowsWritten: number;
  readonly rowsRead: number;
}

/** From an item's enqueue to its last row gone, in full batches; the names are the page's. */
export const PATHS = {
  "enqueued now, by the queue": { rowsWritten: 3, rowsRead: 14.02 },
  "enqueued now, by the queue, ten a message": { rowsWritten: 2.1, rowsRead: 11.32 },
  "due later, by the queue": { rowsWritten: 4, rowsRead: 19.05 },
  "due later, by the queue, ten a message": { rowsWritten: 3.1, rowsRead: 16.35 },
  "by the drain, settled one by one": { rowsWritten: 3, rowsRead: 14.04 },
} as const satisfies Record<string, Measured>;

/** What a step adds to a path. */
export const ADDED = {
  "+ a unique key, over its life": { rowsWritten: 2, rowsRead: 12 },
  "+ a run that fails or moves on within two minutes": { rowsWritten: 2, rowsRead: 10.02 },
} as const satisfies Record<string, Measured>;

/** Of one tick with nothing due: its record is opened and closed, and one that is a week old is deleted. */
export const IDLE_TICK: Measured = { rowsWritten: 3, rowsRead: 20 };
/** Ticks of a month of 30 days. */
export const TICKS_A_MONTH = 30 * 24 * 60;

/** What the measurement of "ten a message" had in a message. */
const TEN = 10;

/**
 * What an item uses with so many to a message. Each message costs the same, however many share it: the two measurements
 * say how much of a path is the message's and how much the item's.
 * @param itemsPerMessage from 1
 */
export function shared(alone: Measured, ofTen: Measured, itemsPerMessage: number): Measured {
  const at = (one: number, ten: number) => {
    const message = (one - ten) / (1 - 1 / TEN);
    return one - message + message / itemsPerMessage;
  };
  return {
    rowsWritten: at(alone.rowsWritten, ofTen.rowsWritten),
    rowsRead: at(alone.rowsRead, ofTen.rowsRead),
  };
}
