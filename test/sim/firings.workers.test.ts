import { beforeEach, expect, test } from "vitest";
import { beginStep, executeStep, finishStep } from "../../src/commands/run.ts";
import { latestDue } from "../../src/core/calendar.ts";
import { parseCron } from "../../src/core/cron.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { DEFAULT_LIMITS } from "../../src/core/budget.ts";
import { NO_JOBS } from "../../src/jobs/selection.ts";
import { tick } from "../../src/tick/tick.ts";
import { beginInvocation } from "../../src/outbox/runtime.ts";
import { fireByHand } from "../../src/schedules/by-hand.ts";
import { ALL, clear, createStage, DB, HeldRuns, type Stage } from "../schedules/stage.ts";
import { Random } from "./random.ts";

/**
 * Stored schedules under crashes: overlapping ticks of two versions, presses of fire, people who add, remove, disable and
 * enable, instances that are made twice, die in any step or are never made, and every call to D1 may fail, or land and
 * lose its answer.
 */

/** A seed that failed is run again by VITE_SIM_FIRST=<seed> VITE_SIM_SEEDS=1, and more of them by VITE_SIM_SEEDS=<count>. */
const FIRST = Number(import.meta.env.VITE_SIM_FIRST ?? 1);
const COUNT = Math.min(Number(import.meta.env.VITE_SIM_SEEDS ?? 5), 2_000);
const SEEDS = Array.from({ length: COUNT }, (_, index) => FIRST + index);
const NAMES = ["every", "fifth", "hourly", "standing", "writes"];
const CRONS: Record<string, string> = {
  every: "* * * * *",
  fifth: "*/5 * * * *",
  hourly: "7 * * * *",
  standing: "*/2 * * * *",
  writes: "*/3 * * * *",
};
const AMY = { kind: "user" as const, id: "http:amy", grants: ALL };

beforeEach(clear);

