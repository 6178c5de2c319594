import type * as v from "valibot";
import { refuse } from "../core/errors.ts";
import { splitTopicName } from "../core/names.ts";
import { isoInstant } from "../core/time.ts";
import { leaseOf, type Runtime } from "../outbox/runtime.ts";
import { listTicks, notReached, parseTick, type TickRow } from "../tick/record.ts";
import type { listSchema, pageSchema } from "./request.ts";

/** Rows that a count reads at most: beyond it the answer says so. */
const COUNT_CAP = 10_000;

interface TopicRow {
  topic: string;
  path: "queue" | "drain";
  paused: 0 | 1;
  version: number;
  ready: number;
  leased: number;
  dead: number;
  oldest: number | null;
}

const capped = (count: number) => ({ value: Math.min(count, COUNT_CAP), capped: count > COUNT_CAP });

/**
 * A page of a list that stands in the code, in the code's order, after the one that `cursor` names. Null: the cursor
 * names none of them.
 */
export function pageOfCode<One>(
  all: readonly One[],
  nameOf: (one: One) => string,
  { limit, cursor }: v.InferOutput<typeof listSchema>,
): { shown: One[]; nextCursor: string | null } | null {
  const from = cursor === undefined ? 0 : all.findIndex((one) => nameOf(one) === cursor) + 1;
  if (cursor !== undefined && from === 0) return null;
  const shown = all.slice(from, from + limit);
  const last = shown.at(-1);
  return { shown, nextCursor: from + limit < all.length && last !== undefined ? nameOf(last) : null };
}

/** What a list answers to a cursor that is none of its own. */
export const foreignCursor = () => refuse("bad_arguments", "cursor", "not a cursor of this list");

/** A page of the topics of the code: each one's path and its backlog. */
export async function readTopics(db: D1Database, runtime: Runtime, query: v.InferOutput<typeof listSchema>) {
  const page = pageOfCode([...runtime.topics.values()], ({ name }) => name, query);
  if (page === null) return foreignCursor();
  const names = page.shown.map((topic) => [topic.name, leaseOf(runtime, topic).defaultPath]);
  const count = (from: string) => `(SELECT count(*) FROM (SELECT 1 FROM ${from} LIMIT ${COUNT_CAP + 1}))`;
  const { results } = await db
    .prepare(
      `SELECT j.value->>0 AS topic, coalesce(t.path, j.value->>1) AS path, coalesce(t.paused, 0) AS paused,
         coalesce(t.version, 0) AS version,
         ${count("items WHERE topic = j.value->>0 AND lane = 0")} AS ready,
         ${count("items WHERE topic = j.value->>0 AND lane > 0")} AS leased,
         ${count("dead_letters WHERE topic = j.value->>0")} AS dead,
         (SELECT at FROM items WHERE topic = j.value->>0 AND lane = 0 ORDER BY at LIMIT 1) AS oldest
       FROM json_each(?1) j LEFT JOIN topics t ON t.topic = j.value->>0`,
    )
    .bind(JSON.stringify(names))
    .all<TopicRow>();
  const items = results.map((row) => ({
    ...splitTopicName(row.topic),
    path: row.path,
    pathVersion: row.version,
    paused: row.paused === 1,
    ready: capped(row.ready),
    leased: capped(row.leased),
    dead: capped(row.dead),
    oldestDueAt: row.oldest === null ? null : isoInstant(row.oldest),
  }));
  return { items, nextCursor: page.nextCursor };
}

/** A page of tick records, newest first. */
export async function readTicks(db: D1Database, now: number, page: v.InferOutput<typeof pageSchema>) {
  const { results } = await listTicks(db, page.cursor ?? null, page.limit + 1).all();
  const shown = results.slice(0, page.limit);
  return {
    items: shown.flatMap((row) => parseTick(row) ?? []).map((row) => tickView(row, now)),
    nextCursor: results.length > page.limit ? String(shown.at(-1)?.id) : null,
  };
}

function tickView(row: TickRow, now: number) {
  const { modules, claimed, sent, drained, failed, queries, subrequests, calls, rowsRead, rowsWritten } = row.report;
  const state = row.ended_at !== null ? "closed" : row.wall_until > now ? "running" : "died";
  return {
    at: isoInstant(row.at),
    startedAt: isoInstant(row.started_at),
    ms: row.ended_at === null ? null : row.ended_at - row.started_at,
    state,
    ...(state === "died" && { diedIn: row.running, notReached: notReached(row) }),
    ...{ claimed, sent, drained, failed, queries, subrequests, calls, rowsRead, rowsWritten },
    modules,
  };
}

/** How the runtime is doing, for `/healthz`: the newest tick's age decides. */
export async function readLastTick(db: D1Database): Promise<number | null> {
  const row = await db.prepare("SELECT started_at FROM ticks ORDER BY id DESC LIMIT 1").first<{ started_at: number }>();
  return row?.started_at ?? null;
}
