/**
 * What an invocation really used. Both forms of a D1 use are counted, since both are limited: `calls` are round trips,
 * `queries` are statements (the platform limits statements: 50 an invocation on the Free plan, 1,000 on Paid).
 */
export interface Meter {
  /** D1 round trips. */
  calls: number;
  /** D1 statements. */
  queries: number;
  rowsRead: number;
  rowsWritten: number;
  /** Outbound fetches and queue sends. */
  subrequests: number;
}

export function createMeter(): Meter {
  return { calls: 0, queries: 0, rowsRead: 0, rowsWritten: 0, subrequests: 0 };
}

/** What was used since `before` was copied from the same meter. */
export function since(meter: Meter, before: Meter): Meter {
  return {
    calls: meter.calls - before.calls,
    queries: meter.queries - before.queries,
    rowsRead: meter.rowsRead - before.rowsRead,
    rowsWritten: meter.rowsWritten - before.rowsWritten,
    subrequests: meter.subrequests - before.subrequests,
  };
}
