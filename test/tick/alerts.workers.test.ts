import { beforeEach, describe, expect, test } from "vitest";
import { job } from "../../src/jobs/catalog.ts";
import { DAY, HOUR, MINUTE } from "../../src/core/time.ts";
import { meterDb } from "../../src/db/client.ts";
import { createMeter } from "../../src/db/meter.ts";
import { findUntold } from "../../src/tick/alerts.ts";
import * as v from "valibot";
import { defineModule } from "../../src/outbox/module.ts";
import { topic } from "../../src/outbox/topic.ts";
import { done } from "../../src/core/outcomes.ts";
import { mendingOf, NEED_KINDS, type NeedKind, readNeeds } from "../../src/tick/needs.ts";
import { clear, createStage, DB, type Stage } from "../schedules/stage.ts";

beforeEach(async () => {
  await clear();
  await DB.batch(["obligations", "dead_letters"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
});

const told = async (stage: Stage) => (await stage.messages("thread-alerts-inbox:ops")).map(({ text }) => text);
const stage = () =>
  createStage({
    env: { ALERTS_CHANNEL: "inbox:ops" },
    jobs: [job({ id: "sweep", cron: "0 * * * *", processor: { kind: "module", handle: async () => {} } })],
  });

/** Brings about one occurrence of each kind. */
async function trouble(at: number) {
  const uuid = "00000000-0000-4000-8000-000000000001";
  await DB.batch([
    DB.prepare(
      "INSERT INTO jobs (id, generation, claimed, stopped_at, stop_reason, stopped_by) VALUES ('sweep', 1, 0, ?1, 'too many', 'duework')",
    ).bind(at),
    DB.prepare(
      "INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at, error) VALUES ('sweep', ?1, 'quarantined', 1, ?2, 3, ?2, 'refused')",
    ).bind(uuid, at),
    DB.prepare(
      "INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, run) VALUES ('f', 's', 'nightly', 0, ?1, 0, '* * * * *', 'UTC', 'service:tick', 'claimed', 'r')",
    ).bind(at),
    DB.prepare(
      `INSERT INTO runs (id, actor, actor_kind, grants, command, args, channel, status, admitted_at, ended_at, error)
       VALUES ('r2', 'http:amy', 'user', '{}', 'probe.go', '{}', 'inbox:ops', 'lost', ?1, ?1, 'gone')`,
    ).bind(at),
    DB.prepare(
      "INSERT INTO ticks (at, started_at, wall_until, modules, running) VALUES (?1, ?1, ?1, '[]', 'shop')",
    ).bind(at - MINUTE),
  ]);
}

describe("what needs a person", () => {
  test("is told once per occurrence, however many ticks see it, and again when it happens again", async () => {
    const one = await stage();
    await trouble(one.clock.now - 1_000);
    for (let minute = 0; minute < 3; minute += 1) {
      await one.tick();
      one.minutes(1);
    }
    const texts = await told(one);
    expect(texts).toHaveLength(5);
    for (const word of ["sweep is stopped", "quarantine", "nightly was claimed", "probe.go was lost", "died in shop"]) {
      expect(
        texts.filter((text) => text.includes(word)),
        word,
      ).toHaveLength(1);
    }
    await one.command("amy", "job.resume", { id: "sweep" });
    await one.tick();
    await DB.prepare("UPDATE jobs SET stopped_at = ?1, stop_reason = 'again', stopped_by = 'duework'")
      .bind(one.clock.now)
      .run();
    await one.tick();
    expect((await told(one)).filter((text) => text.includes("sweep is stopped"))).toHaveLength(2);
  });

  test("is told to nobody when no channel is named, and costs the tick nothing", async () => {
    const quiet = await createStage();
    await trouble(quiet.clock.now - 1_000);
    const before = await quiet.tick();
    const loud = await stage();
    const idle = await loud.tick();
    expect(await DB.prepare("SELECT count(*) AS n FROM threads").first("n")).toBe(1);
    expect(idle.calls - before.calls).toBe(2);
    loud.minutes(1);
    expect((await loud.tick()).calls - before.calls).toBe(1);
  });

  test("is found by reading a few rows beside a hundred thousand others", async () => {
    const one = await stage();
    const n = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)";
    await DB.prepare(
      `${n} INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, run)
       SELECT 'f' || i, 's', 'often', i * 60000, ?1, 0, '* * * * *', 'UTC', 'service:tick', 'admitted', 'r' FROM n`,
    )
      .bind(one.clock.now)
      .run();
    await trouble(one.clock.now);
    const found = await DB.batch(findUntold(DB, ["probe.work"], [], one.clock.now));
    expect(found.reduce((sum, { results }) => sum + results.length, 0)).toBe(5);
    expect(found.reduce((sum, { meta }) => sum + meta.rows_read, 0)).toBeLessThan(200);
  });

  test("a channel that could not be told is told by the next tick", async () => {
    const one = await stage();
    await trouble(one.clock.now - 1_000);
    const failing = new Proxy(DB, {
      get(target, name) {
        const member = Reflect.get(target, name, target);
        if (name !== "batch") return typeof member === "function" ? member.bind(target) : member;
        // What opens the thread and says it in one call.
        return (statements: D1PreparedStatement[]) =>
          statements.length === 3 &&
          statements.every((one) =>
            /INSERT INTO (?:threads|messages)|UPDATE threads/.test(String((one as { statement?: string }).statement)),
          )
            ? Promise.reject(new Error("D1_ERROR: Network connection lost."))
            : target.batch(statements);
      },
    });
    const version = await one.version(failing);
    const report = await one.tick(undefined, version);
    expect(report.failed).toBeGreaterThan(0);
    expect(await told(one)).toEqual([]);
    one.minutes(1);
    await one.tick();
    expect((await told(one)).length).toBeGreaterThan(0);
  });
});

/** All that {@link trouble} has not: a full ledger, dead letters, a row that no version of ours has written. */
async function moreTrouble(at: number) {
  const n = (most: number) => `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${most})`;
  await DB.batch([
    DB.prepare(
      `${n(4_000)} INSERT INTO obligations (job, workspace, state, version, since, charges)
       SELECT 'sweep', printf('10000000-0000-4000-8000-%012d', i), 'owed', 1, ?1, 0 FROM n`,
    ).bind(at),
    DB.prepare(
      `${n(1_200)} INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
       SELECT 'd' || i, 'shop.work', '{}', 'gone', 'e', 1, 1, ?1, ?1 FROM n`,
    ).bind(at),
    DB.prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by,
         anchored_at) VALUES ('s1', 'odd', 'now and then', 'UTC', 'probe go', 'inbox:ops', 'new', '{}', 1, ?1, 'x', ?1)`,
    ).bind(at),
    DB.prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by,
         anchored_at, last_slot, claim)
       VALUES ('s2', 'barred', '0 0 1 1 *', 'UTC', 'probe change', 'inbox:ops', 'new', '{}', 1, ?1, 'x', ?1, 0, 'f2')`,
    ).bind(at),
    DB.prepare(
      `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome)
       VALUES ('f2', 's2', 'barred', 0, ?1, 0, '0 0 1 1 *', 'UTC', 'service:tick', 'refused:schedule_write')`,
    ).bind(at),
  ]);
}

