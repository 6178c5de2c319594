import { describe, expect, test } from "vitest";
import wranglerText from "../../wrangler.jsonc?raw";
import { consumeItems } from "../../consumers/items.ts";
import { jobCommands } from "../../src/commands/jobs.ts";
import { UNBOUNDED } from "../../src/core/budget.ts";
import { parseCron } from "../../src/core/cron.ts";
import { nextFire } from "../../src/core/calendar.ts";
import { type Job, type JobOptions, job } from "../../src/jobs/catalog.ts";
import { recordsRetention } from "../../src/jobs/retention.ts";
import { selectJobs } from "../../src/jobs/selection.ts";
import {
  completeSlot,
  type JobRow,
  mayGoOn,
  SLOT_LEASE_MS,
  STALLED_ALERT,
  STOP_AFTER,
  type Slot,
} from "../../src/jobs/slots.ts";
import { beginInvocation } from "../../src/outbox/runtime.ts";
import { tick } from "../../src/tick/tick.ts";
import { createWorld, DB, oneTopic } from "../outbox/world.ts";

const MINUTE = 60_000;
let jobsMade = 0;

/** What a test's Workflow was asked to create, and how it answers. */
class HeldWorkflow {
  asked: { id: string; params: Slot }[] = [];
  mode: "create" | "exists" | "refuse" | "throw" = "create";

  async createBatch({ instances }: { instances: { id: string; params: Slot }[] }) {
    if (this.mode === "throw") throw new Error("the Workflows service is away");
    this.asked.push(...instances);
    const code = { create: null, exists: 10_405, refuse: 10_001 }[this.mode];
    return { created: [], errors: code === null ? [] : instances.map(({ id }, index) => ({ index, id, code })) };
  }
}

function setUp(options: Omit<JobOptions, "id" | "cron"> & { cron?: string; on?: string; here?: boolean } = {}) {
  jobsMade += 1;
  const id = `job-${jobsMade}`;
  const runs: Slot[] = [];
  const made: Job = job({
    id,
    cron: options.cron ?? "*/5 * * * *",
    ...(options.route && { route: options.route }),
    processor: options.processor ?? { kind: "module", handle: async (slot) => void runs.push(slot) },
  });
  const { module } = oneTopic(() => {});
  const posts: { url: string; headers: Headers; body: string }[] = [];
  const route = { status: 200 };
  const world = createWorld([module], {
    start: Date.UTC(2026, 0, 1, 12, 0, 5),
    ports: {
      fetch: async (input, init) => {
        posts.push({ url: String(input), headers: new Headers(init?.headers), body: String(init?.body) });
        return new Response("", { status: route.status });
      },
    },
  });
  const workflow = new HeldWorkflow();
  const env = {
    ENABLED_JOBS: options.on ?? id,
    WORKER_PROCESSORS: options.here === false ? "" : id,
    FLOW: workflow,
    ROUTE_URL: "https://app.example/api/cron",
    ROUTE_SECRET: "s3cret",
  };
  const select = (over: Partial<typeof env> = {}) => selectJobs([made], { ...env, ...over });
  const jobs = () => ({ active: select().active, queue: world.queue as unknown as Queue });
  return {
    id,
    made,
    runs,
    posts,
    route,
    world,
    workflow,
    select,
    jobs,
    tick: (at: number | null = null, active = jobs()) => {
      if (at !== null) world.clock.now = at;
      return tick(world.runtime, world.clock.now, UNBOUNDED, active);
    },
    /** Delivers every message in the queue to the consumer. */
    consume: async (messages = world.queue.take()) => {
      const verdicts: string[] = [];
      await consumeItems(
        {
          queue: "duework-items",
          messages: messages.map(({ body }) => ({
            body,
            ack: () => void verdicts.push("ack"),
            retry: () => void verdicts.push("retry"),
          })),
        } as unknown as MessageBatch,
        world.runtime,
        jobs().active,
      );
      return verdicts;
    },
    row: () => DB.prepare("SELECT * FROM jobs WHERE id = ?1").bind(id).first<JobRow>(),
    slots: async () =>
      (
        await DB.prepare(
          "SELECT slot, generation, missed, result, started_at, instance_id, detail FROM slots WHERE job = ?1 ORDER BY slot",
        )
          .bind(id)
          .all<{
            slot: number;
            generation: number;
            missed: number;
            result: string | null;
            instance_id: string | null;
            detail: string;
          }>()
      ).results,
    command: async (name: string, args: Record<string, unknown> = { id }) => {
      const found = jobCommands([made], jobs()).find((one) => one.name === name);
      return found?.run(args, beginInvocation(world.runtime, world.clock.now), {
        id: "http:op",
        kind: "user",
        grants: { actions: "all", channels: [], scopes: [] },
      });
    },
  };
}

