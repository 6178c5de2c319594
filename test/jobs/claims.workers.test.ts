import { expect, test } from "vitest";
import { DEFAULT_LIMITS, UNBOUNDED } from "../../src/core/budget.ts";
import { MINUTE } from "../../src/core/time.ts";
import { createMeter } from "../../src/db/meter.ts";
import { job, type Processor } from "../../src/jobs/catalog.ts";
import { claimDueSlots, HAND_OVERS_A_TICK, JOBS_A_TICK } from "../../src/jobs/hand-over.ts";
import type { ActiveJob, JobsAtWork } from "../../src/jobs/selection.ts";
import { claimSlots, completeSlot, type JobRow, SLOT_LEASE_MS, type Slot, STOP_AFTER } from "../../src/jobs/slots.ts";
import { tick } from "../../src/tick/tick.ts";
import { createWorld, DB, oneTopic } from "../outbox/world.ts";

/** Many jobs in one tick: one list, one call, an answer for each. */

const NOON = Date.UTC(2026, 0, 1, 12);
const DONE = { result: "succeeded", progress: true, detail: {} } as const;
let groups = 0;

/** Ids that no other test has: storage is isolated by file, not by test. */
function ids(count: number): string[] {
  groups += 1;
  return Array.from({ length: count }, (_, n) => `group-${groups}-${String(n).padStart(2, "0")}`);
}

const dueAt = (slot: number) => (id: string) => ({ job: id, slot, missed: 0, processor: "module" as const });

/** A job of every five minutes that is on. */
function active(id: string, work: ActiveJob["work"] = { kind: "module", handle: async () => {} }): ActiveJob {
  const processor: Processor = work.kind === "module" ? work : { kind: "workflow", binding: "FLOW" };
  return { job: job({ id, cron: "*/5 * * * *", processor }), kind: work.kind, work };
}

const rowsOf = async (some: readonly string[]) =>
  (
    await DB.prepare("SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY id")
      .bind(JSON.stringify(some))
      .all<JobRow>()
  ).results;

const slotsOf = async (some: readonly string[]) =>
  (
    await DB.prepare("SELECT * FROM slots WHERE job IN (SELECT value FROM json_each(?1)) ORDER BY job, slot")
      .bind(JSON.stringify(some))
      .all<{ job: string; slot: number; generation: number; result: string | null; missed: number }>()
  ).results;

/** A Workflow that keeps what it was asked, and refuses the instances of some jobs. */
class HeldWorkflow {
  calls = 0;
  asked: string[] = [];
  refuses = new Set<string>();
  away = false;

  async createBatch({ instances }: { instances: { id: string; params: Slot }[] }) {
    this.calls += 1;
    if (this.away) throw new Error("the Workflows service is away");
    this.asked.push(...instances.map(({ params }) => params.job));
    const errors = instances.flatMap(({ id, params }, index) =>
      this.refuses.has(params.job) ? [{ index, id, code: 10_001, message: "no" }] : [],
    );
    return { created: [], errors };
  }

  get work(): ActiveJob["work"] {
    return { kind: "workflow", workflow: this as unknown as Workflow };
  }
}

function setUp(start = NOON + 5_000, modules = 1) {
  const world = createWorld(
    Array.from({ length: modules }, () => oneTopic(() => {}).module),
    { start },
  );
  const queue = world.queue as unknown as Queue;
  return { world, queue, jobs: (some: readonly ActiveJob[]): JobsAtWork => ({ active: some, queue }) };
}

test.each([1, 3, 50])(
  "%i due jobs in one tick are claimed by three statements and handed over in one call",
  async (count) => {
    const { world, queue } = setUp();
    const some = ids(count);
    const meter = createMeter();
    const slots = await claimDueSlots(
      world.invocation(meter),
      queue,
      some.map((id) => active(id)),
      [],
    );
    expect(slots).toEqual({ claimed: count, failed: 0, refused: [] });
    expect([meter.calls, meter.queries, meter.subrequests]).toEqual([1, 3, 1]);
    expect(world.queue.calls).toBe(1);
    expect(world.queue.messages.map(({ body }) => (body as Slot).job)).toEqual(some);
    expect(await slotsOf(some)).toHaveLength(count);
  },
);

