import { SECOND } from "../../../src/core/time.ts";

/** What is counted over all shards. */
export interface Tally {
  born: number;
  settled: number;
  /** Items that ran and were not settled: they run again. */
  repeated: number;
  failures: number;
  /** Items by how late they were settled, whole seconds. */
  late: Map<number, number>;
  lastSettled: number;
  oldestMs: number;
  /** Rows that waited in the table when the last fell due. */
  waitingAtLast: number | null;
  rowsWritten: number;
  ticks: number;
  ticksFailed: number;
  steps: number;
  /** Why chains ended. */
  ended: Map<string, number>;
}

export function createTally(): Tally {
  return {
    born: 0,
    settled: 0,
    repeated: 0,
    failures: 0,
    late: new Map(),
    lastSettled: 0,
    oldestMs: 0,
    waitingAtLast: null,
    rowsWritten: 0,
    ticks: 0,
    ticksFailed: 0,
    steps: 0,
    ended: new Map(),
  };
}

/** Items that were due at `due` are settled now. */
export function settled(tally: Tally, due: number, count: number, now: number): void {
  if (count === 0) return;
  const late = Math.max(0, now - due);
  const second = Math.floor(late / SECOND);
  tally.settled += count;
  tally.late.set(second, (tally.late.get(second) ?? 0) + count);
  tally.lastSettled = now;
  tally.oldestMs = Math.max(tally.oldestMs, late);
}
