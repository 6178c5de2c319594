import times from "../service-times.json" with { type: "json" };

/** The platform's limits, as its documentation gave them in autumn 2026. The simulation refuses to go beyond them. */
export const PLATFORM = {
  /** Messages that one queue takes, and gives out, in a second. */
  queueMessagesASecond: 5_000,
  /** Invocations of one queue's consumer at a time. */
  consumers: 250,
  /** Messages in a batch. */
  batch: 100,
  /** How often a message is delivered at most, by the consumer's `max_retries` in wrangler.jsonc. */
  deliveries: 11,
} as const;

type Kind = keyof typeof times.measured.statements;

/** Latencies that are assumed, ms. */
export const ASSUMED = times.assumed;

/** How long D1 is busy with a statement over so many rows, ms: between the sizes that were measured, in proportion. */
export function serviceMs(kind: Kind, rows: number): number {
  if (rows <= 0) return 0;
  const points = times.measured.statements[kind] as [number, number][];
  const above = points.findIndex(([size]) => size >= rows);
  const [lastSize = 1, lastMs = 0] = points.at(-1) ?? [];
  if (above < 0) return (lastMs * rows) / lastSize;
  const [size = 1, ms = 0] = points[above] ?? [];
  const [sizeBelow = 0, msBelow = ms] = points[above - 1] ?? [];
  if (size === rows || above === 0) return ms;
  return msBelow + ((ms - msBelow) * (rows - sizeBelow)) / (size - sizeBelow);
}
