import { beforeEach, describe, expect, test } from "vitest";
import { beginInvocation } from "../../src/outbox/runtime.ts";
import { fireByHand } from "../../src/schedules/by-hand.ts";
import { clear, createStage, DB, HeldRuns } from "./stage.ts";

beforeEach(clear);

const at = (text: string) => Date.parse(`2026-03-${text}:00.000Z`);
const AMY = {
  kind: "user" as const,
  id: "http:amy",
  grants: { actions: "all" as const, channels: "all" as const, scopes: [] },
};

/** What becomes of a call to D1: it goes through, it never arrives, or it lands and its answer is lost. */
type Fate = "pass" | "fail" | "lose";

/** The real D1 behind a gate: each call waits until the test lets it through, with a fate. */
function gated() {
  const waiting: { go: (fate: Fate) => void }[] = [];
  const pass = <T>(work: () => Promise<T>): Promise<T> =>
    new Promise((resolve, reject) => {
      waiting.push({
        go: (fate) => {
          const lost = () => reject(new Error("D1_ERROR: Network connection lost."));
          if (fate === "fail") lost();
          else work().then(fate === "lose" ? lost : resolve, reject);
        },
      });
    });
  const wrap = (statement: D1PreparedStatement): D1PreparedStatement =>
    new Proxy(statement, {
      get(target, name) {
        if (name === "bind") return (...values: unknown[]) => wrap(target.bind(...values));
        if (name === "all" || name === "run") return () => pass(() => target.all());
        const member = Reflect.get(target, name, target);
        return typeof member === "function" ? member.bind(target) : member;
      },
    });
  const db = new Proxy(DB, {
    get(target, name) {
      if (name === "prepare") return (sql: string) => wrap(target.prepare(sql));
      if (name === "batch") return (statements: D1PreparedStatement[]) => pass(() => target.batch(statements));
      const member = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
  return { db, waiting };
}

/** Somebody whose calls to D1 the test lets through one by one. */
function actor(work: (db: D1Database) => Promise<unknown>) {
  const gate = gated();
  const state = { done: false };
  const ended = work(gate.db)
    .catch((error: unknown) => error)
    .finally(() => {
      state.done = true;
    });
  /** Waits for the next call. False: there is none, the work has ended. */
  const ready = async () => {
    while (gate.waiting.length === 0 && !state.done) await new Promise((resolve) => setTimeout(resolve, 0));
    return gate.waiting.length > 0;
  };
  return {
    ended,
    ready,
    /** Lets one call through and waits until the next one, or the end. False: there was none. */
    async step(fate: Fate = "pass") {
      if (!(await ready())) return false;
      gate.waiting.shift()?.go(fate);
      await ready();
      return true;
    },
  };
}

/** All orders in which the steps of two actors can follow one another: of lengths a and b, C(a+b, a). */
function orders(a: number, b: number): ("a" | "b")[][] {
  if (a === 0) return [Array(b).fill("b")];
  if (b === 0) return [Array(a).fill("a")];
  return [
    ...orders(a - 1, b).map((rest) => ["a" as const, ...rest]),
    ...orders(a, b - 1).map((rest) => ["b" as const, ...rest]),
  ];
}

/** How many calls somebody makes who is alone. */
async function callsOf(prepare: () => Promise<(db: D1Database) => Promise<unknown>>): Promise<number> {
  const one = actor(await prepare());
  let calls = 0;
  while (await one.step()) calls += 1;
  return calls;
}

async function due(names: readonly string[], text = "probe look") {
  await clear();
  const runs = new HeldRuns();
  const stage = await createStage({ start: at("10T02:59"), runs });
  for (const name of names)
    await stage.add(name, "0 3 * * *", text, { thread: name === "standing" ? "standing" : "new" });
  stage.to(at("10T03:00") + 1_000);
  const tick = async (db: D1Database) => {
    const version = await stage.version(db);
    return stage.tick(undefined, version);
  };
  return { stage, work: tick };
}

/** Plays two actors step by step in one order. One that has seen the other's work may have fewer steps than alone. */
async function play(order: readonly ("a" | "b")[], a: (db: D1Database) => Promise<unknown>, b: typeof a) {
  const both = { a: actor(a), b: actor(b) };
  for (const who of order) await both[who].step();
  for (const one of [both.a, both.b]) while (await one.step());
  return Promise.all([both.a.ended, both.b.ended]);
}

describe("at every order of the steps of", () => {
  test("two ticks: each due minute fires once, with one run and one instance", async () => {
    const names = ["new", "standing"];
    const calls = await callsOf(async () => (await due(names)).work);
    // A tick opens its record, claims and fires in one batch, and closes its record.
    expect(calls).toBe(3);
    for (const order of orders(calls, calls)) {
      const { stage, work } = await due(names);
      await play(order, work, work);
      const firings = await stage.firings();
      expect(firings.map(({ name, outcome }) => [name, outcome]).sort(), order.join("")).toEqual([
        ["new", "admitted"],
        ["standing", "admitted"],
      ]);
      expect(await stage.allRuns(), order.join("")).toHaveLength(2);
      expect(stage.runs.made.size, order.join("")).toBe(2);
      await stage.playAll();
      expect(stage.seen.map(({ actor }) => actor).sort(), order.join("")).toEqual([
        "schedule:new",
        "schedule:standing",
      ]);
    }
  });

  test.each(["due", "claimed and not started"])("a tick and a press of fire (%s): one run", async (how) => {
    const prepare = async () => {
      const { stage, work } = await due(["standing"]);
      if (how !== "due") {
        stage.runs.mode = "refuse";
        await stage.tick();
        stage.runs.mode = "take";
        stage.minutes(11);
      }
      const hand = async (db: D1Database) => {
        const { runtime, dispatcher } = await stage.version(db);
        return fireByHand(beginInvocation(runtime, stage.clock.now), dispatcher, AMY, "standing");
      };
      return { stage, tick: work, hand };
    };
    const ticks = await callsOf(async () => (await prepare()).tick);
    const presses = await callsOf(async () => (await prepare()).hand);
    expect(presses).toBeGreaterThan(1);
    for (const order of orders(ticks, presses)) {
      const { stage, tick, hand } = await prepare();
      const [, answer] = await play(order, tick, hand);
      await stage.playAll();
      expect(stage.seen, `${order.join("")} ${JSON.stringify(answer)}`).toHaveLength(1);
      expect(await stage.firings(), order.join("")).toHaveLength(1);
      expect((await stage.firings())[0]?.outcome, order.join("")).toBe("admitted");
    }
  });
});

describe("a tick that dies, or loses an answer, at each of its calls", () => {
  test.each(["fail", "lose"] as const)("(%s): no firing is lost, none is doubled, and each run ends", async (fate) => {
    const names = ["new", "standing"];
    const calls = await callsOf(async () => (await due(names)).work);
    for (let dies = 0; dies < calls; dies += 1) {
      const { stage, work } = await due(names);
      const tick = actor(work);
      for (let call = 0; call < dies; call += 1) await tick.step();
      // Who dies makes no more calls that arrive.
      for (let next: Fate = fate; await tick.step(next); next = "fail");
      await tick.ended;
      // The next ticks make good, and fire nothing twice.
      for (let minute = 0; minute < 3; minute += 1) {
        stage.minutes(1);
        await stage.tick();
        await stage.playAll();
      }
      const firings = await stage.firings();
      expect(firings.map(({ name, slot, outcome }) => [name, slot, outcome]).sort(), `${fate} at ${dies}`).toEqual([
        ["new", at("10T03:00"), "admitted"],
        ["standing", at("10T03:00"), "admitted"],
      ]);
      const runs = await stage.allRuns();
      expect(
        runs.map(({ status }) => status),
        `${fate} at ${dies}`,
      ).toEqual(["succeeded", "succeeded"]);
      expect(stage.seen, `${fate} at ${dies}`).toHaveLength(2);
    }
  });

  test("between the claim and the instance (the Workflow refuses, hangs, or loses its answer): the next tick makes the same instance, once", async () => {
    for (const mode of ["refuse", "take and lose"] as const) {
      const { stage } = await due(["new"]);
      stage.runs.mode = mode;
      await stage.tick();
      stage.runs.mode = "take";
      stage.minutes(1);
      await stage.tick();
      expect(stage.runs.made.size, mode).toBe(1);
      await stage.playAll();
      stage.minutes(1);
      await stage.tick();
      expect(
        (await stage.firings()).map(({ outcome }) => outcome),
        mode,
      ).toEqual(["admitted"]);
      expect(stage.seen, mode).toHaveLength(1);
    }
  });

  test("one instance that is refused keeps no other from being made", async () => {
    const { stage } = await due(["a", "b", "c"]);
    const refuse = stage.runs.createBatch.bind(stage.runs);
    stage.runs.createBatch = async (asked) => {
      stage.runs.refused.add(asked.instances[1]?.id ?? "");
      return refuse(asked);
    };
    const report = await stage.tick();
    expect(report.failed).toBe(1);
    expect(stage.runs.made.size).toBe(2);
  });
});

describe("a press of fire", () => {
  test("eight times at once beside two ticks makes one run, whatever comes first", async () => {
    for (let round = 0; round < 8; round += 1) {
      const { stage } = await due(["new"]);
      const press = () => fireByHand(stage.invocation(), stage.dispatcher, AMY, "new");
      const ticks = [stage.tick(), stage.tick()];
      const presses = Array.from({ length: 8 }, press);
      const works = round % 2 === 0 ? [...ticks, ...presses] : [...presses, ...ticks];
      await Promise.all(works);
      const answers = await Promise.all(presses);
      expect(await stage.allRuns()).toHaveLength(1);
      expect(await stage.firings()).toHaveLength(1);
      const runs = new Set(
        answers.map((answer) => (answer.ok ? (answer.result as { runId: string }).runId : answer.code)),
      );
      expect(runs).toEqual(new Set([(await stage.allRuns())[0]?.id]));
    }
  });

  test("a firing that was claimed and never started is dispatched once, by eight presses beside a tick", async () => {
    const { stage } = await due(["standing"]);
    stage.runs.mode = "refuse";
    await stage.tick();
    stage.minutes(11);
    await stage.tick();
    expect((await stage.firings())[0]).toMatchObject({ outcome: "claimed" });
    stage.runs.mode = "take";
    const presses = Array.from({ length: 8 }, () => fireByHand(stage.invocation(), stage.dispatcher, AMY, "standing"));
    await Promise.all([...presses, stage.tick()]);
    const [firing] = await stage.firings();
    expect(firing).toMatchObject({ outcome: "admitted", refires: 1, refired_by: "http:amy" });
    expect((await stage.allRuns()).map(({ status }) => status).sort()).toEqual(["admitted", "not_started"]);
    await stage.playAll();
    expect(stage.seen).toHaveLength(1);
  });

  test("ten minutes have passed and no tick has said so yet: of the hand and the tick, one wins", async () => {
    const { stage } = await due(["standing"]);
    stage.runs.mode = "refuse";
    await stage.tick();
    stage.runs.mode = "take";
    stage.minutes(11);
    await Promise.all([stage.tick(), fireByHand(stage.invocation(), stage.dispatcher, AMY, "standing")]);
    await stage.playAll();
    expect(stage.seen).toHaveLength(1);
    expect((await stage.firings())[0]).toMatchObject({ refires: 1 });
    // An instance that begins late, of the run that was closed, does nothing.
    const closed = (await stage.allRuns()).find(({ status }) => status === "not_started");
    expect(await stage.play(closed?.id ?? "")).toBe("stale");
    expect(stage.seen).toHaveLength(1);
  });

  test("pressed on a schedule that is off → it fires; on a refused minute → it is dispatched again once it may", async () => {
    const { stage } = await due(["new"]);
    await stage.command("amy", "schedule.disable", { name: "new" });
    expect(await stage.command("amy", "schedule.fire", { name: "new" })).toMatchObject({ outcome: "admitted" });
    expect(await stage.command("amy", "schedule.fire", { name: "nobody" })).toMatchObject({ code: "not_found" });
  });
});

test("adding the same name eight times at once makes one row, and seven are told so", async () => {
  const stage = await createStage();
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => stage.add("once", "* * * * *", "probe look", { thread: "standing" })),
  );
  expect(answers.filter(({ code }) => code === undefined)).toHaveLength(1);
  expect(answers.filter(({ code }) => code === "name_taken")).toHaveLength(7);
  expect(await DB.prepare("SELECT count(*) AS n FROM schedules").first("n")).toBe(1);
  expect(await DB.prepare("SELECT count(*) AS n FROM threads").first("n")).toBe(1);
});