test("nothing due costs nothing", async () => {
  const { world, queue } = setUp(NOON + MINUTE);
  const meter = createMeter();
  await claimDueSlots(
    world.invocation(meter),
    queue,
    ids(3).map((id) => active(id)),
    [],
  );
  expect([meter.calls, meter.subrequests]).toEqual([0, 0]);
});

test("each job of one list gets its own answer: stopped by its fifth unknown, at work, charged and claimed, claimed, stopped before", async () => {
  const [fifth = "", living = "", lapsed = "", fresh = "", stopped = "", apart = ""] = ids(6);
  for (let n = 0; n < STOP_AFTER; n += 1) {
    const at = NOON + n * 5 * MINUTE;
    await claimSlots(DB, [fifth].map(dueAt(at)), at);
  }
  const now = NOON + STOP_AFTER * 5 * MINUTE;
  await claimSlots(DB, [living].map(dueAt(now - MINUTE)), now - SLOT_LEASE_MS + 1);
  await claimSlots(DB, [lapsed, stopped, apart].map(dueAt(now - 5 * MINUTE)), now - SLOT_LEASE_MS);
  await DB.prepare("UPDATE jobs SET stopped_at = 1, stop_reason = 'x', stopped_by = 'y' WHERE id = ?1")
    .bind(stopped)
    .run();

  const asked = [fifth, living, lapsed, fresh, stopped];
  const claims = await claimSlots(DB, asked.map(dueAt(now)), now);
  expect(claims).toMatchObject([
    { kind: "stopped" },
    { kind: "not claimed" },
    { kind: "claimed", slot: { job: lapsed, slot: now, generation: 2, claimedAt: now } },
    { kind: "claimed", slot: { job: fresh, slot: now, generation: 1, claimedAt: now } },
    { kind: "not claimed" },
  ]);
  expect(await rowsOf([...asked, apart])).toMatchObject([
    { id: fifth, claimed: 0, failures: STOP_AFTER, generation: STOP_AFTER + 1, stopped_by: "service:tick" },
    { id: living, claimed: 1, failures: 0, generation: 1 },
    { id: lapsed, claimed: 1, failures: 1, generation: 2, stopped_at: null },
    { id: fresh, claimed: 1, failures: 0, generation: 1 },
    { id: stopped, claimed: 1, failures: 0, generation: 1, stop_reason: "x" },
    { id: apart, claimed: 1, failures: 0, generation: 1 },
  ]);
  const results = Map.groupBy(await slotsOf([...asked, apart]), (slot) => slot.job);
  const resultsOf = (id: string) => results.get(id)?.map(({ result }) => result);
  expect(asked.map(resultsOf)).toEqual([Array(STOP_AFTER).fill("unknown"), [null], ["unknown", null], [null], [null]]);
  expect(resultsOf(apart)).toEqual([null]);
});

test("ticks that overlap over many jobs claim each of them once, and hand it over once", async () => {
  const some = ids(40);
  const early = setUp();
  const late = setUp(NOON + 9_000);
  const on = some.map((id) => active(id));
  const claims = await Promise.all([
    claimDueSlots(early.world.invocation(), early.queue, on.slice(0, 30), []),
    claimDueSlots(late.world.invocation(), late.queue, on.slice(10).toReversed(), []),
    claimDueSlots(late.world.invocation(), late.queue, on, []),
  ]);
  expect(claims.reduce((sum, { claimed }) => sum + claimed, 0)).toBe(40);
  const handed = [...early.world.queue.messages, ...late.world.queue.messages].map(({ body }) => (body as Slot).job);
  expect(handed.sort()).toEqual(some);
  expect(await slotsOf(some)).toHaveLength(40);
  for (const row of await rowsOf(some)) expect(row).toMatchObject({ generation: 1, failures: 0 });
});

test("more jobs than a tick claims: the others are due still, and claimed by the next", async () => {
  const { world, jobs } = setUp();
  const some = ids(JOBS_A_TICK + 3);
  const on = jobs(some.map((id) => active(id)));
  expect((await tick(world.runtime, world.clock.now, UNBOUNDED, on)).slots).toBe(JOBS_A_TICK);
  world.clock.now += 30_000;
  expect((await tick(world.runtime, world.clock.now, UNBOUNDED, on)).slots).toBe(3);
  expect(await slotsOf(some)).toHaveLength(some.length);
});

