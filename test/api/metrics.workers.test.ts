import { beforeAll, describe, expect, test } from "vitest";
import * as v from "valibot";
import { expose } from "../../src/api/exposition.ts";
import { readMetrics } from "../../src/api/metrics.ts";
import { HOUR, MINUTE, SECOND } from "../../src/core/time.ts";
import { meterDb } from "../../src/db/client.ts";
import { createMeter } from "../../src/db/meter.ts";
import { defineModule, done, recordsRetention, topic } from "../../src/index.ts";
import { createWorld, DB } from "../outbox/world.ts";

const shop = defineModule("shop", {
  topics: [topic("shop.work", { schema: v.unknown(), handle: () => done() })],
});
const jobs = { active: [], problems: [] };
const world = createWorld([shop]);

/** Every sample by its name and labels. */
async function scrape(meter = createMeter()): Promise<Map<string, number>> {
  const runtime = { ...world.runtime, db: meterDb(DB, meter) };
  const text = await readMetrics({ runtime, catalog: [recordsRetention], jobs, now: world.clock.now });
  expect(text.endsWith("\n")).toBe(true);
  const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return new Map(
    lines.map((line) => {
      const at = line.lastIndexOf(" ");
      return [line.slice(0, at), Number(line.slice(at + 1))];
    }),
  );
}

const items = (count: number, lane: number, at: number, more = "0, 0") =>
  DB.prepare(
    `INSERT INTO items (topic, lane, at, seq, turn, due_at, born_at, payload, attempts, lapses)
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
     SELECT 'shop.work', ?2, ?3 + i, printf('%018d', i), 0, ?3 + i, 0, '1', ${more} FROM n`,
  ).bind(count, lane, at);
const letters = (count: number, at: number) =>
  DB.prepare(
    `INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
     SELECT 'letter-' || i, 'shop.work', '1', 'old', '', 0, 0, 0, ?2 FROM n`,
  ).bind(count, at);

