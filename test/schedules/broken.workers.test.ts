import * as v from "valibot";
import { beforeEach, describe, expect, test } from "vitest";
import { missingFor } from "../../src/commands/plan-steps.ts";
import { scheduleActor } from "../../src/commands/actor.ts";
import type { Router } from "../../src/commands/router.ts";
import { beginStep } from "../../src/commands/run.ts";
import { type OpenRun, RUN_MS, readOpenRuns } from "../../src/commands/runs.ts";
import { DAY } from "../../src/core/time.ts";
import { createMeter } from "../../src/db/meter.ts";
import { refuse } from "../../src/core/errors.ts";
import { command, defineModule } from "../../src/index.ts";
import { makeGood } from "../../src/schedules/make-good.ts";
import { readOnlyDb } from "../../src/db/read-only.ts";
import { clear, createStage, DB } from "./stage.ts";

beforeEach(clear);

const at = (text: string) => Date.parse(`2026-03-${text}:00.000Z`);
const none = v.strictObject({});

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

describe("what was once broken:", () => {
  test("a command whose answer is a secret is not run as me", async () => {
    const vault = defineModule("vault", {
      commands: [
        command({
          name: "vault.open",
          effect: "write",
          grant: "vault:write",
          help: "Answers a secret.",
          secret: true,
          args: none,
          handle: async () => ({ ok: true, result: { secret: "hush" } }),
        }),
      ],
    });
    const stage = await createStage({ modules: [vault] });
    const refused = await stage.command("amy", "dispatch", { text: "vault open", channel: "inbox:ops" });
    expect(refused).toMatchObject({ code: "secret_answer" });
    const thread = await DB.prepare("SELECT thread FROM messages LIMIT 1").first<string>("thread");
    const refusal = (await stage.messages(thread)).find(({ kind }) => kind === "refusal");
    const asked = await stage.command("amy", "run.as-me", { message: refusal?.id });
    expect(asked).toMatchObject({ code: "secret_answer" });
    expect(await stage.allRuns()).toEqual([]);
  });

  test("a command that ran and answered what is no JSON is said to have succeeded", async () => {
    const circle: Record<string, unknown> = {};
    circle.self = circle;
    for (const result of [{ n: 10n }, circle, { text: "x".repeat(10_000_000) }, undefined, "a\0\ud800"]) {
      await clear();
      const odd = defineModule("odd", {
        commands: [
          command({
            name: "odd.go",
            effect: "write",
            grant: "odd:write",
            help: "Answers oddly.",
            args: none,
            handle: async () => ({ ok: true, result }),
          }),
        ],
      });
      const stage = await createStage({ modules: [odd] });
      await stage.command("amy", "dispatch", { text: "odd go", channel: "inbox:ops" });
      await stage.playAll();
      const [run] = await stage.allRuns();
      expect(run).toMatchObject({ status: "succeeded" });
      expect(() => JSON.parse(run?.result ?? "")).not.toThrow();
    }
  });

  test("a run whose command refuses with a text that no store takes ends as failed, and its text is cut", async () => {
    for (const message of ["x".repeat(3_000_000), "a\0b", "\ud800"]) {
      await clear();
      const no = defineModule("no", {
        commands: [
          command({
            name: "no.go",
            effect: "exec",
            grant: "no:run",
            help: "Refuses.",
            args: none,
            handle: async () => refuse("nope", "field", message),
          }),
        ],
      });
      const stage = await createStage({ modules: [no] });
      await stage.command("amy", "dispatch", { text: "no go", channel: "inbox:ops" });
      await stage.playAll();
      const [run] = await stage.allRuns();
      expect(run).toMatchObject({ status: "failed" });
      expect(run?.error).toMatch(/^nope: [xa\uFFFD]/);
      expect(run?.error?.length).toBeLessThanOrEqual(1024);
      expect(run?.error).not.toContain("\0");
    }
  });

  test.each(["put", "go"])(
    "a text with JSON deeper than the database reads (any %s) is refused, and stops no other schedule",
    async (verb) => {
      const args = v.strictObject({ data: v.unknown() });
      const handle = async () => ({ ok: true as const, result: {} });
      const any = defineModule("any", {
        commands: [
          command({ name: "any.put", effect: "write", grant: "any:write", help: "Takes all.", args, handle }),
          command({ name: "any.go", effect: "exec", grant: "any:run", help: "Takes all.", args, handle }),
        ],
      });
      const stage = await createStage({ modules: [any] });
      const deep = `data:=${"[".repeat(2000)}${"]".repeat(2000)}`;
      await stage.add("deep", "* * * * *", `any ${verb} ${deep}`, { grants: { actions: ["any:run"] } });
      await stage.add("good", "* * * * *", "probe look");
      stage.minutes(1);
      await stage.tick();
      expect(await stage.firings("good")).toMatchObject([{ outcome: "admitted" }]);
      expect(await stage.firings("deep")).toMatchObject([{ outcome: "refused:bad_arguments" }]);
      const said = await stage.command("amy", "dispatch", { text: `any ${verb} data:=1e999`, channel: "inbox:ops" });
      expect(said).toMatchObject({ code: "bad_arguments", field: "data" });
    },
  );

  test("a read command that throws at once when its write is refused answers read_command_writes", async () => {
    const liar = defineModule("liar", {
      commands: [
        command({
          name: "liar.look",
          effect: "read",
          grant: "liar:read",
          help: "Lies.",
          args: none,
          handle: (_, ctx) =>
            ctx.db
              .prepare("DELETE FROM runs")
              .run()
              .then(() => ({ ok: true as const, result: {} })),
        }),
      ],
    });
    const stage = await createStage({ modules: [liar] });
    expect(await stage.command("amy", "liar.look")).toMatchObject({ code: "read_command_writes" });
  });

  test("a write behind a byte order mark is refused", () => {
    for (const sql of [
      "WITH x AS (SELECT 1) \uFEFFINSERT INTO plans SELECT * FROM x",
      "\uFEFFDELETE FROM plans",
      "WITH x AS (SELECT 1)\uFEFFDELETE FROM plans WHERE 1 IN (1) AND (SELECT 1)",
    ]) {
      expect(() => readOnlyDb(DB).prepare(sql), sql).toThrow(/writes/);
    }
  });

  test("a plan's step without a scope asks of a runner of some scopes which one, as every surface does", () => {
    const stock = {
      grant: "stock:write",
      scoped: true,
      name: "stock.set",
      effect: "write" as const,
      personOnly: false,
    };
    const runner = (scopes: string[]) => scheduleActor("n", { actions: ["stock:write"], channels: [], scopes });
    expect(
      missingFor({ command: "stock.set", args: {}, scope: null }, stock as never, runner(["shop-a"])),
    ).not.toBeNull();
    expect(
      missingFor({ command: "stock.set", args: {}, scope: "shop-a" }, stock as never, runner(["shop-a"])),
    ).toBeNull();
    expect(missingFor({ command: "stock.set", args: {}, scope: null }, stock as never, runner([]))).toBeNull();
  });

  test("a write within a text that a router inferred waits for confirmation", async () => {
    const router: Router = () => ({ command: "dispatch", args: { text: "probe change", channel: "inbox:ops" } });
    const stage = await createStage({ router });
    await stage.command("amy", "dispatch", { text: "please change it", channel: "inbox:ops" });
    await stage.playAll();
    await stage.playAll();
    expect(stage.seen).toEqual([]);
  });

  test("a command confirmed by text in the thread that asks runs there", async () => {
    const stage = await createStage();
    await stage.add("n", "0 3 * * *", "probe change", { thread: "standing" });
    stage.to(at("10T03:00"));
    await stage.tick();
    const { standing_thread: thread } = (await stage.row("n")) ?? {};
    const refusal = (await stage.messages(thread ?? "")).find(({ kind }) => kind === "refusal");
    const { confirmation } = await stage.command("amy", "run.as-me", { message: refusal?.id });
    await stage.command("amy", "dispatch", { text: `run confirm ${confirmation}`, channel: "inbox:ops", thread });
    await stage.playAll();
    await stage.playAll();
    expect(stage.seen).toMatchObject([{ command: "change", actor: "http:amy" }]);
  });

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
});
