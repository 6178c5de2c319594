import { beforeEach, describe, expect, test } from "vitest";
import { DEFAULT_LIMITS } from "../src/core/budget.ts";
import { retryLater } from "../src/core/outcomes.ts";
import { DAY, HOUR, MINUTE, SECOND } from "../src/core/time.ts";
import { changeTopic } from "../src/outbox/paths.ts";
import { defineModule } from "../src/outbox/module.ts";
import { createWorld, faultyDb, oneTopic } from "./outbox/world.ts";
import * as panel from "./panel/stage.ts";
import { clear, createStage, DB, type Stage } from "./schedules/stage.ts";

/**
 * Kinds of fault that job queues, schedulers and Workers apps are known for, on the real D1. Each title begins with the
 * kind. docs/faults.md lists all of them, with what we do.
 */

const NOON = Date.UTC(2026, 2, 10, 12);
const iso = (ms: number) => new Date(ms).toISOString();
const slotsOf = async (stage: Stage, name?: string) => (await stage.firings(name)).map(({ slot }) => iso(slot));

beforeEach(clear);

describe("schedules", () => {
  test("backlog: a schedule that is added on each cold start, three hundred times, is one row that fires once", async () => {
    const stage = await createStage({ start: NOON });
    const answers: unknown[] = [];
    for (let start = 0; start < 300; start += 1) {
      const { code } = await stage.add("on-start", "*/10 * * * *", "probe look");
      answers.push(code);
    }
    expect(answers.filter((code) => code === undefined)).toHaveLength(1);
    expect(new Set(answers.slice(1))).toEqual(new Set(["name_taken"]));
    stage.to(NOON + 35 * MINUTE);
    expect((await stage.tick()).firings).toBe(1);
    expect(await stage.firings()).toMatchObject([{ slot: NOON + 30 * MINUTE, missed: 2 }]);
  });

  test.each([
    ["*/1 * * * *", 78 * MINUTE, 77],
    ["*/5 * * * *", HOUR, 11],
    ["*/5 * * * *", 8 * HOUR, 95],
    ["0 * * * *", 3 * DAY, 71],
  ])(
    "catch-up, clock: %s over a clock that slept or jumped %i ms fires once, and says what it stands for",
    async (cron, ms, missed) => {
      const stage = await createStage({ start: NOON });
      await stage.add("slept", cron, "probe look");
      stage.to(NOON + ms);
      for (let look = 0; look < 3; look += 1) await stage.tick();
      expect(await stage.firings()).toMatchObject([{ missed }]);
      // And it goes on at its own next minute.
      stage.to(NOON + ms + HOUR);
      await stage.tick();
      expect(await stage.firings()).toHaveLength(2);
    },
  );

  test("double fire: removed and added anew in its due minute, a schedule does not run twice, and its next minute is not taken by the old run", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    await stage.add("again", "* * * * *", "probe look");
    stage.to(NOON + 2 * SECOND);
    await stage.tick();
    await stage.playAll();
    await stage.command("amy", "schedule.remove", { name: "again" });
    stage.to(NOON + 20 * SECOND);
    await stage.add("again", "* * * * *", "probe look");
    await stage.tick();
    expect(await slotsOf(stage)).toEqual([iso(NOON)]);
    // missed fire: what is left of the row before holds no place of the new one.
    stage.to(NOON + MINUTE);
    await stage.tick();
    await stage.playAll();
    expect(await slotsOf(stage)).toEqual([iso(NOON), iso(NOON + MINUTE)]);
    expect(stage.seen).toHaveLength(2);
  });

  test("double fire: an instance that the binding makes twice under one id has its effect once", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    await stage.add("twice", "* * * * *", "probe go");
    stage.to(NOON);
    await stage.tick();
    const [id = ""] = stage.runs.made.keys();
    await stage.play(id);
    expect(await stage.play(id)).toBe("stale");
    const both = await createStage({ start: NOON + MINUTE });
    await both.tick();
    const fresh = [...both.runs.made.keys()].find((one) => one !== id) ?? "";
    await Promise.allSettled([both.play(fresh), both.play(fresh)]);
    expect(stage.seen).toHaveLength(1);
    expect(both.seen.length).toBeLessThanOrEqual(1);
  });

  test.each(["first", "second"])(
    "missed fire: of two versions whose ticks are 20 s apart the %s stops right after its pass, and no due minute is passed over",
    async (stops) => {
      const stage = await createStage({ start: NOON - 30 * SECOND });
      await stage.add("handed-over", "* * * * *", "probe look");
      const other = await stage.version();
      for (let minute = 0; minute < 6; minute += 1) {
        const over = minute >= 3;
        // One of them comes at the turn of the minute, the other late in it: 09:59:59.7 and 10:00:20.
        stage.to(NOON + minute * MINUTE - 300);
        if (!over || stops !== "first") await stage.tick();
        stage.to(NOON + minute * MINUTE + 20 * SECOND);
        if (!over || stops !== "second") await stage.tick(DEFAULT_LIMITS, other);
      }
      const firings = await stage.firings();
      expect(new Set(firings.map(({ slot }) => slot)).size).toBe(firings.length);
      const last = Math.max(...firings.map(({ slot }) => slot));
      const accounted = firings.reduce((sum, { missed }) => sum + 1 + missed, 0);
      expect(accounted).toBe((last - NOON) / MINUTE + 1);
      expect(last).toBeGreaterThanOrEqual(NOON + 4 * MINUTE);
    },
  );

  test("missed fire: a row that is merely there fires, whatever wrote it: nothing has to be armed", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    await stage.add("added", "* * * * *", "probe look");
    await DB.prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, standing_thread, grants, enabled, created_at, created_by, anchored_at)
       SELECT 'restored', 'restored', cron, time_zone, text, channel, thread, standing_thread, grants, 1, created_at, created_by, anchored_at
       FROM schedules WHERE name = 'added'`,
    ).run();
    stage.to(NOON);
    await stage.tick();
    expect((await stage.firings()).map(({ name }) => name).sort()).toEqual(["added", "restored"]);
  });

  test("observability: of ticks that race for a due minute only the one that won says that it fired", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    await stage.add("raced", "* * * * *", "probe look");
    stage.to(NOON + SECOND);
    const other = await stage.version();
    const reports = await Promise.all([stage.tick(), stage.tick(DEFAULT_LIMITS, other), stage.tick()]);
    expect(reports.reduce((sum, { firings }) => sum + firings, 0)).toBe(1);
    expect(stage.logs.filter(({ event }) => event === "schedule_fired")).toHaveLength(1);
  });

  test("runtime edit: a schedule that is removed and added with another cron is followed by the very next tick of every version", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    await stage.add("moved", "0 0 1 1 *", "probe look");
    const other = await stage.version();
    await stage.tick(DEFAULT_LIMITS, other);
    await stage.command("amy", "schedule.remove", { name: "moved" });
    await stage.add("moved", "* * * * *", "probe look");
    stage.to(NOON);
    await stage.tick(DEFAULT_LIMITS, other);
    expect(await slotsOf(stage)).toEqual([iso(NOON)]);
  });

  test("runtime edit: every stored row is listed, also one that is off, one of an author who is gone, and those of an earlier version", async () => {
    const people = ["amy", "old"].map((subject) => ({
      subject,
      grants: { actions: "all", channels: "all", scopes: "all" } as const,
    }));
    const stage = await createStage({ start: NOON, people });
    for (let n = 0; n < 60; n += 1) await stage.add(`by-old-${n}`, "0 3 * * *", "probe look", {}, "old");
    await stage.add("off", "0 3 * * *", "probe look");
    await stage.command("amy", "schedule.disable", { name: "off" });
    await stage.redeploy(people.slice(0, 1));
    const { json } = await stage.http("amy", "GET", "/api/schedules?limit=200");
    const rows = json.items as { name: string; state: string }[];
    expect(rows).toHaveLength(61);
    expect(rows.find(({ name }) => name === "off")).toMatchObject({ state: "disabled" });
  });

  test("time zone, panel: a malformed zone written straight into the store stops no other row, and blanks no list", async () => {
    const stage = await createStage({ start: NOON - 10 * SECOND });
    const zones = ["UTC+3", "+05:30", "", "Europe/Paris ", "PST8", "Mars/Base"];
    for (const [nth, zone] of zones.entries()) {
      await stage.add(`bad-${nth}`, "* * * * *", "probe look");
      await DB.prepare("UPDATE schedules SET time_zone = ?1 WHERE name = ?2").bind(zone, `bad-${nth}`).run();
    }
    await stage.add("good", "* * * * *", "probe look");
    stage.to(NOON);
    expect((await stage.tick()).firings).toBe(1);
    const { json } = await stage.http("amy", "GET", "/api/schedules");
    const states = (json.items as { name: string; state: string }[]).map(({ name, state }) => [name, state]);
    expect(states).toHaveLength(zones.length + 1);
    for (const [name, state] of states) if (name !== "good") expect(state, name).toBe("invalid");

    const browser = panel.createStage().browser();
    await browser.signIn(panel.TOKENS.ann);
    const page = await browser.get("/panel/schedules");
    expect(page.status).toBe(200);
    for (const [name = ""] of states) expect(page.text).toContain(name);
  });

  test.each(["", "*", "* * * *", "0 0 31 4 *", "0 0 * * L", "*/0 * * * *"])(
    "cron grammar: %j is refused when it is added, and written past that it throws in no tick",
    async (cron) => {
      const stage = await createStage({ start: NOON - 10 * SECOND });
      expect(await stage.add("bad", cron, "probe look")).toMatchObject({ status: 400 });
      await stage.add("bad", "* * * * *", "probe look");
      await stage.add("good", "* * * * *", "probe look");
      await DB.prepare("UPDATE schedules SET cron = ?1 WHERE name = 'bad'").bind(cron).run();
      stage.to(NOON);
      expect(await stage.tick()).toMatchObject({ failed: 0 });
      expect((await stage.firings()).map(({ name }) => name)).toEqual(["good"]);
    },
  );

  test("payload: what is too large is a refusal with its limit, by 413 or 400, and never a 500", async () => {
    const stage = await createStage({ start: NOON });
    const text = await stage.http("amy", "POST", "/api/commands/schedule.add", {
      ...{ name: "long", cron: "* * * * *", channel: "inbox:ops", thread: "new", grants: {} },
      text: "é".repeat(5_000),
    });
    expect(text.status).toBe(400);
    expect(JSON.stringify(text.json)).toMatch(/8 ?(?:KiB|192)|8,?192/);
    const body = await stage.http("amy", "POST", "/api/commands/schedule.add", { text: "x".repeat(300_000) });
    expect(body.status).toBe(413);
    expect(await stage.row("long")).toBeNull();
  });
});

const MOST = 12;

describe("items", () => {
  test.each([1, 2, 4])(
    "attempts: an item that kills its worker each time is bounded by its own topic's limit (%i), never by a common one",
    async (maxDeliveries) => {
      let starts = 0;
      const { module, topic, name } = oneTopic(
        () => {
          starts += 1;
          return new Promise(() => {});
        },
        { maxDeliveries, maxAttempts: 1 },
      );
      const world = createWorld([module]);
      await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
      for (let life = 0; life < MOST && (await world.rows(name)).length > 0; life += 1) {
        // The isolate is gone with whatever it had in hand.
        void world.deliver(world.queue.take());
        await scheduler.wait(30);
        world.clock.now += 20 * MINUTE;
        await world.tick();
      }
      expect(await world.deadLetters(name)).toHaveLength(1);
      expect(starts).toBeGreaterThan(0);
      // The first delivery that is lost is not counted: see docs/known-limits.md.
      expect(starts).toBeLessThanOrEqual(maxDeliveries + 1);
    },
  );

  test("poison: of a batch of ten the third throws: nine are done, one is put off, and all ten messages are acked", async () => {
    const { module, topic, name } = oneTopic((item) => {
      if ((item.payload as { n: number }).n === 3) throw new Error("no");
    });
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(
      topic,
      Array.from({ length: 10 }, (_, n) => ({ payload: { n } })),
    );
    const verdicts = await world.deliver(world.queue.take());
    expect(verdicts.map((verdict) => verdict?.kind)).toEqual(Array(10).fill("ack"));
    expect(await world.rows(name)).toMatchObject([{ payload: '{"n":3}', attempts: 1 }]);
  });

  test("poison: two rows of one key, one of them superseded, block no batch", async () => {
    const ran: number[] = [];
    const { module, topic, name } = oneTopic((item) => void ran.push((item.payload as { n: number }).n));
    const world = createWorld([module]);
    await changeTopic(world.invocation(), topic, { paused: true }, "test");
    for (const n of [1, 2]) {
      const statements = world.context().outbox.enqueue(topic, [{ key: "k", payload: { n } }], { onKey: "replace" });
      await DB.batch([...statements]);
    }
    expect(await world.rows(name)).toHaveLength(2);
    await changeTopic(world.invocation(), topic, { paused: false }, "test");
    for (let minute = 0; minute < 3; minute += 1) {
      await world.tick();
      await world.deliver(world.queue.take());
      world.clock.now += MINUTE;
    }
    expect(ran).toEqual([2]);
    expect(await world.rows(name)).toEqual([]);
  });

  test("lease: a row that nobody works is not touched by each look: paused never, and sent once a lease", async () => {
    const { module, topic, name } = oneTopic(() => {});
    const world = createWorld([module]);
    await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    const [{ turn: first = 0 } = {}] = await world.rows(name);
    for (let minute = 0; minute < 60; minute += 1) {
      world.clock.now += MINUTE;
      await world.tick();
    }
    const [row] = await world.rows(name);
    // Its lease is five minutes, and the claim comes at the minute behind it.
    expect((row?.turn ?? 0) - first).toBeLessThanOrEqual(60 / 5);
    expect(row).toMatchObject({ attempts: 0 });
    await changeTopic(world.invocation(), topic, { paused: true }, "test");
    const before = await world.rows(name);
    for (let minute = 0; minute < 20; minute += 1) {
      world.clock.now += MINUTE;
      await world.tick();
    }
    expect(await world.rows(name)).toEqual(before);
  });

  test("recovery: a store that fails at the second of five re-claims strands no row: the next tick goes on", async () => {
    const topics = Array.from({ length: 5 }, () => oneTopic(() => retryLater("later")));
    const faulty = faultyDb();
    const world = createWorld(
      topics.map(({ module }) => module),
      { db: faulty.db },
    );
    for (const { topic, module } of topics) {
      await world.context(module.name).outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
    }
    world.queue.take();
    world.clock.now += 10 * MINUTE;
    let claims = 0;
    faulty.calls = 0;
    faulty.ask = (call) => {
      claims = call;
      return call === 2 ? "fail" : "pass";
    };
    await world.tick();
    const sent = world.queue.take().length;
    expect(claims).toBeGreaterThan(2);
    faulty.ask = () => "pass";
    world.clock.now += MINUTE;
    await world.tick();
    expect(sent + world.queue.take().length).toBe(5);
    for (const { name } of topics) expect(await world.rows(name)).toMatchObject([{ lane: 1, lapses: 1 }]);
  });

  test("recovery: a tick whose first read fails leaves nothing half begun, and the next is whole", async () => {
    const { module, topic, name } = oneTopic(() => {});
    const faulty = faultyDb();
    const world = createWorld([module], { db: faulty.db });
    await DB.batch([...world.context().outbox.enqueue(topic, [{ payload: { n: 1 } }])]);
    world.clock.now += MINUTE;
    faulty.ask = () => "fail";
    await expect(world.tick()).rejects.toThrow();
    expect(world.queue.take()).toEqual([]);
    faulty.ask = () => "pass";
    await world.tick();
    expect(world.queue.take()).toHaveLength(1);
    expect(await world.rows(name)).toMatchObject([{ lane: 1 }]);
  });

  test("bloat: old records go although every tick of an hour dies before it ends, a bounded number each", async () => {
    const died = { now: true };
    const module = defineModule("mortal", {
      async scheduled() {
        if (died.now) await new Promise(() => {});
      },
    });
    const world = createWorld([module], { start: Date.UTC(2027, 5, 1) });
    await DB.prepare("DELETE FROM ticks").run();
    const old = world.clock.now - 30 * DAY;
    await DB.prepare(
      `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
       INSERT INTO ticks (at, started_at, wall_until, modules, ended_at, report)
       SELECT ?1 + i * 60000, ?1 + i * 60000, ?1 + i * 60000 + 40000, '[]', ?1 + i * 60000 + 10, '{}' FROM n`,
    )
      .bind(old)
      .run();
    const count = async () => (await DB.prepare("SELECT count(*) AS n FROM ticks").first<number>("n")) ?? 0;
    for (let minute = 0; minute < 20; minute += 1) {
      const before = await count();
      void world.tick();
      await scheduler.wait(20);
      expect(before - (await count())).toBeLessThanOrEqual(20);
      world.clock.now += MINUTE;
    }
    // Twenty records of ticks that died are there, and four hundred old ones are not.
    expect(await count()).toBeLessThanOrEqual(500 + 20 - 300);
    died.now = false;
  });
});