test("an instance that is refused leaves the others handed over, and is alone charged unknown", async () => {
  const { world, jobs } = setUp();
  const some = ids(3);
  const [, refused = ""] = some;
  const flow = new HeldWorkflow();
  flow.refuses.add(refused);
  const on = jobs(some.map((id) => active(id, flow.work)));
  expect(await tick(world.runtime, world.clock.now, UNBOUNDED, on)).toMatchObject({ slots: 3, failed: 1 });
  expect([flow.calls, flow.asked]).toEqual([1, some]);
  expect(world.logs.filter(({ event }) => event === "slot_refused")).toMatchObject([{ job: refused }]);

  for (const slot of await slotsOf(some)) {
    if (slot.job !== refused) await DB.batch(completeSlot(DB, slot, DONE, world.clock.now));
  }
  world.clock.now += 5 * MINUTE;
  await tick(world.runtime, world.clock.now, UNBOUNDED, on);
  const ended = (await slotsOf(some)).filter(({ generation }) => generation === 1);
  expect(ended.map(({ result }) => result)).toEqual(["succeeded", "unknown", "succeeded"]);
});

test("a Workflow that is away, or a queue that refuses, keeps no slot of another from being handed over", async () => {
  const { world, queue } = setUp();
  const some = ids(4);
  const [here = "", away = "", well = "", also = ""] = some;
  const broken = new HeldWorkflow();
  broken.away = true;
  const sound = new HeldWorkflow();
  world.queue.mode = "refuse";
  const on = [active(here), active(away, broken.work), active(well, sound.work), active(also, sound.work)];
  const meter = createMeter();
  const slots = await claimDueSlots(world.invocation(meter), queue, on, []);
  expect(slots).toMatchObject({ claimed: 4, failed: 2, refused: [{ slot: { job: here } }] });
  expect(sound.asked).toEqual([well, also]);
  expect([meter.calls, meter.queries, meter.subrequests]).toEqual([1, 3, 3]);
});

test("jobs of more Workflows than a tick may call: what was passed over is claimed by the next tick, what is new at its next minute", async () => {
  const { world, jobs } = setUp();
  const flows = ids(HAND_OVERS_A_TICK + 1).map((id) => ({ id, flow: new HeldWorkflow() }));
  const on = jobs(flows.map(({ id, flow }) => active(id, flow.work)));
  const next = async (minutes: number) => {
    world.clock.now += minutes * MINUTE;
    const { slots, subrequests } = await tick(world.runtime, world.clock.now, UNBOUNDED, on);
    return [slots, subrequests];
  };
  const full = [HAND_OVERS_A_TICK, HAND_OVERS_A_TICK];
  expect([await next(0), await next(1)]).toEqual([full, [0, 0]]);
  expect(flows.map(({ flow }) => flow.calls)).toEqual([1, 1, 1, 1, 0]);
  expect([await next(4), await next(1), await next(1)]).toEqual([full, [1, 1], [0, 0]]);
  expect(flows.map(({ flow }) => flow.calls)).toEqual([2, 2, 2, 2, 1]);
});

test("a queue that refuses for an hour: each tick works what a share carries, those nearest to their stop first, and no job is stopped", async () => {
  const { world, jobs } = setUp(NOON + 5_000, 4);
  world.queue.mode = "refuse";
  const some = ids(8);
  const runs: string[] = [];
  const on = jobs(some.map((id) => active(id, { kind: "module", handle: async (slot) => void runs.push(slot.job) })));
  for (let n = 0; n < 12; n += 1) {
    const before = runs.length;
    const report = await tick(world.runtime, world.clock.now, DEFAULT_LIMITS, on);
    expect(report.queries).toBeLessThanOrEqual(45);
    expect(runs.length - before).toBeGreaterThanOrEqual(1);
    expect(runs.length - before).toBeLessThan(some.length);
    world.clock.now += 5 * MINUTE;
  }
  expect(new Set(runs).size).toBe(some.length);
  expect((await rowsOf(some)).map(({ stopped_at }) => stopped_at)).toEqual(some.map(() => null));
});
