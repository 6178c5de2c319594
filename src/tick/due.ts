import { AHEAD_MS } from "../outbox/pump.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { leaseOf } from "../outbox/runtime.ts";
import type { Path, Topic } from "../outbox/topic.ts";

/** A topic at the tick's instant. `oldest` is the least due time or lapsed lease it holds; null = nothing to claim. */
export interface DueTopic {
  topic: Topic;
  path: Path;
  paused: boolean;
  oldest: number | null;
  /** Its last pump chain, should there have been one: until when it held, and what it had claimed by then. */
  chain: { until: number; claimed: number } | null;
}

interface DueRow {
  topic: string;
  path: Path;
  paused: 0 | 1;
  ready: number | null;
  leased: number | null;
  running: number | null;
  until: number | null;
  pumped: number | null;
}

/** One statement for all topics: how each goes, and the first row of each of its lanes. */
export function readDue(db: D1Database, runtime: Runtime): D1PreparedStatement {
  const topics = [...runtime.topics.values()].map((topic) => [topic.name, leaseOf(runtime, topic).defaultPath]);
  const first = (lane: number) =>
    `(SELECT at FROM items WHERE topic = j.value->>0 AND lane = ${lane} ORDER BY at, seq LIMIT 1)`;
  return db
    .prepare(
      `SELECT j.value->>0 AS topic, coalesce(t.path, j.value->>1) AS path, coalesce(t.paused, 0) AS paused,
         ${first(0)} AS ready, ${first(1)} AS leased, ${first(2)} AS running, p.until, p.claimed AS pumped
       FROM json_each(?1) j LEFT JOIN topics t ON t.topic = j.value->>0 LEFT JOIN pumps p ON p.topic = j.value->>0`,
    )
    .bind(JSON.stringify(topics));
}

/** Which topics have something to claim at `now`, and by which path. Pure. Oldest first, so that none is starved. */
export function dueTopics(
  runtime: Pick<Runtime, "topics" | "queue">,
  rows: readonly unknown[],
  now: number,
): DueTopic[] {
  return (rows as DueRow[])
    .flatMap((row) => {
      const topic = runtime.topics.get(row.topic);
      if (topic === undefined) return [];
      const path = runtime.queue(topic) === null ? ("drain" as const) : row.path;
      const ahead = path === "queue" ? now + AHEAD_MS : now;
      const due = [
        ...(row.ready !== null && row.ready <= ahead ? [row.ready] : []),
        ...(row.leased !== null && row.leased <= now ? [row.leased] : []),
        ...(row.running !== null && row.running <= now ? [row.running] : []),
      ];
      const chain = row.until === null ? null : { until: row.until, claimed: row.pumped ?? 0 };
      return [{ topic, path, paused: row.paused === 1, oldest: due.length > 0 ? Math.min(...due) : null, chain }];
    })
    .sort((a, b) => (a.oldest ?? Number.POSITIVE_INFINITY) - (b.oldest ?? Number.POSITIVE_INFINITY));
}
