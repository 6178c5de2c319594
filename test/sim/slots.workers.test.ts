import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import { latestDue } from "../../src/core/calendar.ts";
import { MINUTE, SECOND } from "../../src/core/time.ts";
import { job } from "../../src/jobs/catalog.ts";
import { dueSlot } from "../../src/jobs/due.ts";
import type { ActiveJob } from "../../src/jobs/selection.ts";
import {
  type Completion,
  claimSlots,
  completeSlot,
  type DueSlot,
  type JobRow,
  readJobs,
  resumeJob,
  STOP_AFTER,
  type Slot,
  startSlot,
  stopJob,
} from "../../src/jobs/slots.ts";
import { Broken } from "./ledger.ts";
import { Random } from "./random.ts";

/**
 * Slots of jobs under crashes: ticks that overlap, handed over twice, late or never, completions that come late, people
 * who stop and resume, a clock that steps, and every call to D1 may fail, land late, or land and lose its answer. The
 * real statements over the real local D1, one call at a time, in an order that the seed decides.
 *
 * A seed that failed is run again by VITE_SIM_FIRST=<seed> VITE_SIM_SEEDS=1.
 */
const FIRST = Number(import.meta.env.VITE_SIM_FIRST ?? 1);
const SEEDS = Number(import.meta.env.VITE_SIM_SEEDS ?? 20);
/** Choices of one seed before the calm. */
const CHOICES = 160;
/** Invocations under way at once. */
const MOST_ACTORS = 5;
const START = Date.UTC(2026, 5, 1, 11, 58);

const DB = (env as unknown as { DB: D1Database }).DB;
const CRONS = { minutely: "* * * * *", fifth: "*/5 * * * *", odd: "7,9,38 * * * *" } as const;
const JOBS: ActiveJob[] = Object.entries(CRONS).map(([id, cron]) => {
  const work = { kind: "module" as const, handle: async () => {} };
  return { job: job({ id, cron, processor: work }), kind: "module", work };
});
const IDS = JOBS.map(({ job: { id } }) => id);

interface SlotRow {
  job: string;
  slot: number;
  generation: number;
  missed: number;
  result: string | null;
  progress: boolean;
  started_at: number | null;
  deadline: number;
}
interface Seen {
  jobs: Map<string, JobRow>;
  slots: Map<string, SlotRow>;
}
type Fate = "pass" | "error" | "answer lost" | "late" | "crash before" | "crash after";

/** What a call is about, for the promises that depend on it. `now`: what its caller takes the time to be, ms. */
type Call = { now: number } & (
  | { kind: "read" | "claim" | "stop" | "resume" }
  | { kind: "start" | "complete"; slot: Slot; completion?: Completion }
);

interface Gate {
  actor: { name: string; dead: boolean };
  call: Call;
  statements: readonly D1PreparedStatement[];
  resolve(results: D1Result[]): void;
  reject(error: Error): void;
}

class World {
  readonly random: Random;
  readonly clock = { now: START };
  readonly trace: string[] = [];
  gates: Gate[] = [];
  late: Gate[] = [];
  messages: Slot[] = [];
  actors = 0;
  /** Slots that were claimed, started, ended, by how; and what people did. */
  readonly total = { claimed: 0, started: 0, unknown: 0, stops: 0, older: 0 };
  #seen: Seen = { jobs: new Map(), slots: new Map() };
  /** Our own count of what failed in a row. */
  readonly #failures = new Map<string, number>();
  /** Due minutes that a claim passed that stopped its job instead: they have no slot. */
  readonly #swallowed = new Map<string, number>();
  readonly #first = new Map<string, number>();

  constructor(seed: number) {
    this.random = new Random(seed);
  }

