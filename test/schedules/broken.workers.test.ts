import { beforeEach, expect, test } from "vitest";
import { beginStep } from "../../src/commands/run.ts";
import { type OpenRun, RUN_MS, readOpenRuns } from "../../src/commands/runs.ts";
import { DAY } from "../../src/core/time.ts";
import { createMeter } from "../../src/db/meter.ts";
import { command, defineModule } from "../../src/index.ts";
import { makeGood } from "../../src/schedules/make-good.ts";
import { clear, createStage, DB } from "./stage.ts";

beforeEach(clear);

const at = (text: string) => Date.parse(`2026-03-${text}:00.000Z`);

const ALL = { actions: "all" as const, channels: "all" as const, scopes: "all" as const };
const LONG_GRANTS = {
  actions: [...Array.from({ length: 199 }, (_, n) => `${`a${n}`.padEnd(63, "x")}:read`), "probe:run"],
  channels: Array.from({ length: 200 }, (_, n) => `webhook:${`c${n}`.padEnd(63, "x")}`),
  scopes: Array.from({ length: 200 }, (_, n) => `s${n}`.padEnd(128, "x")),
};

/** The database, and the bytes of the longest text that a statement was given. */
function measured() {
  let longest = 0;
  const db = new Proxy(DB, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      if (name !== "prepare") return typeof member === "function" ? member.bind(target) : member;
      return (sql: string) => {
        const statement = target.prepare(sql);
        const bind = statement.bind.bind(statement);
        statement.bind = (...values: unknown[]) => {
          const texts = values.filter((value) => typeof value === "string");
          longest = Math.max(longest, ...texts.map((text) => new TextEncoder().encode(text).length));
          return bind(...values);
        };
        return statement;
      };
    },
  });
  return { db, longest: () => longest };
}