const at = (hour: number, minute: number, second = 5) => Date.UTC(2026, 0, 1, hour, minute, second);
const slotAt = (hour: number, minute: number) => at(hour, minute, 0);

describe("a due minute", () => {
  test("due → claimed → started → succeeded: one message, one run, the lease ended", async () => {
    const job = setUp();
    await job.tick();
    expect(job.world.queue.messages).toHaveLength(1);
    expect(await job.consume()).toEqual(["ack"]);
    expect(job.runs).toMatchObject([{ slot: slotAt(12, 0), generation: 1, missed: 0, deadline: at(12, 4) }]);
    expect(await job.slots()).toMatchObject([{ slot: slotAt(12, 0), generation: 1, result: "succeeded" }]);
    expect(await job.row()).toMatchObject({ claimed: 0, failures: 0 });
  });

  test("is claimed once by ticks that overlap, and once more by none in the same minute", async () => {
    const job = setUp();
    await Promise.all([job.tick(), job.tick(), job.tick()]);
    await job.tick(at(12, 1));
    expect(job.world.queue.messages).toHaveLength(1);
    expect(await job.slots()).toHaveLength(1);
  });

  test("its message twice, also at once, runs once", async () => {
    const job = setUp();
    await job.tick();
    const messages = job.world.queue.take();
    await Promise.all([job.consume([...messages, ...messages]), job.consume(messages)]);
    expect(job.runs).toHaveLength(1);
  });

  test("an hour without ticks is one claim of the latest minute, with its missed count", async () => {
    const job = setUp();
    await job.tick();
    await job.consume();
    await job.tick(at(13, 7));
    expect(await job.slots()).toMatchObject([{ missed: 0 }, { slot: slotAt(13, 5), generation: 2, missed: 12 }]);
  });

  test("a clock that steps back claims nothing again", async () => {
    const job = setUp();
    await job.tick(at(12, 10));
    await job.consume();
    await job.tick(at(11, 55));
    await job.tick(at(12, 10));
    expect(await job.slots()).toHaveLength(1);
  });

  test("due under a living lease → coalesced into the next", async () => {
    const job = setUp({ cron: "* * * * *" });
    await job.tick(at(12, 0));
    for (const minute of [1, 2, 3, 4]) await job.tick(at(12, minute, 0));
    expect(await job.slots()).toHaveLength(1);
    await job.tick(at(12, 0) + SLOT_LEASE_MS);
    expect(await job.slots()).toMatchObject([{ result: "unknown" }, { slot: slotAt(12, 4), missed: 3, generation: 2 }]);
  });

  test("a job that is claimed for the first time does not make up for the time before it was there", async () => {
    const job = setUp({ cron: "0 3 * * *" });
    await job.tick(at(12, 0));
    expect(await job.slots()).toEqual([]);
  });
});