describe("metrics", () => {
  const { now } = world.clock;

  test("of an empty runtime have no tick, and say 0 of what there is", async () => {
    const metrics = await scrape();
    expect(metrics.get('duework_topic_items{topic="shop.work",state="ready"}')).toBe(0);
    expect(metrics.get('duework_topic_oldest_due_age_seconds{topic="shop.work"}')).toBe(0);
    expect(metrics.has("duework_tick_age_seconds")).toBe(false);
    expect(metrics.get('duework_job_stopped{job="records-retention"}')).toBe(0);
    expect(metrics.get('duework_job_claims_total{job="records-retention"}')).toBe(0);
  });

  test("say how topics, jobs, ticks, firings and runs stand", async () => {
    const slot = Math.floor(now / MINUTE) * MINUTE;
    await DB.batch([
      items(3, 0, now - 90 * SECOND),
      items(2, 2, now + MINUTE, "1, 1"),
      letters(4, now - 5 * SECOND),
      DB.prepare(
        `INSERT INTO jobs (id, generation, claimed, failures, stopped_at, stop_reason, stopped_by)
         VALUES ('records-retention', 7, 0, 5, 1, 'it failed', 'it')`,
      ),
      ...["succeeded", "failed", "failed"].map((result, n) =>
        DB.prepare(
          `INSERT INTO slots (job, slot, generation, processor, missed, claimed_at, deadline, completed_at, result)
           VALUES ('records-retention', ?1, ?2, 'module', 0, ?1, ?1, ?1, ?3)`,
        ).bind(slot - n * MINUTE, n + 1, result),
      ),
      DB.prepare(
        `INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at)
         VALUES ('records-retention', '00000000-0000-4000-8000-000000000001', 'quarantined', 1, 1, 3, 2)`,
      ),
      ...[1, 2].map((n) =>
        DB.prepare(
          `INSERT INTO ticks (id, at, started_at, wall_until, modules, ended_at, report)
           VALUES (?1, ?2, ?2, ?2, '[]', ?2 + ?3, '{"queries":10,"rowsWritten":3,"subrequests":2,"claimed":4}')`,
        ).bind(n, now - 3 * MINUTE + n * MINUTE, n * 500),
      ),
      DB.prepare(
        `INSERT INTO ticks (id, at, started_at, wall_until, modules, running) VALUES (3, ?1, ?1, ?1, '[]', 'shop')`,
      ).bind(now - 30 * SECOND),
      ...["refused:no_route", "refused:no_route"].map((outcome, n) =>
        DB.prepare(
          `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome)
           VALUES (?1, 's', 's', ?2, ?3, 0, '* * * * *', 'UTC', 'service:tick', ?4)`,
        ).bind(`f${n}`, slot - n * MINUTE, now - n, outcome),
      ),
      DB.prepare(
        `INSERT INTO runs (id, actor, actor_kind, grants, command, args, channel, status, admitted_at)
         VALUES ('r', 'http:ann', 'user', '{}', 'job.list', '{}', 'inbox:x', 'admitted', ?1)`,
      ).bind(now),
    ]);
    const metrics = await scrape();
    const expected = {
      'duework_topic_items{topic="shop.work",state="ready"}': 3,
      'duework_topic_items{topic="shop.work",state="running"}': 2,
      'duework_topic_failing_items{topic="shop.work",state="running"}': 2,
      'duework_topic_lapsed_items{topic="shop.work",state="running"}': 2,
      'duework_topic_dead_letters{topic="shop.work"}': 4,
      'duework_topic_newest_dead_letter_timestamp_seconds{topic="shop.work"}': (now - 5 * SECOND) / SECOND,
      'duework_job_stopped{job="records-retention"}': 1,
      'duework_job_enabled{job="records-retention"}': 0,
      'duework_job_failed_slots_in_a_row{job="records-retention"}': 5,
      'duework_job_claims_total{job="records-retention"}': 7,
      'duework_job_recent_slots{job="records-retention",result="succeeded"}': 1,
      'duework_job_recent_slots{job="records-retention",result="failed"}': 2,
      'duework_job_recent_slots{job="records-retention",result="open"}': 0,
      'duework_job_held_obligations{job="records-retention",state="quarantined"}': 1,
      'duework_job_held_obligations{job="records-retention",state="owed"}': 0,
      duework_tick_age_seconds: 30,
      'duework_tick_duration_seconds{of="last"}': 1,
      'duework_tick_duration_seconds{of="p95"}': 1,
      'duework_hour_ticks{state="closed"}': 2,
      'duework_hour_ticks{state="died"}': 1,
      duework_hour_tick_queries: 20,
      duework_hour_tick_rows_written: 6,
      duework_hour_tick_subrequests: 4,
      'duework_hour_tick_items{step="claimed"}': 8,
      'duework_hour_firings{outcome="refused:no_route"}': 2,
      'duework_hour_runs{status="admitted"}': 1,
      'duework_open_runs{status="admitted"}': 1,
    };
    expect(Object.fromEntries(metrics)).toMatchObject(expected);
    expect(metrics.get('duework_topic_oldest_due_age_seconds{topic="shop.work"}')).toBeCloseTo(90, 1);
  });

  test("what is older than an hour is in none of the hour's", async () => {
    world.clock.now += 2 * HOUR;
    const metrics = await scrape();
    world.clock.now -= 2 * HOUR;
    expect(metrics.get("duework_hour_tick_queries")).toBe(0);
    expect([...metrics.keys()].filter((name) => name.startsWith("duework_hour_firings"))).toEqual([]);
  });

  test("labels and helps are escaped, whatever stands in a row", () => {
    const labels = { state: 'a"b\\c\nd{e="f"}' };
    const text = expose([{ name: "x", type: "gauge", help: "one\ntwo \\ three", samples: [{ labels, value: 1 }] }]);
    expect(text).toBe('# HELP x one\\ntwo \\\\ three\n# TYPE x gauge\nx{state="a\\"b\\\\c\\nd{e=\\"f\\"}"} 1\n');
  });
});

describe("beside 1,000,000 items, 1,000,000 dead letters and 200,000 firings", () => {
  beforeAll(async () => {
    const { now } = world.clock;
    await DB.batch(["items", "dead_letters"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
    for (const lane of [0, 2]) await items(500_000, lane, now - HOUR).run();
    await letters(1_000_000, now).run();
    await DB.prepare(
      `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome)
       WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
       SELECT 'many-' || i, 'many', 'many', i * 60000, ?1 - i, 0, '* * * * *', 'UTC', 'x', 'refused:no_route' FROM n`,
    )
      .bind(now)
      .run();
  }, 240_000);

  test("a scrape reads a bounded number of rows, and says where it stopped counting", async () => {
    const meter = createMeter();
    const metrics = await scrape(meter);
    expect(metrics.get('duework_topic_items{topic="shop.work",state="ready"}')).toBe(1_000);
    expect(metrics.get('duework_topic_dead_letters{topic="shop.work"}')).toBe(1_000);
    expect(metrics.get('duework_hour_firings{outcome="refused:no_route"}')).toBe(2_000);
    expect(meter.rowsRead).toBeLessThan(12_000);
    expect(meter.queries).toBeLessThan(12);
  });
});