/** The database, which loses the answer of each call that writes, once it has landed. */
function losing(writes: RegExp): D1Database {
  const lost = (): never => {
    throw new Error("D1_ERROR: Network connection lost.");
  };
  const wrap = (statement: D1PreparedStatement, sql: string): D1PreparedStatement => {
    const real = statement.bind.bind(statement);
    statement.bind = (...values: unknown[]) => wrap(real(...values), sql);
    // Read through whatever is wrapped around it.
    Object.assign(statement, { sql });
    const all = statement.all.bind(statement);
    statement.all = (async () => {
      const answer = await all();
      return writes.test(sql) ? lost() : answer;
    }) as typeof statement.all;
    return statement;
  };
  return new Proxy(DB, {
    get(target, name) {
      if (name === "prepare") return (sql: string) => wrap(target.prepare(sql), sql);
      if (name === "batch")
        return async (statements: D1PreparedStatement[]) => {
          const answer = await target.batch(statements);
          return statements.some((one) => writes.test((one as unknown as { sql: string }).sql)) ? lost() : answer;
        };
      const member = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
}

test.each(["run.cancel", "schedule.fire", "run.confirm", "schedule.remove", "schedule.enable"])(
  "%s whose answer is lost after its commit has been done, and is done once",
  async (name) => {
    const stage = await createStage();
    await stage.add("n", "0 3 * * *", name === "run.confirm" ? "probe change" : "probe go", { thread: "standing" });
    stage.to(at("10T03:00"));
    await stage.tick();
    const thread = (await stage.row("n"))?.standing_thread ?? "";
    const message = (await stage.messages(thread)).find(({ kind }) => kind === "refusal")?.id;
    const asked = name === "run.confirm" ? await stage.command("amy", "run.as-me", { message }) : {};
    if (name === "schedule.fire") await stage.playAll();
    if (name === "schedule.enable") await stage.command("amy", "schedule.disable", { name: "n" });
    if (name === "schedule.fire") stage.minutes(1);
    const before = (await stage.allRuns()).length;
    const args =
      name === "run.cancel"
        ? { id: (await stage.allRuns())[0]?.id }
        : name === "run.confirm"
          ? { id: asked.confirmation }
          : { name: "n" };
    await stage.redeploy([{ subject: "amy", grants: ALL }], losing(/^\s*(?:INSERT|UPDATE|DELETE)/));
    const lost = await stage.http("amy", "POST", `/api/commands/${name}`, args);
    expect(lost.json.ok).not.toBe(true);
    await stage.redeploy([{ subject: "amy", grants: ALL }]);
    const again = await stage.command("amy", name, args);
    for (let minute = 0; minute < 2; minute += 1) {
      stage.minutes(1);
      await stage.tick();
      await stage.playAll();
    }
    const runs = (await stage.allRuns()).length - before;
    const row = await stage.row("n");
    expect({
      code: again.code ?? null,
      runs,
      seen: stage.seen.length,
      enabled: row?.enabled ?? null,
    }).toEqual(
      {
        "run.cancel": { code: "no_live_run", runs: 0, seen: 0, enabled: 1 },
        "schedule.fire": { code: null, runs: 1, seen: 2, enabled: 1 },
        "run.confirm": { code: "already_run", runs: 1, seen: 1, enabled: 1 },
        "schedule.remove": { code: "not_found", runs: 0, seen: 1, enabled: null },
        "schedule.enable": { code: null, runs: 0, seen: 1, enabled: 1 },
      }[name],
    );
  },
);

test("a run ends at the end of its time although no tick is quiet enough to look after its instance", async () => {
  const stage = await createStage();
  await stage.add("gone", "0 3 * * *", "probe go", { thread: "standing" });
  stage.to(at("10T03:00"));
  await stage.tick();
  const [run] = await stage.allRuns();
  await beginStep(stage.invocation(), run?.id ?? "");
  stage.runs.made.set(run?.id ?? "", "running");
  const busyTick = async () => {
    const { results } = await readOpenRuns(DB, stage.clock.now).all<OpenRun>();
    expect(results).toHaveLength(1);
    await makeGood(stage.invocation({ ...createMeter(), queries: 30 }), stage.dispatcher, results);
  };
  stage.to(stage.clock.now + RUN_MS - 1);
  await busyTick();
  expect(await stage.run(run?.id ?? null)).toMatchObject({ status: "running" });
  stage.to(stage.clock.now + 1);
  await busyTick();
  expect(await stage.run(run?.id ?? null)).toMatchObject({ status: "lost" });
});

test("a clock that was ahead and steps back leaves no run without its instance, and none running that has gone", async () => {
  const stage = await createStage();
  const real = stage.clock.now;
  for (const name of ["late", "gone"]) await stage.add(name, "0 3 * * *", "probe go", { thread: "standing" });
  stage.to(real + DAY / 3);
  const refuse = stage.runs.createBatch.bind(stage.runs);
  stage.runs.createBatch = async (asked) => {
    stage.runs.refused.add(asked.instances[0]?.id ?? "");
    return refuse(asked);
  };
  await stage.tick();
  stage.runs.createBatch = refuse;
  const [refused] = [...stage.runs.refused];
  const [made = ""] = [...stage.runs.made.keys()];
  stage.runs.refused.clear();
  await beginStep(stage.invocation(), made);
  stage.runs.made.set(made, "errored");
  stage.to(real);
  for (let minute = 0; minute < 2; minute += 1) {
    stage.minutes(1);
    await stage.tick();
    await stage.playAll();
  }
  expect(await stage.run(refused ?? null)).toMatchObject({ status: "succeeded" });
  expect(await stage.run(made)).toMatchObject({ status: "lost" });
});

test("a schedule that was added is said to be, also where what its text comes to cannot be told", async () => {
  const throwing = defineModule("odd", {
    commands: [
      command({
        name: "odd.go",
        effect: "exec",
        grant: "odd:run",
        help: "Has a schema that throws.",
        args: {
          "~standard": {
            version: 1,
            vendor: "odd",
            validate: () => {
              throw new Error("it broke");
            },
          },
        } as never,
        handle: async () => ({ ok: true, result: {} }),
      }),
    ],
  });
  const stage = await createStage({ modules: [throwing] });
  expect(await stage.add("n", "* * * * *", "odd go")).toMatchObject({
    name: "n",
    wouldBe: { outcome: "unknown", detail: "Error: it broke" },
  });
  await stage.add("good", "* * * * *", "probe look");
  stage.minutes(1);
  await stage.tick();
  expect((await stage.firings()).map(({ outcome }) => outcome).sort()).toEqual(["admitted", "refused:invalid_row"]);
});

test("only who closed a run that never began says so", async () => {
  const stage = await createStage();
  stage.runs.mode = "refuse";
  await stage.add("n", "0 3 * * *", "probe go");
  stage.to(at("10T03:00"));
  await stage.tick();
  stage.minutes(11);
  const { results } = await readOpenRuns(DB, stage.clock.now).all<OpenRun>();
  stage.logs.length = 0;
  await makeGood(stage.invocation(), stage.dispatcher, results);
  await makeGood(stage.invocation(), stage.dispatcher, results);
  expect(stage.logs.map(({ event }) => event)).toEqual(["run_not_started", "schedule_not_started"]);
  expect(await stage.firings()).toMatchObject([{ outcome: "claimed" }]);
});

test("idle standing threads keep no other thread from being forgotten", async () => {
  const stage = await createStage();
  for (let n = 0; n < 25; n += 1) await stage.add(`s${n}`, "0 0 1 1 *", "probe look", { thread: "standing" });
  stage.minutes(1);
  await stage.command("amy", "dispatch", { text: "probe nothing", channel: "inbox:ops" });
  const old = await DB.prepare(
    "SELECT id FROM threads WHERE id NOT IN (SELECT standing_thread FROM schedules)",
  ).first<string>("id");
  stage.to(stage.clock.now + 91 * DAY);
  for (let n = 0; n < 5; n += 1) {
    await stage.command("amy", "dispatch", { text: "probe nothing", channel: "inbox:ops" });
  }
  expect(await DB.prepare("SELECT 1 FROM threads WHERE id = ?1").bind(old).first()).toBeNull();
  expect(
    await DB.prepare("SELECT count(*) AS n FROM threads WHERE id IN (SELECT standing_thread FROM schedules)").first(
      "n",
    ),
  ).toBe(25);
});

test("old firings of a schedule that was removed go too, all of them, a few each time that another fires", async () => {
  const stage = await createStage();
  await stage.add("gone", "* * * * *", "probe look");
  for (let minute = 0; minute < 25; minute += 1) {
    stage.minutes(1);
    await stage.tick();
  }
  await stage.command("amy", "schedule.remove", { name: "gone" });
  await stage.add("weekly", "0 3 * * 1", "probe look");
  stage.to(at("16T03:00"));
  await stage.tick();
  expect(await stage.firings("gone")).toHaveLength(25);
  for (let week = 1; week <= 6; week += 1) {
    stage.to(at("16T03:00") + week * 7 * DAY);
    await stage.tick();
  }
  expect(await stage.firings("gone")).toEqual([]);
  expect(await stage.firings("weekly")).toHaveLength(7);
});

test("one row with odd instants is shown as it is, and stops no other", async () => {
  for (const [column, value] of [
    ["created_at", 1.7e18],
    ["anchored_at", 1.7e18],
    ["anchored_at", -9e15],
    ["anchored_at", 0],
    ["last_slot", 9e15],
    ["last_slot", -9e15],
    ["created_at", -9e15],
  ] as const) {
    await clear();
    const stage = await createStage();
    await stage.add("bad", "* * * * *", "probe look");
    await stage.add("good", "* * * * *", "probe look");
    await DB.prepare(`UPDATE schedules SET ${column} = ?1 WHERE name = 'bad'`).bind(BigInt(value).toString()).run();
    stage.minutes(1);
    const report = await stage.tick();
    expect(report.failed, `${column} ${value}`).toBe(0);
    expect(await stage.firings("good"), `${column} ${value}`).toHaveLength(1);
    const list = await stage.command("amy", "schedule.list");
    expect(list.items, `${column} ${value}`).toHaveLength(2);
    expect((await stage.http("amy", "GET", "/api/schedules")).status, `${column} ${value}`).toBe(200);
  }
});

test.each([
  ["name", "x".repeat(1_000_000)],
  ["name", ""],
  ["text", "x".repeat(1_000_000)],
  ["channel", "x".repeat(1_000_000)],
  ["grants", "[".repeat(5_000)],
  ["created_by", "x".repeat(1_000_000)],
])("a row with an odd %s is refused, shown as it is, and stops no other", async (column, value) => {
  const stage = await createStage();
  await stage.add("bad", "* * * * *", "probe look", { thread: "standing" });
  await stage.add("good", "* * * * *", "probe look");
  await DB.prepare(`UPDATE schedules SET ${column} = ?1 WHERE name = 'bad'`).bind(value).run();
  stage.minutes(1);
  await stage.tick();
  expect(await stage.firings("good")).toHaveLength(1);
  const others = (await stage.firings()).filter(({ name }) => name !== "good");
  expect(others).toMatchObject([{ outcome: expect.stringMatching(/^refused:(invalid_row|author_lost_grant)$/) }]);
  expect((await stage.command("amy", "schedule.list")).items).toHaveLength(2);
});

test("a schedule that is removed while it is fired by hand again starts no run", async () => {
  const stage = await createStage();
  await stage.add("n", "0 3 * * *", "probe go", { thread: "standing" });
  stage.to(at("10T03:00"));
  stage.runs.mode = "refuse";
  await stage.tick();
  stage.minutes(11);
  await stage.tick();
  stage.runs.mode = "take";
  expect((await stage.firings("n"))[0]).toMatchObject({ outcome: "claimed" });
  // Removed between the press's read and its commit.
  let calls = 0;
  const db = new Proxy(DB, {
    get(target, name) {
      if (name === "batch")
        return async (statements: D1PreparedStatement[]) => {
          calls += 1;
          if (calls === 2) await DB.prepare("DELETE FROM schedules").run();
          return target.batch(statements);
        };
      const member = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
  await stage.redeploy([{ subject: "amy", grants: { actions: "all", channels: "all", scopes: "all" } }], db);
  const answer = await stage.command("amy", "schedule.fire", { name: "n" });
  expect(calls).toBeGreaterThan(1);
  expect((await stage.allRuns()).filter(({ status }) => status === "admitted")).toEqual([]);
  expect(answer).toMatchObject({ code: "not_found" });
});

test.each([
  ["plain letters", "a", {}],
  ["backslashes", "\\", {}],
  ["quotes", '"', {}],
  ["two bytes a letter", "é", {}],
  ["four bytes a letter", "𝕏", {}],
  ["control characters", "\u0001", {}],
  ["long grants", "a", LONG_GRANTS],
])(
  "a hundred due rows of the longest texts (%s) stay within the tick's limits, and all fire in their turn",
  async (_, fill, grants) => {
    const stage = await createStage();
    const letters = fill.repeat(Math.floor((8192 - 30) / new TextEncoder().encode(fill).length));
    const text = `probe ${grants === LONG_GRANTS ? "go" : "change"} text='${letters}'`;
    const rows = Array.from({ length: 100 }, (_, n) => stage.add(`n${n}`, "* * * * *", text, { grants }));
    for (const one of await Promise.all(rows)) expect(one).toMatchObject({ id: expect.any(String) });
    const { db, longest } = measured();
    await stage.redeploy([{ subject: "amy", grants: ALL }], db);
    const fired = new Set<string>();
    for (let minute = 0; minute < 8 && fired.size < 100; minute += 1) {
      stage.minutes(1);
      const report = await stage.tick();
      expect(report.failed).toBe(0);
      expect(report.calls).toBeLessThanOrEqual(10);
      expect(report.queries).toBeLessThanOrEqual(50);
      for (const { name } of await stage.firings()) fired.add(name);
    }
    expect(fired.size).toBe(100);
    expect(longest()).toBeLessThan(2_000_000);
  },
);
