import { type Refusal, refuse } from "../core/errors.ts";
import type { Invocation } from "./runtime.ts";
import type { Path, Topic } from "./topic.ts";

/** Every statement that writes `topics` and `topic_changes`: what an operator has set, and its history. */

/** How a topic goes now. `version` counts the changes; 0 = as the code says. */
export interface TopicPath {
  path: Path;
  paused: boolean;
  version: number;
}

export type TopicChange = { path: Path } | { paused: boolean };

export type ChangeAnswer =
  | ({ ok: true; changed: boolean } & TopicPath)
  | Refusal<"version_conflict" | "queue_not_bound">;

/**
 * Flips a topic's path, or pauses or resumes it: one compare-and-set that keeps who and when. Asked for what it is
 * already, it changes nothing. What is leased stays leased: both paths hold the same lease, so nothing is lost and
 * nothing runs twice.
 *
 * @param expectedVersion the version the caller has seen; another one is `version_conflict`
 */
export async function changeTopic(
  { db, now, runtime }: Invocation,
  topic: Topic,
  change: TopicChange,
  by: string,
  expectedVersion?: number,
): Promise<ChangeAnswer> {
  if ("path" in change && change.path === "queue" && runtime.queue(topic) === null) {
    return refuse(
      "queue_not_bound",
      "path",
      `${topic.name} has no queue: the binding ${topic.options.queue} is missing`,
    );
  }
  const before = await readTopicPath(db, topic);
  const expected = expectedVersion ?? before.version;
  const conflict = () =>
    refuse(
      "version_conflict",
      "expectedVersion",
      `${topic.name} is at another version than ${expected}: read it again`,
    );
  if (before.version !== expected) return conflict();
  const after = { path: before.path, paused: before.paused, ...change, version: before.version + 1 };
  if (after.path === before.path && after.paused === before.paused) return { ok: true, changed: false, ...before };

  const values = [topic.name, after.version, after.path, after.paused ? 1 : 0, now, by];
  const [set] = await db.batch([
    db
      .prepare(
        `INSERT INTO topics (topic, version, path, paused, changed_at, changed_by) SELECT ?1, ?2, ?3, ?4, ?5, ?6
         WHERE ?2 = 1 OR EXISTS (SELECT 1 FROM topics WHERE topic = ?1)
         ON CONFLICT (topic) DO UPDATE SET version = excluded.version, path = excluded.path, paused = excluded.paused,
           changed_at = excluded.changed_at, changed_by = excluded.changed_by
         WHERE topics.version = excluded.version - 1`,
      )
      .bind(...values),
    // Only the winner's version has no row yet, so the history cannot name a change that lost.
    db
      .prepare(
        `INSERT INTO topic_changes (topic, version, path, paused, changed_at, changed_by)
         SELECT topic, version, path, paused, changed_at, changed_by FROM topics WHERE topic = ?1 AND version = ?2
         ON CONFLICT (topic, version) DO NOTHING`,
      )
      .bind(topic.name, after.version),
  ]);
  if ((set?.meta.changes ?? 0) === 0) return conflict();
  runtime.ports.log({ event: "topic_changed", level: "info", topic: topic.name, ...after, by });
  return { ok: true, changed: true, ...after };
}

/** How a topic goes: the stored setting over the code's default. */
export async function readTopicPath(db: D1Database, topic: Topic): Promise<TopicPath> {
  const row = await db
    .prepare("SELECT path, paused, version FROM topics WHERE topic = ?1")
    .bind(topic.name)
    .first<{ path: Path; paused: 0 | 1; version: number }>();
  if (row === null) return { path: topic.options.path, paused: false, version: 0 };
  return { path: row.path, paused: row.paused === 1, version: row.version };
}