  /** Starts somebody. It runs until its first call. */
  async begin(name: string, work: (db: (call: Call) => D1Database) => Promise<void>): Promise<void> {
    const actor = { name: `#${this.trace.length} ${name}`, dead: false };
    this.actors += 1;
    this.trace.push(`${actor.name} begins at ${this.clock.now}`);
    const db = (call: Call) =>
      ({
        prepare: (sql: string) => DB.prepare(sql),
        batch: (statements: D1PreparedStatement[]) =>
          new Promise((resolve, reject) => {
            if (actor.dead) return;
            this.gates.push({ actor, call, statements, resolve, reject });
          }),
      }) as unknown as D1Database;
    work(db)
      .catch(() => {})
      .finally(() => {
        this.actors -= 1;
      });
    await quiet();
  }

  async open(gate: Gate, fate: Fate): Promise<void> {
    this.gates = this.gates.filter((one) => one !== gate);
    this.trace.push(`${gate.actor.name}: ${gate.call.kind} (${fate}) at ${this.clock.now}`);
    if (fate === "late") this.late.push(gate);
    const made = fate === "pass" || fate === "answer lost" || fate === "crash after";
    const results = made ? await this.#make(gate) : [];
    if (fate === "pass") gate.resolve(results);
    else if (fate.startsWith("crash")) {
      gate.actor.dead = true;
      this.actors -= 1;
    } else gate.reject(new Error("D1_ERROR: Network connection lost."));
    await quiet();
  }

  async land(): Promise<void> {
    const gate = this.late.splice(this.random.whole(0, this.late.length - 1), 1)[0];
    if (gate !== undefined) await this.#make(gate);
  }