describe("the list of what needs a person", () => {
  interface List {
    items: { kind: string; what: string; subject: string; detail: string; count: { value: number; capped: boolean } }[];
    unseen: string[];
  }
  const work = topic("shop.work", { schema: v.object({}), handle: async () => done() });
  const all = { actions: "all", channels: "all", scopes: "all" } as const;
  const make = () =>
    createStage({
      people: [
        { subject: "amy", grants: all },
        { subject: "bob", grants: { actions: ["job:read"], channels: [], scopes: [] } },
      ],
      env: { ALERTS_CHANNEL: "inbox:ops" },
      jobs: [job({ id: "sweep", cron: "0 * * * *", processor: { kind: "module", handle: async () => {} } })],
      modules: [defineModule("shop", { topics: [work] })],
    });
  const ask = async (one: Stage, who: string) => (await one.http(who, "GET", "/api/needs")).json as unknown as List;

  test("has every kind, the gravest first, and the alerts tell each of them but the tick that is late", async () => {
    const one = await make();
    const at = one.clock.now - 5 * MINUTE;
    await trouble(at);
    await moreTrouble(at);
    const { items, unseen } = await ask(one, "amy");
    expect(unseen).toEqual([]);
    expect(items.map(({ kind }) => kind)).toEqual([...NEED_KINDS]);
    expect(items.map(({ what }) => what)).toEqual([
      "No tick for 6 min",
      "A tick died in shop",
      "The job sweep is stopped",
      "1 in quarantine of sweep",
      "The ledger of sweep is filling",
      "The schedule odd is invalid",
      "The schedule barred was refused",
      "nightly was claimed and not started",
      "A run of probe.go was lost",
      "1,000+ dead letters of shop.work",
    ]);
    await one.tick();
    const { results } = await DB.prepare(
      "SELECT data->>'code' AS kind, text FROM messages WHERE thread = 'thread-alerts-inbox:ops'",
    ).all<{ kind: NeedKind; text: string }>();
    expect(results.map(({ kind }) => kind).sort()).toEqual(
      NEED_KINDS.filter((kind) => kind !== "tick_late").toSorted(),
    );
    for (const { kind, text } of results) expect(text).toContain(mendingOf(kind));
  });

  test("shows what the grants of who asks let him see, and names those that he lacks", async () => {
    const one = await make();
    await trouble(one.clock.now - 5 * MINUTE);
    const { items, unseen } = await ask(one, "bob");
    expect(items.map(({ kind }) => kind)).toEqual(["job_stopped", "quarantine"]);
    expect(unseen.toSorted()).toEqual(["item:read", "run:read", "schedule:read", "tick:read"]);
  });

  test("is one line for many of the same, a firing that is its schedule's latest stays, and old losses go", async () => {
    const one = await make();
    const now = one.clock.now;
    const firing = (id: string, name: string, at: number) =>
      DB.prepare(
        "INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, run) VALUES (?1, ?2, ?2, ?4, ?3, 0, '* * * * *', 'UTC', 'service:tick', 'claimed', 'r')",
      ).bind(id, name, at, Math.floor(at / MINUTE) * MINUTE);
    await DB.batch([
      ...[1, 2, 3].map((n) => firing(`often-${n}`, "often", now - n * MINUTE)),
      firing("monthly", "monthly", now - 9 * DAY),
      firing("followed", "followed", now - 9 * DAY),
      ...["monthly", "followed"].map((name) =>
        DB.prepare(
          `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at,
             created_by, anchored_at, claim) VALUES (?1, ?1, '0 0 1 * *', 'UTC', 'probe go', 'inbox:ops', 'new',
             '{"actions":[],"channels":[],"scopes":[]}', 1, ?2, 'http:amy', ?2, ?3)`,
        ).bind(name, now, name === "monthly" ? "monthly" : null),
      ),
      DB.prepare(
        `INSERT INTO runs (id, actor, actor_kind, grants, command, args, channel, status, admitted_at, ended_at, error)
         VALUES ('old', 'http:amy', 'user', '{}', 'probe.go', '{}', 'inbox:ops', 'lost', ?1, ?1, 'gone')`,
      ).bind(now - 25 * HOUR),
    ]);
    const { items } = await ask(one, "amy");
    expect(items.map(({ what }) => what)).toEqual([
      "often was claimed and not started, 3 times",
      "monthly was claimed and not started",
    ]);
  });

  test("reads a bounded number of rows, however many there are", async () => {
    const n = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)";
    const at = (await make()).clock.now;
    await DB.batch([
      DB.prepare(
        `${n} INSERT INTO runs (id, actor, actor_kind, grants, command, args, channel, status, admitted_at, ended_at)
         SELECT 'l' || i, 'http:amy', 'user', '{}', 'probe.go', '{}', 'inbox:ops', 'lost', ?1, ?1 - i FROM n`,
      ).bind(at),
      DB.prepare(
        `${n} INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome, run)
         SELECT 'f' || i, 's', 'often', i * 60000, ?1 - i, 0, '* * * * *', 'UTC', 'service:tick', 'claimed', 'r' FROM n`,
      ).bind(at),
      DB.prepare(
        `${n} INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
         SELECT 'd' || i, 'shop.work', '{}', 'gone', 'e', 1, 1, ?1, ?1 - i FROM n`,
      ).bind(at),
    ]);
    const meter = createMeter();
    const needs = await readNeeds(meterDb(DB, meter), { jobs: ["sweep"], topics: ["shop.work"], now: at });
    expect(needs.map(({ kind, count }) => [kind, count])).toEqual([
      ["not_started", { value: 99, capped: true }],
      ["run_lost", { value: 99, capped: true }],
      ["dead_letters", { value: 1_000, capped: true }],
    ]);
    expect(meter.rowsRead).toBeLessThan(2_000);
    expect(meter.calls).toBe(2);
  });

  test("a schedule that is refused each minute is told once for its reason; one whose thread was busy is not", async () => {
    const one = await createStage({ env: { ALERTS_CHANNEL: "inbox:ops" } });
    await one.add("writes", "* * * * *", "probe change");
    await one.add("busy", "* * * * *", "probe go", { thread: "standing" });
    for (let minute = 0; minute < 3; minute += 1) {
      one.minutes(1);
      await one.tick();
    }
    expect((await one.firings("busy")).at(-1)?.outcome).toBe("refused:thread_busy");
    const texts = (await one.messages("thread-alerts-inbox:ops")).map(({ text }) => text);
    expect(texts).toEqual([expect.stringContaining("The schedule writes was refused: schedule_write")]);
    const { json } = await one.http("amy", "GET", "/api/needs");
    expect(json.items).toMatchObject([{ kind: "schedule_refused", subject: "writes" }]);
  });
});