describe("results", () => {
  test("claimed and never completed → unknown, charged by the statement that claims the next", async () => {
    const job = setUp();
    await job.tick(at(12, 0));
    await job.tick(at(12, 5));
    expect(await job.slots()).toMatchObject([{ result: "unknown" }, { result: null, generation: 2 }]);
    expect(await job.row()).toMatchObject({ failures: 1, claimed: 1, generation: 2 });
  });

  test("five failed or unknown slots in a row stop the job, durably", async () => {
    const job = setUp({
      processor: {
        kind: "module",
        handle: async () => {
          throw new Error("no");
        },
      },
    });
    for (let n = 0; n < STOP_AFTER - 1; n += 1) {
      await job.tick(at(12, 5 * n));
      if (n % 2 === 0) await job.consume();
      else job.world.queue.take();
    }
    expect(await job.row()).toMatchObject({ stopped_at: null });
    await job.tick(at(12, 20));
    await job.consume();
    await job.tick(at(12, 25));
    expect(await job.row()).toMatchObject({ failures: STOP_AFTER, stopped_by: "service:tick" });
    await job.tick(at(13, 0));
    expect(job.world.queue.messages).toEqual([]);
  });

  test("four failures and the fifth claim unknown: the claim that finds it stops instead of claiming", async () => {
    const job = setUp();
    for (let n = 0; n <= STOP_AFTER; n += 1) await job.tick(at(12, 5 * n));
    expect((await job.slots()).map(({ result }) => result)).toEqual(Array(STOP_AFTER).fill("unknown"));
    expect(await job.row()).toMatchObject({ claimed: 0, failures: STOP_AFTER });
    expect(job.world.logs).toContainEqual(expect.objectContaining({ event: "job_stopped", job: job.id }));
  });

  test("a success, or a degraded slot with progress, sets the count back; one without progress does not", async () => {
    const results = [
      { result: "failed", progress: false },
      { result: "degraded", progress: false },
      { result: "degraded", progress: true },
    ] as const;
    const counts: number[][] = [];
    let run = 0;
    const job = setUp({
      processor: { kind: "module", handle: async () => ({ ...results[run++ % 3]!, detail: {} }) },
    });
    for (let n = 0; n < 3; n += 1) {
      await job.tick(at(12, 5 * n));
      await job.consume();
      const row = await job.row();
      counts.push([row?.failures ?? -1, row?.stalled ?? -1]);
    }
    expect(counts).toEqual([
      [1, 0],
      [1, 1],
      [0, 0],
    ]);
  });

  test("twelve degraded slots without progress in a row are told of, and stop nothing", async () => {
    const job = setUp({
      processor: { kind: "module", handle: async () => ({ result: "degraded", progress: false, detail: {} }) },
    });
    for (let n = 0; n < STALLED_ALERT; n += 1) {
      expect(job.world.logs.filter(({ event }) => event === "job_stalled")).toEqual([]);
      await job.tick(at(12, 5 * n));
      await job.consume();
    }
    expect(job.world.logs).toContainEqual(expect.objectContaining({ event: "job_stalled", job: job.id }));
    expect(await job.row()).toMatchObject({ stalled: STALLED_ALERT, stopped_at: null });
  });

  test("a completion of an older generation changes nothing", async () => {
    const job = setUp();
    await job.tick(at(12, 0));
    await job.tick(at(12, 5));
    const before = [await job.row(), await job.slots()];
    const late = { job: job.id, slot: slotAt(12, 0), generation: 1 };
    await DB.batch(completeSlot(DB, late, { result: "succeeded", progress: true, detail: {} }, at(12, 6)));
    expect([await job.row(), await job.slots()]).toEqual(before);
    expect(await mayGoOn(DB, late)).toBe(false);
  });

  test("a handler that outlasts the slot's deadline is failed, and its signal is aborted", async () => {
    let aborted = false;
    const job = setUp({
      processor: {
        kind: "module",
        handle: (_, { signal }) =>
          new Promise(() => {
            signal.addEventListener("abort", () => {
              aborted = true;
            });
          }),
      },
    });
    await job.tick();
    job.world.clock.now += 240_000 - 5_000 - 50;
    await job.consume();
    expect(aborted).toBe(true);
    expect(await job.slots()).toMatchObject([{ result: "failed" }]);
  });

  test("a message that comes after the deadline begins nothing", async () => {
    const job = setUp();
    await job.tick();
    job.world.clock.now += 240_000;
    await job.consume();
    expect(job.runs).toEqual([]);
  });
});

describe("the stop", () => {
  test("stopped → nothing is claimed, and a message under way begins nothing; resumed → the next minute is claimed", async () => {
    const job = setUp();
    await job.tick();
    expect(await job.command("job.stop", { id: job.id, reason: "look into it" })).toMatchObject({ ok: true });
    await job.consume();
    await job.tick(at(12, 5));
    expect(job.runs).toEqual([]);
    expect(await job.row()).toMatchObject({ stop_reason: "look into it", stopped_by: "http:op" });
    expect(await job.command("job.resume")).toMatchObject({ ok: true, result: { changed: true } });
    await job.tick(at(12, 10));
    await job.consume();
    expect(job.runs).toHaveLength(1);
  });

  test("job.fire claims the present minute once, and refuses while a lease lives or the job is stopped", async () => {
    const job = setUp({ cron: "0 3 * * *" });
    const [one, two] = await Promise.all([job.command("job.fire"), job.command("job.fire")]);
    expect([one?.ok, two?.ok].sort()).toEqual([false, true]);
    await job.consume();
    expect(job.runs).toHaveLength(1);
    await job.command("job.stop", { id: job.id, reason: "enough" });
    job.world.clock.now += 10 * MINUTE;
    expect(await job.command("job.fire")).toMatchObject({ ok: false, code: "slot_not_claimed" });
  });

  test("job.fire stands for the due minutes since the last claim, as a tick's claim does", async () => {
    const job = setUp();
    await job.tick();
    await job.consume();
    job.world.clock.now = at(12, 17);
    expect(await job.command("job.fire")).toMatchObject({ ok: true });
    await job.consume();
    // 12:05, 12:10 and 12:15; then 12:20 is its own again.
    await job.tick(at(12, 20));
    expect((await job.slots()).map(({ slot, missed }) => [slot, missed])).toEqual([
      [slotAt(12, 0), 0],
      [slotAt(12, 17), 3],
      [slotAt(12, 20), 0],
    ]);
  });
});