/** D1 as somebody sees it who may die: from one call on nothing arrives any more. */
function mortal(random: () => number, risk: number): D1Database {
  let dead = false;
  const pass = async <T>(work: () => Promise<T>): Promise<T> => {
    const lost = new Error("D1_ERROR: Network connection lost.");
    if (dead) throw lost;
    await scheduler.wait(Math.floor(random() * 2));
    const fate = random();
    if (fate < risk) dead = random() < 0.5;
    if (fate < risk / 2) throw lost;
    const answer = await work();
    if (fate < risk) throw lost;
    return answer;
  };
  const wrap = (statement: D1PreparedStatement): D1PreparedStatement =>
    new Proxy(statement, {
      get(target, name) {
        if (name === "bind") return (...values: unknown[]) => wrap(target.bind(...values));
        if (name === "all" || name === "run") return () => pass(() => target.all());
        const member = Reflect.get(target, name, target);
        return typeof member === "function" ? member.bind(target) : member;
      },
    });
  return new Proxy(DB, {
    get(target, name) {
      if (name === "prepare") return (sql: string) => wrap(target.prepare(sql));
      if (name === "batch") return (statements: D1PreparedStatement[]) => pass(() => target.batch(statements));
      const member = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
}

/** The invocations of somebody who may die. */
function invocations(stage: Stage, random: () => number, risk: number) {
  const runtime = { ...stage.runtime, db: mortal(random, risk) };
  return () => beginInvocation(runtime, stage.clock.now);
}

/** Plays an instance that may die in any of its steps, and may be played again, or by two at once. */
async function playInstance(stage: Stage, id: string, random: () => number, risk: number): Promise<void> {
  const invocation = invocations(stage, random, risk);
  const { dispatcher } = stage;
  try {
    const begun = await beginStep(invocation(), id);
    if (begun === null || random() < risk) return;
    const end = await executeStep(invocation(), dispatcher, begun);
    if (random() < risk) return;
    await finishStep(invocation(), dispatcher, begun, end);
  } catch {
    // The isolate died: who resumes the instance plays it again.
  }
}

async function invariants(stage: Stage, seed: number): Promise<void> {
  const live = await DB.prepare(
    "SELECT thread, count(*) AS n FROM runs WHERE ended_at IS NULL AND thread IS NOT NULL GROUP BY thread HAVING n > 1",
  ).all();
  expect(live.results, `seed ${seed}: a thread has two live runs`).toEqual([]);
  const doubled = await DB.prepare(
    "SELECT schedule, slot FROM firings GROUP BY schedule, slot HAVING count(*) > 1",
  ).all();
  expect(doubled.results, `seed ${seed}: a due minute was fired twice`).toEqual([]);
  // A run of a schedule is its firing's own; one that was fired anew has left a run that never started.
  const stray = await DB.prepare(
    `SELECT r.id FROM runs r WHERE r.actor_kind = 'schedule' AND r.status <> 'not_started'
       AND NOT EXISTS (SELECT 1 FROM firings f WHERE f.run = r.id)`,
  ).all();
  expect(stray.results, `seed ${seed}: a run without its firing`).toEqual([]);
  const written = await DB.prepare("SELECT * FROM runs WHERE command = 'probe.change'").all();
  expect(written.results, `seed ${seed}: a schedule's write became a run`).toEqual([]);
  expect(
    stage.seen.filter(({ command }) => command === "change"),
    `seed ${seed}`,
  ).toEqual([]);
}

test.for(SEEDS)(
  "under crashes (seed %i): no due minute fires twice, no effect happens twice in one run, no thread has two live runs, nothing is lost without being shown, and every run ends",
  async (seed) => {
    const generator = new Random(seed);
    const random = () => generator.next();
    const risk = 0.02 + random() * 0.15;
    const runs = new HeldRuns();
    const stage = await createStage({ start: Date.UTC(2026, 4, 4, 11, 59, 30), runs });
    const add = (name: string) =>
      stage.add(name, CRONS[name] ?? "", name === "writes" ? "probe change" : "probe go", {
        thread: name === "standing" ? "standing" : "new",
      });
    for (const name of NAMES) await add(name);
    const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(random() * list.length)];

    const played = new Set<string>();
    for (let minute = 0; minute < 25; minute += 1) {
      stage.clock.now += random() < 0.05 ? -30 * SECOND : random() < 0.05 ? 20 * MINUTE : MINUTE;
      runs.mode = pick(["take", "take", "take", "refuse", "take and lose"] as const) ?? "take";
      const works: Promise<unknown>[] = [];
      const ticks = 1 + Math.floor(random() * 2);
      for (let n = 0; n < ticks; n += 1) {
        const runtime = { ...stage.runtime, db: mortal(random, risk) };
        works.push(tick(runtime, stage.clock.now, DEFAULT_LIMITS, NO_JOBS, stage.dispatcher));
      }
      for (const [id, status] of runs.made) {
        if (status === "queued" && random() < 0.6) {
          played.add(id);
          works.push(playInstance(stage, id, random, risk));
          if (random() < 0.1) works.push(playInstance(stage, id, random, risk));
        }
      }
      if (random() < 0.3) {
        const invocation = invocations(stage, random, risk)();
        works.push(fireByHand(invocation, stage.dispatcher, AMY, pick(NAMES) ?? ""));
      }
      const name = pick(NAMES.slice(0, 3)) ?? "";
      const whim = random();
      if (whim < 0.05) works.push(stage.command("amy", "schedule.remove", { name }).then(() => add(name)));
      else if (whim < 0.1) works.push(stage.command("amy", "schedule.disable", { name }));
      else if (whim < 0.2) works.push(stage.command("amy", "schedule.enable", { name }));
      await Promise.allSettled(works);
      await invariants(stage, seed);
    }

    // Calm: every instance that was made is played to its end, every run that was admitted gets one or is closed.
    runs.mode = "take";
    for (let minute = 0; minute < 15; minute += 1) {
      stage.minutes(5);
      await stage.tick();
      for (const id of [...runs.made.keys()]) {
        const row = await stage.run(id);
        if (row !== null && row.ended_at === null) await stage.play(id);
      }
    }
    await invariants(stage, seed);
    const left = await DB.prepare("SELECT id, status FROM runs WHERE ended_at IS NULL AND admitted_at < ?1")
      .bind(stage.clock.now - 20 * MINUTE)
      .all();
    expect(left.results, `seed ${seed}: a run never ended`).toEqual([]);

    // An effect happens once in a run: a run that succeeded ran it once, and one that is lost at most once.
    const { results: all } = await DB.prepare("SELECT status, count(*) AS n FROM runs GROUP BY status").all<{
      status: string;
      n: number;
    }>();
    const count = (status: string) => all.find((row) => row.status === status)?.n ?? 0;
    const ran = stage.seen.length;
    expect(ran, `seed ${seed}: ${JSON.stringify(all)}`).toBeGreaterThanOrEqual(count("succeeded"));
    expect(ran, `seed ${seed}: ${JSON.stringify(all)}`).toBeLessThanOrEqual(
      count("succeeded") + count("lost") + count("failed"),
    );

    // Every firing is accounted for: it has a run that ended, or says why it has none, or that it never started.
    const { results: odd } = await DB.prepare(
      `SELECT f.id, f.outcome, r.status FROM firings f LEFT JOIN runs r ON r.id = f.run
       WHERE (f.outcome = 'admitted' AND r.id IS NULL) OR (f.outcome = 'claimed' AND r.status <> 'not_started')
          OR (f.outcome GLOB 'refused:*' AND f.run IS NOT NULL)`,
    ).all();
    expect(odd, `seed ${seed}: a firing is not accounted for`).toEqual([]);
    const { results: shown } = await DB.prepare(
      "SELECT f.id FROM firings f JOIN runs r ON r.id = f.run WHERE f.outcome = 'admitted' AND r.status = 'not_started'",
    ).all();
    expect(shown, `seed ${seed}: a run that never started is not shown`).toEqual([]);

    // No due minute of a row that stood all the time is passed over: each is a firing, or counted as missed by one.
    const cron = parseCron(CRONS.standing ?? "");
    const row = await stage.row("standing");
    if (!cron.ok || row === null) throw new Error("the standing row is gone");
    const due = latestDue(cron.cron, row.created_at, stage.clock.now);
    const firings = await stage.firings("standing");
    const byTick = firings.filter(({ fired_by }) => fired_by === "service:tick");
    const stood = byTick.reduce((sum, { missed }) => sum + 1 + missed, 0);
    const byHand = firings.filter(({ fired_by }) => fired_by !== "service:tick");
    const most = (due?.missed ?? 0) + 1;
    expect(stood + byHand.reduce((sum, { missed }) => sum + missed, 0), `seed ${seed}`).toBeLessThanOrEqual(most);
    expect(stood + byHand.reduce((sum, { missed }) => sum + 1 + missed, 0), `seed ${seed}`).toBeGreaterThanOrEqual(
      most,
    );
  },
);