  async #make({ call, statements }: Gate): Promise<D1Result[]> {
    const results = await DB.batch([
      ...statements,
      DB.prepare("SELECT * FROM jobs"),
      DB.prepare("SELECT * FROM slots"),
    ]);
    const slots = (results.pop()?.results ?? []) as unknown as SlotRow[];
    const jobs = (results.pop()?.results ?? []) as unknown as JobRow[];
    const before = this.#seen;
    this.#seen = {
      jobs: new Map(jobs.map((row) => [row.id, row])),
      slots: new Map(slots.map((row) => [`${row.job} ${row.slot}`, row])),
    };
    this.#hold(call, before, this.#seen);
    return results;
  }

  /** The promises, of one call: what it found and what it left. */
  #hold(call: Call, before: Seen, after: Seen): void {
    const hold = (fine: boolean, what: string) => {
      if (!fine) throw new Broken(what);
    };
    for (const [key, old] of before.slots) {
      const row = after.slots.get(key);
      hold(row !== undefined && row.generation === old.generation, `${key} was claimed twice`);
      hold(old.result === null || row?.result === old.result, `${key} ended twice: ${old.result}, ${row?.result}`);
      hold(old.started_at === null || row?.started_at === old.started_at, `${key} was started twice`);
    }
    for (const [id, row] of after.jobs) {
      const old = before.jobs.get(id);
      const claimed = row.generation - (old?.generation ?? 0);
      hold(claimed === 0 || claimed === 1, `${id}: its generation went by ${claimed}`);
      hold((row.last_slot ?? 0) >= (old?.last_slot ?? 0), `${id}: its last slot went back`);
      hold(claimed === 0 || call.kind === "claim", `${id} was claimed by a ${call.kind}`);
      if (claimed === 1) this.#claimed(call.now, id, old, row, after);
      this.#count(call, id, before, after);
      hold(row.failures === this.#failures.get(id), `${id}: ${row.failures} failures, ${this.#failures.get(id)} seen`);
      hold(row.failures < STOP_AFTER || row.stopped_at !== null, `${id} goes on after ${row.failures} failures`);
      const stopped = row.stopped_at !== null && (old?.stopped_at ?? null) === null;
      if (stopped && row.stopped_by === "service:tick") {
        this.total.stops += 1;
        hold(row.failures >= STOP_AFTER, `${id} was stopped after ${row.failures} failures`);
      }
      const open = [...after.slots.values()].filter((slot) => slot.job === id && slot.result === null);
      hold(open.length <= 1, `${id} has ${open.length} open slots`);
    }
    if (call.kind === "start") this.#started(call, before, after);
    if (call.kind === "complete" && before.jobs.get(call.slot.job)?.generation !== call.slot.generation) {
      this.total.older += 1;
      hold(JSON.stringify([...before.jobs]) === JSON.stringify([...after.jobs]), "an older completion changed a job");
      hold(
        JSON.stringify([...before.slots]) === JSON.stringify([...after.slots]),
        "an older completion changed a slot",
      );
    }
  }

  #claimed(now: number, id: string, old: JobRow | undefined, row: JobRow, after: Seen): void {
    if (old !== undefined && old.stopped_at !== null) throw new Broken(`${id} was claimed while it was stopped`);
    if (old?.claimed === 1 && (old.lease_until ?? 0) > now) throw new Broken(`${id} was claimed under a living lease`);
    const slot = after.slots.get(`${id} ${row.last_slot}`);
    if (row.stopped_at === null) {
      if (slot?.generation !== row.generation) throw new Broken(`${id}: a claim without its slot`);
      this.total.claimed += 1;
      if (!this.#first.has(id)) this.#first.set(id, slot.slot);
    } else if (slot !== undefined) throw new Broken(`${id}: a claim that stopped it has a slot`);
    else this.#swallowed.set(id, (this.#swallowed.get(id) ?? 0) + dues(id, old?.last_slot ?? 0, row.last_slot ?? 0));
  }

  /** Failures in a row, as the slots' results and the people say it. */
  #count(call: Call, id: string, before: Seen, after: Seen): void {
    let failures = this.#failures.get(id) ?? 0;
    for (const [key, row] of after.slots) {
      if (row.job !== id || row.result === (before.slots.get(key)?.result ?? null)) continue;
      if (row.result === "unknown") this.total.unknown += 1;
      if (row.result === "failed" || row.result === "unknown") failures += 1;
      else if (row.result === "succeeded" || (call.kind === "complete" && call.completion?.progress)) failures = 0;
    }
    const resumed = before.jobs.get(id)?.stopped_at != null && after.jobs.get(id)?.stopped_at === null;
    this.#failures.set(id, resumed ? 0 : failures);
  }

  #started(call: Extract<Call, { slot: Slot }>, before: Seen, after: Seen): void {
    const key = `${call.slot.job} ${call.slot.slot}`;
    const [old, row] = [before.slots.get(key), after.slots.get(key)];
    if (row === undefined || old === undefined || row.started_at === old.started_at) return;
    this.total.started += 1;
    const of = before.jobs.get(row.job);
    if (of?.stopped_at != null) throw new Broken(`${key} was started while its job was stopped`);
    if (of?.generation !== call.slot.generation) throw new Broken(`${key} was started by an older message`);
    if (old.result !== null || (row.started_at ?? 0) >= row.deadline) throw new Broken(`${key} was started too late`);
  }

  /** Every due minute since the first is a slot, is counted by one as missed, or was passed by a claim that stopped. */
  checkEnd(): void {
    for (const [id, row] of this.#seen.jobs) {
      const first = this.#first.get(id);
      if (first === undefined) continue;
      const own = [...this.#seen.slots.values()].filter((slot) => slot.job === id);
      const firstMissed = own.find(({ slot }) => slot === first)?.missed ?? 0;
      const told = own.reduce((sum, { missed }) => sum + 1 + missed, 0) - firstMissed + (this.#swallowed.get(id) ?? 0);
      const owed = dues(id, first - 1, row.last_slot ?? 0);
      if (told !== owed) throw new Broken(`${id}: ${owed} minutes were due, ${told} are accounted for`);
      const last = own.find(({ slot }) => slot === row.last_slot);
      if (row.stopped_at !== null || last?.result !== "succeeded") {
        throw new Broken(`${id} does not go on: ${JSON.stringify(row)}, ${JSON.stringify(last)}`);
      }
    }
  }
}

/** The due minutes of a job after one instant and up to another. */
function dues(id: string, after: number, until: number): number {
  const due = latestDue(JOBS.find((one) => one.job.id === id)!.job.cron, after, until);
  return due === null ? 0 : due.missed + 1;
}

/** All that can go on by itself has gone on: nothing here waits for anything but a gate. */
async function quiet(): Promise<void> {
  for (let turn = 0; turn < 60; turn++) await Promise.resolve();
}

/** A tick: reads, claims what it finds due, and hands it over. */
const tick = (world: World) =>
  world.begin("tick", async (db) => {
    const { now } = world.clock;
    const [read] = await db({ kind: "read", now }).batch<JobRow>([readJobs(DB, IDS)]);
    const rows = new Map((read?.results ?? []).map((row) => [row.id, row]));
    const due = JOBS.flatMap((one): DueSlot[] => {
      const found = dueSlot(one, rows.get(one.job.id), now);
      return found === null ? [] : [found];
    });
    const claims = await claimSlots(db({ kind: "claim", now }), due, now);
    for (const claim of claims) if (claim.kind === "claimed") world.messages.push(claim.slot);
  });

/** A consumer of one message: starts its slot, and ends it some time, somehow. */
const consume = (world: World, slot: Slot, calm: boolean) =>
  world.begin(`consumer of ${slot.job} ${slot.slot} ${slot.generation}`, async (db) => {
    const { now } = world.clock;
    const [started] = await db({ kind: "start", now, slot }).batch([startSlot(DB, slot, now)]);
    if ((started?.results ?? []).length === 0) return;
    const result = calm ? "succeeded" : world.random.weighted({ succeeded: 3, degraded: 2, failed: 5 });
    const progress = result === "succeeded" || (result === "degraded" && world.random.chance(0.5));
    const completion: Completion = { result, progress, detail: {} };
    const ended = () => {
      const at = world.clock.now;
      return db({ kind: "complete", now: at, slot, completion }).batch(completeSlot(DB, slot, completion, at));
    };
    await ended().catch(async () => {
      // One that is told of a failure tries once more: completing again what is completed changes nothing.
      if (world.random.chance(0.5)) await ended();
    });
  });

const person = (world: World, kind: "stop" | "resume") =>
  world.begin(kind, async (db) => {
    const { now } = world.clock;
    const id = world.random.pick(IDS);
    const statement = kind === "stop" ? stopJob(DB, id, "a person's", "http:amy", now) : resumeJob(DB, id);
    await db({ kind, now }).batch([statement]);
  });

async function choose(world: World, faults: number): Promise<void> {
  const { random } = world;
  if (world.late.length > 0 && random.chance(0.1)) return world.land();
  if (world.gates.length > 0 && (world.actors >= MOST_ACTORS || random.chance(0.6))) {
    const faulty = random.chance(faults);
    const fates = ["error", "answer lost", "late", "crash before", "crash after"] as const;
    return world.open(random.pick(world.gates), faulty ? random.pick(fates) : "pass");
  }
  switch (random.weighted({ tick: 8, consume: 8, clock: 8, stop: 0.4, resume: 1.5 })) {
    case "tick":
      return tick(world);
    case "consume": {
      const message = world.messages[random.whole(0, Math.max(0, world.messages.length - 1))];
      if (message === undefined) return;
      // One in five comes again, and some are lost.
      if (random.chance(0.8)) world.messages = world.messages.filter((one) => one !== message);
      return random.chance(0.1) ? undefined : consume(world, message, false);
    }
    case "clock":
      world.clock.now += random.pick([SECOND, 20 * SECOND, MINUTE, MINUTE, 5 * MINUTE, 20 * MINUTE, -30 * SECOND]);
      return;
    case "stop":
      return person(world, "stop");
    case "resume":
      return person(world, "resume");
  }
}

/** Everything under way ends, what was stopped is resumed, and three slots of each job go as they should. */
async function calmDown(world: World): Promise<void> {
  const finish = async () => {
    for (let gate = world.gates[0]; gate !== undefined; gate = world.gates[0]) await world.open(gate, "pass");
  };
  await finish();
  while (world.late.length > 0) await world.land();
  for (let round = 0; round < 4; round += 1) {
    // The first claim of the calm may be the one that finds the fifth unknown.
    await world.begin("resume of all", async (db) => {
      await db({ kind: "resume", now: world.clock.now }).batch(IDS.map((id) => resumeJob(DB, id)));
    });
    await finish();
    world.clock.now += 61 * MINUTE;
    await tick(world);
    await finish();
    for (const slot of world.messages.splice(0)) {
      await consume(world, slot, true);
      await finish();
    }
  }
}

test(`${SEEDS} seeds from ${FIRST}: a due minute is claimed once and ends once, an older completion changes nothing, five failed or unknown stop a job and no fewer, a resumed one goes on, and every due minute is accounted for`, async () => {
  const total: Record<string, number> = {};
  for (let seed = FIRST; seed < FIRST + SEEDS; seed += 1) {
    const world = new World(seed);
    await DB.batch(["jobs", "slots"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
    const faults = world.random.pick([0, 0.05, 0.15, 0.3]);
    try {
      for (let choice = 0; choice < CHOICES; choice += 1) await choose(world, faults);
      await calmDown(world);
      world.checkEnd();
    } catch (error) {
      for (const line of world.trace) console.log(line);
      throw new Broken(`seed ${seed}: ${error instanceof Error ? error.message : error}`, { cause: error });
    }
    for (const [what, count] of Object.entries(world.total)) total[what] = (total[what] ?? 0) + count;
  }
  console.log(`seeds ${FIRST} to ${FIRST + SEEDS - 1}: ${JSON.stringify(total)}`);
  // A world in which nothing happened would keep every promise.
  expect(total.claimed).toBeGreaterThan(SEEDS * 5);
  expect(total.started).toBeGreaterThan(SEEDS * 2);
  if (SEEDS >= 20) for (const what of ["unknown", "stops", "older"]) expect(total[what], what).toBeGreaterThan(0);
}, 1_800_000);

test("what a seed has found: a claim that was found due before another's landed is not made, so that no minute is counted twice", async () => {
  await DB.batch(["jobs", "slots"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
  const [minutely] = JOBS;
  const rowsAt = async () => (await readJobs(DB, IDS).all<JobRow>()).results.find(({ id }) => id === "minutely");
  const dueAt = async (now: number) => dueSlot(minutely!, await rowsAt(), now)!;
  const claim = async (due: DueSlot, now: number) => (await claimSlots(DB, [due], now))[0];
  const first = await claim(await dueAt(START), START);
  if (first?.kind !== "claimed") throw new Error("the first minute was not claimed");
  const end = (slot: Slot, now: number) =>
    DB.batch(completeSlot(DB, slot, { result: "succeeded", progress: true, detail: {} }, now));
  await end(first.slot, START);
  // The tick of five minutes on has read its job; that of three minutes on, which was held up, claims before it.
  const stale = await dueAt(START + 5 * MINUTE);
  const between = await claim(await dueAt(START + 3 * MINUTE), START + 3 * MINUTE);
  if (between?.kind !== "claimed") throw new Error("the minute between was not claimed");
  await end(between.slot, START + 5 * MINUTE);
  expect(stale.missed).toBe(4);
  expect(await claim(stale, START + 5 * MINUTE)).toEqual({ kind: "not claimed" });
  expect(await claim(await dueAt(START + 6 * MINUTE), START + 6 * MINUTE)).toMatchObject({ slot: { missed: 2 } });
});