describe("enabled and selected", () => {
  const route = { urlSetting: "ROUTE_URL", secretSetting: "ROUTE_SECRET" };

  test("neither: nothing; selected only: nothing, and a warning names it", async () => {
    const job = setUp({ route, on: "" });
    expect(job.select({ WORKER_PROCESSORS: "" })).toEqual({ active: [], problems: [] });
    const selected = job.select();
    expect(selected.active).toEqual([]);
    expect(selected.problems).toMatchObject([{ code: "processor_of_a_job_that_is_off", setting: "WORKER_PROCESSORS" }]);
    await job.tick();
    expect(job.world.queue.messages).toEqual([]);
  });

  test("enabled only: the legacy route is called with its secret, an empty object and a User-Agent", async () => {
    const job = setUp({ route, here: false });
    await job.tick();
    await job.consume();
    expect(job.posts).toHaveLength(1);
    expect(job.posts[0]).toMatchObject({ url: "https://app.example/api/cron", body: "{}" });
    expect(job.posts[0]?.headers.get("authorization")).toBe("Bearer s3cret");
    expect(job.posts[0]?.headers.get("user-agent")).toBe("duework-jobs");
    expect(await job.slots()).toMatchObject([{ result: "succeeded" }]);
  });

  test("a route that answers anything but 2xx is a failed slot", async () => {
    const job = setUp({ route, here: false });
    job.route.status = 302;
    await job.tick();
    await job.consume();
    expect(await job.slots()).toMatchObject([{ result: "failed" }]);
  });

  test("enabled and selected: the handler here, and the route is never called", async () => {
    const job = setUp({ route });
    await job.tick();
    await job.consume();
    expect([job.runs.length, job.posts.length]).toEqual([1, 0]);
  });

  test("taken out of WORKER_PROCESSORS while its claim lives: the route gets the next slot when the lease has ended", async () => {
    const job = setUp({ route, processor: { kind: "workflow", binding: "FLOW" } });
    await job.tick(at(12, 0));
    expect(job.workflow.asked).toHaveLength(1);
    const back = { active: job.select({ WORKER_PROCESSORS: "" }).active, queue: job.world.queue as unknown as Queue };
    await job.tick(at(12, 4), back);
    expect(job.world.queue.messages).toEqual([]);
    await job.tick(at(12, 5), back);
    expect(job.world.queue.messages).toHaveLength(1);
  });

  test("an id of no catalog is named, and turns nothing else off", () => {
    const job = setUp();
    const { active, problems } = job.select({ ENABLED_JOBS: `${job.id}, no-such-job` });
    expect(active).toHaveLength(1);
    expect(problems).toMatchObject([{ code: "unknown_job", setting: "ENABLED_JOBS" }]);
  });

  test("a job that lacks its route's address, its secret or its binding is off alone, and named", () => {
    const job = setUp({ route, processor: { kind: "workflow", binding: "FLOW" } });
    expect(job.select({ WORKER_PROCESSORS: "", ROUTE_URL: "nonsense" }).problems).toMatchObject([
      { setting: "ROUTE_URL" },
    ]);
    expect(job.select({ WORKER_PROCESSORS: "", ROUTE_SECRET: "" }).problems).toMatchObject([
      { setting: "ROUTE_SECRET" },
    ]);
    expect(job.select({ FLOW: undefined as never }).problems).toMatchObject([{ setting: "FLOW" }]);
  });
});

