import { beforeEach, describe, expect, test } from "vitest";
import { job } from "../../src/jobs/catalog.ts";
import { MINUTE } from "../../src/core/time.ts";
import { readNeeds } from "../../src/tick/alerts.ts";
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
    const found = await DB.batch(readNeeds(DB, ["probe.work"], one.clock.now));
    expect(found.reduce((sum, { results }) => sum + results.length, 0)).toBe(4);
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
