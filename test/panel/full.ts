import { HOUR, MINUTE } from "../../src/core/time.ts";
import { DB } from "../outbox/world.ts";

/** Rows in every table that the panel shows, with a text of the test's choosing in every stored field that takes one. */

/** Every table that the panel reads. */
const TABLES = [
  "ticks",
  "items",
  "item_keys",
  "dead_letters",
  "topics",
  "topic_changes",
  "jobs",
  "slots",
  "obligations",
  "settlements",
  "workflow_steps",
  "threads",
  "messages",
  "runs",
  "schedules",
  "firings",
  "sessions",
  "sign_in_tries",
];

export const clear = () => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`)));

type Row = Record<string, unknown>;

const insert = (table: string, row: Row) => {
  const names = Object.keys(row);
  return DB.prepare(
    `INSERT OR REPLACE INTO ${table} (${names.join(", ")}) VALUES (${names.map((_, n) => `?${n + 1}`).join(", ")})`,
  ).bind(...Object.values(row));
};

/**
 * Fills the tables. One row takes two megabytes at most, so a long text stands in one field of a row at a time: in the
 * others of that row there is a short one.
 */
export async function fill(now: number, long: string, short = long.slice(0, 100)): Promise<void> {
  const slot = Math.floor(now / MINUTE) * MINUTE;
  /** The row once for each of these fields, with the long text there; `key` keeps the rows apart. */
  const each = (table: string, row: Row, fields: readonly string[], key: (n: number) => Row) =>
    fields.map((field, n) => {
      const texts = Object.fromEntries(fields.map((name) => [name, name === field ? long : short]));
      return insert(table, { ...row, ...texts, ...key(n) });
    });
  const json = (text: string) => JSON.stringify({ [text]: text });
  const tick = (modules: string[], running: string | null, report: object, ended: number | null) => ({
    at: now - HOUR,
    started_at: now - HOUR,
    wall_until: now - HOUR + 25_000,
    modules: JSON.stringify(modules),
    running,
    ended_at: ended,
    report: JSON.stringify(report),
  });
  const module = {
    module: long,
    share: { subrequests: null, queries: null, wallMs: null },
    charged: { subrequests: 1, queries: 2 },
    measured: { subrequests: 1, queries: 3 },
    ms: 4,
    bornEmpty: false,
    drained: 5,
    warning: { reason: short, amount: 1, unit: short, behind: [short] },
    error: null,
  };
  const uuid = "00000000-0000-4000-8000-000000000001";
  const statements = [
    insert("ticks", { id: 1, ...tick([long], short, {}, null) }),
    insert("ticks", { id: 2, ...tick([short], null, { modules: [module], refused: [short] }, now - HOUR + 9) }),
    insert("ticks", { id: 3, ...tick([], null, { modules: [{ ...module, module: short, error: long }] }, now) }),
    insert("topics", { topic: "shop.work", path: "queue", paused: 0, version: 1, changed_at: now, changed_by: long }),
    insert("topic_changes", {
      topic: "shop.work",
      path: "queue",
      paused: 0,
      version: 1,
      changed_at: now,
      changed_by: long,
    }),
    ...each("items", { topic: "shop.work", lane: 0, turn: 0, born_at: now }, ["k", "payload", "error"], (n) => ({
      at: now + n,
      due_at: now + n,
      seq: `00000000000000000${n}`,
    })),
    ...each(
      "dead_letters",
      { topic: "shop.work", attempts: 1, deliveries: 1, born_at: now, died_at: now },
      ["k", "payload", "reason", "error"],
      (n) => ({ id: `letter-${n}` }),
    ),
    insert("dead_letters", {
      id: short,
      topic: "shop.work",
      payload: "{}",
      reason: "x",
      error: "x",
      attempts: 1,
      deliveries: 1,
      born_at: now,
      died_at: now,
    }),
    insert("jobs", { id: "sweep", generation: 9, claimed: 0, stopped_at: now, stop_reason: long, stopped_by: short }),
    insert("jobs", { id: "expiry", generation: 9, claimed: 0, stopped_at: now, stop_reason: short, stopped_by: long }),
    ...["sweep", "expiry"].flatMap((id) => [
      insert("slots", {
        job: id,
        slot,
        generation: 1,
        processor: "module",
        missed: 0,
        claimed_at: now,
        deadline: now,
        completed_at: now,
        result: "degraded",
        instance_id: `${id}-${slot / MINUTE}-1`,
        detail: json(long.slice(0, long.length / 2)),
      }),
      insert("slots", {
        job: id,
        slot: slot - MINUTE,
        generation: 2,
        processor: "module",
        missed: 3,
        claimed_at: now,
        deadline: now,
        instance_id: short,
        detail: long,
      }),
    ]),
    insert("obligations", {
      job: "sweep",
      workspace: uuid,
      state: "quarantined",
      version: 2,
      since: now,
      charges: 3,
      quarantined_at: now,
      error: long,
    }),
    ...each(
      "settlements",
      { job: "sweep", workspace: uuid, version: 1, since: now, how: "by hand" },
      ["settled_by", "reason", "error"],
      (n) => ({ settled_at: now + n }),
    ),
    insert("workflow_steps", {
      workflow: "checkout-expiry",
      instance_id: `expiry-${slot / MINUTE}-1`,
      position: 0,
      name: long,
      started_at: now,
      updated_at: now,
      progress: json(short),
    }),
    ...each("threads", { opened_at: now, latest_at: now }, ["channel", "title", "opened_by"], (n) => ({
      id: `thread-${n}`,
    })),
    ...(["lead", "text", "receipt", "result", "refusal", "offer"] as const).map((kind, n) =>
      insert("messages", {
        id: `message-${n}`,
        thread: "thread-0",
        at: now + n,
        author: n % 2 === 0 ? long : short,
        kind,
        text: n % 2 === 0 ? short : long.slice(0, 900_000),
        data: JSON.stringify({ run: "run-0", command: short, args: {}, scope: null, form: short }),
      }),
    ),
    ...each(
      "runs",
      { actor_kind: "user", status: "lost", admitted_at: now, ended_at: now },
      ["actor", "command", "scope", "channel", "result", "error"],
      (n) => ({ id: `run-${n}`, grants: json(short), args: json(short), thread: "thread-0" }),
    ),
    ...each(
      "schedules",
      { enabled: 1, created_at: now, anchored_at: now, thread: "new" },
      ["cron", "time_zone", "text", "channel", "grants", "created_by"],
      (n) => ({ id: `schedule-${n}`, name: `row-${n}`, claim: "firing-0" }),
    ),
    insert("schedules", {
      id: "schedule-nasty",
      name: short,
      cron: "* * * * *",
      time_zone: "UTC",
      text: "x",
      channel: "inbox:x",
      thread: "new",
      grants: "{}",
      enabled: 1,
      created_at: now,
      created_by: "http:ann",
      anchored_at: now,
    }),
    ...each(
      "firings",
      { schedule: "schedule-0", name: "row-0", missed: 0, claimed_at: now, outcome: "refused:no_route" },
      ["cron", "time_zone", "fired_by", "detail", "refired_by"],
      (n) => ({ id: `firing-${n}`, slot: slot - n * MINUTE, thread: short }),
    ),
  ];
  for (let from = 0; from < statements.length; from += 10) await DB.batch(statements.slice(from, from + 10));
}

/** Every page that shows rows. */
export const PAGES = (now: number) => {
  const slot = Math.floor(now / MINUTE) * MINUTE;
  return [
    "/panel",
    "/panel/topics",
    "/panel/items",
    "/panel/items?of=shop.work&state=dead",
    "/panel/items/shop.work~000000000000000000",
    "/panel/items/letter-0",
    "/panel/dead-letters",
    ...[0, 1, 2, 3].map((n) => `/panel/dead-letters/letter-${n}`),
    "/panel/jobs",
    "/panel/jobs/sweep",
    "/panel/jobs/sweep?state=owed",
    "/panel/jobs/expiry",
    `/panel/jobs/sweep/slots/${slot}`,
    `/panel/jobs/sweep/slots/${slot - MINUTE}`,
    "/panel/workflows",
    `/panel/workflows/checkout-expiry/expiry-${slot / MINUTE}-1`,
    "/panel/schedules",
    ...[0, 1, 2, 3, 4, 5].map((n) => `/panel/schedules/row-${n}`),
    "/panel/threads",
    ...[0, 1, 2].map((n) => `/panel/threads/thread-${n}`),
    "/panel/runs",
    ...[0, 1, 2, 3, 4, 5].map((n) => `/panel/runs/run-${n}`),
    "/panel/ticks",
    ...[1, 2, 3].map((n) => `/panel/ticks/${n}`),
  ];
};

/** The pages that are there whatever the database holds. */
export const LISTS = [
  "/panel",
  "/panel/topics",
  "/panel/items",
  "/panel/dead-letters",
  "/panel/jobs",
  "/panel/jobs/sweep",
  "/panel/workflows",
  "/panel/schedules",
  "/panel/threads",
  "/panel/runs",
  "/panel/ticks",
];