test("a Workflow's job that would fire under its own claim's lease is refused where it is declared", () => {
  const processor = { kind: "workflow", binding: "FLOW" } as const;
  expect(() => job({ id: "hasty", cron: "*/4 * * * *", processor })).toThrow(/at most every 270 s/);
  expect(() => job({ id: "hasty", cron: "0,1 3 * * *", processor })).toThrow(/at most every 270 s/);
  expect(job({ id: "patient", cron: "*/5 * * * *", processor }).id).toBe("patient");
});

test("a job may be stopped before it is turned on; what no catalog knows may not", async () => {
  const job = setUp({ on: "" });
  expect(await job.command("job.stop", { id: job.id, reason: "not yet" })).toMatchObject({ ok: true });
  expect(await job.row()).toMatchObject({ stop_reason: "not yet", generation: 0 });
  expect(await job.command("job.fire")).toMatchObject({ ok: false, code: "unknown_job" });
  expect(await job.command("job.stop", { id: "no-such-job", reason: "x" })).toMatchObject({ code: "unknown_job" });
});

test("a handler that asks is told to end once a person has stopped the job; nobody else is alarmed", async () => {
  const answers: boolean[] = [];
  const job = setUp({
    processor: {
      kind: "module",
      async handle(_, { mayGoOn }) {
        answers.push(await mayGoOn());
        await job.command("job.stop", { id: job.id, reason: "enough" });
        answers.push(await mayGoOn());
      },
    },
  });
  await job.tick();
  await job.consume();
  expect(answers).toEqual([true, false]);
  expect(job.world.logs.filter(({ event }) => event === "job_stopped")).toEqual([]);
});

describe("handing over", () => {
  test("a Workflow slot becomes an instance named by job, minute and generation; one that exists is success", async () => {
    const job = setUp({ processor: { kind: "workflow", binding: "FLOW" } });
    job.workflow.mode = "exists";
    const report = await job.tick();
    expect(report.failed).toBe(0);
    const id = `${job.id}-${slotAt(12, 0) / MINUTE}-1`;
    expect(job.workflow.asked).toMatchObject([{ id, params: { job: job.id, generation: 1 } }]);
    expect(await job.slots()).toMatchObject([{ instance_id: id }]);
    expect(id).toMatch(/^[A-Za-z0-9_-]{1,100}$/);
  });

  test("a Workflow that refuses or is away leaves the slot to be charged unknown, and spoils no tick", async () => {
    const job = setUp({ processor: { kind: "workflow", binding: "FLOW" } });
    job.workflow.mode = "refuse";
    expect((await job.tick(at(12, 0))).failed).toBe(1);
    job.workflow.mode = "throw";
    expect((await job.tick(at(12, 5))).failed).toBe(1);
    await job.tick(at(12, 10));
    expect((await job.slots()).map(({ result }) => result)).toEqual(["unknown", "unknown", null]);
  });

  test("a queue that refuses: a module slot is worked in the tick, a route's slot is left", async () => {
    const job = setUp();
    job.world.queue.mode = "refuse";
    await job.tick();
    expect(job.runs).toHaveLength(1);
    const legacy = setUp({ route: { urlSetting: "ROUTE_URL", secretSetting: "ROUTE_SECRET" }, here: false });
    legacy.world.queue.mode = "refuse";
    await legacy.tick();
    expect(legacy.posts).toEqual([]);
    expect(await legacy.slots()).toMatchObject([{ result: null }]);
  });
});

describe("records", () => {
  test("old slots are forgotten by the retention job, the newest stays", async () => {
    const job = setUp();
    for (const minute of [0, 5, 10]) {
      await job.tick(at(12, minute));
      await job.consume();
    }
    const context = {
      ...job.world.context(),
      now: at(12, 10) + 31 * 86_400_000,
      signal: new AbortController().signal,
      mayGoOn: async () => true,
    };
    const { processor } = recordsRetention;
    if (processor?.kind !== "module") throw new Error("the retention job is worked here");
    await processor.handle({} as Slot, context);
    expect(await job.slots()).toMatchObject([{ slot: slotAt(12, 10) }]);
  });

  test("the Worker's one cron trigger fires at every minute, by instants", () => {
    const [text] = /"crons":\s*\["([^"]+)"\]/.exec(wranglerText)?.slice(1) ?? [];
    const parsed = parseCron(text ?? "");
    if (!parsed.ok) throw new Error(parsed.message);
    let from = Date.UTC(2026, 1, 27, 23, 50);
    for (let n = 0; n < 30; n += 1) {
      const next = nextFire(parsed.cron, from);
      expect(next).toBe(from + MINUTE);
      from += MINUTE;
    }
  });
});
