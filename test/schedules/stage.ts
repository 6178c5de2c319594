import * as v from "valibot";
import type { Grants } from "../../src/commands/actor.ts";
import { beginStep, executeStep, finishStep } from "../../src/commands/run.ts";
import type { RunRow } from "../../src/commands/runs.ts";
import type { Router } from "../../src/commands/router.ts";
import type { MessageRow } from "../../src/commands/threads.ts";
import { DEFAULT_LIMITS, type Limits } from "../../src/core/budget.ts";
import type { LogEvent, Ports } from "../../src/core/ports.ts";
import { MINUTE } from "../../src/core/time.ts";
import { createMeter, type Meter } from "../../src/db/meter.ts";
import { deploy } from "../../src/create-worker.ts";
import { command, defineModule, type Job, type Module } from "../../src/index.ts";
import type { Invocation } from "../../src/outbox/runtime.ts";
import { beginInvocation } from "../../src/outbox/runtime.ts";
import { platformPorts } from "../../src/platform.ts";
import type { FiringRow } from "../../src/schedules/firings.ts";
import type { ScheduleRow } from "../../src/schedules/rows.ts";
import { tick } from "../../src/tick/tick.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

export { DB };

/** The Workflow's binding, held by the test: it keeps which instances were made, and can misbehave. */
export class HeldRuns {
  readonly made = new Map<string, "queued" | "running" | "complete" | "errored">();
  calls = 0;
  mode: "take" | "refuse" | "hang" | "take and lose" = "take";
  /** Instances that are refused one by one. */
  readonly refused = new Set<string>();

  async createBatch({ instances }: { instances: { id: string }[] }) {
    this.calls += 1;
    if (this.mode === "refuse") throw new Error("Workflows is unavailable");
    if (this.mode === "hang") return new Promise<never>(() => {});
    const errors: { id: string; index: number; code: number }[] = [];
    for (const [index, { id }] of instances.entries()) {
      if (this.refused.has(id)) errors.push({ id, index, code: 10_001 });
      else if (this.made.has(id)) errors.push({ id, index, code: 10_405 });
      else this.made.set(id, "queued");
    }
    if (this.mode === "take and lose") throw new Error("Network connection lost");
    return { created: [], errors };
  }

  async get(id: string) {
    const { made } = this;
    if (!made.has(id)) throw new Error("instance.not_found");
    return { status: async () => ({ status: made.get(id) }), terminate: async () => void made.set(id, "errored") };
  }
}

export interface Person {
  subject: string;
  grants: Partial<Grants>;
}

const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");

/** A module whose commands say what they saw: one of each effect, one that fails, one that hangs. */
export function probeModule(seen: { command: string; actor: string; scope: string | null }[]): Module {
  const note = (name: string, effect: "read" | "exec" | "write", grant: string, scoped = false) =>
    command({
      name: `probe.${name}`,
      effect,
      grant,
      help: "Says that it ran.",
      scoped,
      args: v.strictObject({ n: v.optional(v.number()), text: v.optional(v.string()) }),
      async handle(args, ctx) {
        seen.push({ command: name, actor: ctx.actor, scope: ctx.scope });
        return { ok: true, result: { ran: name, ...args } };
      },
    });
  return defineModule("probe", {
    commands: [
      note("look", "read", "probe:read", true),
      note("go", "exec", "probe:run"),
      note("change", "write", "probe:write"),
      command({
        name: "probe.fail",
        effect: "exec",
        grant: "probe:run",
        help: "Fails.",
        args: v.strictObject({}),
        async handle() {
          throw new Error("it <broke>");
        },
      }),
      command({
        name: "probe.lie",
        effect: "read",
        grant: "probe:read",
        help: "Says it reads, and writes.",
        args: v.strictObject({}),
        async handle(_, ctx) {
          await ctx.db.prepare("DELETE FROM merchant_accounts").run();
          return { ok: true, result: {} };
        },
      }),
    ],
  });
}

/** What admins hold. */
export const ALL: Grants = { actions: "all", channels: "all", scopes: "all" };

/** A deployment over the real D1, with a clock, a queue and a Workflow that the test holds. */
export async function createStage(
  options: {
    people?: readonly Person[];
    start?: number;
    db?: D1Database;
    jobs?: readonly Job[];
    /** Besides the one that only says what it saw. */
    modules?: readonly Module[];
    env?: Record<string, unknown>;
    router?: Router;
    runs?: HeldRuns | null;
    fetch?: Ports["fetch"];
  } = {},
) {
  const seen: { command: string; actor: string; scope: string | null }[] = [];
  const clock = { now: options.start ?? Date.UTC(2026, 2, 10, 2, 59, 30) };
  const logs: LogEvent[] = [];
  const ports: Ports = {
    ...platformPorts,
    clock: () => clock.now,
    random: () => 0.5,
    log: (event) => void logs.push(event),
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  };
  const runs = options.runs === undefined ? new HeldRuns() : options.runs;
  const queue = new HeldQueue();
  const deployed = async (people: readonly Person[], db: D1Database) => {
    const tokens = await Promise.all(
      people.map(async ({ subject, grants }) => ({ subject, sha256: await sha256(`token-of-${subject}`), grants })),
    );
    const env = {
      DB: db,
      ITEMS: queue,
      DUEWORK_TOKENS: JSON.stringify(tokens),
      ...(runs === null ? {} : { RUN: runs }),
      ...options.env,
    };
    const program = {
      modules: [probeModule(seen), ...(options.modules ?? [])],
      catalog: options.jobs ?? [],
      router: options.router ?? null,
    };
    const made = deploy(program, env, ports);
    if (made.runtime === null) throw new Error(JSON.stringify(made.problems));
    return { ...made, runtime: made.runtime };
  };
  const people = options.people ?? [{ subject: "amy", grants: ALL }];
  let current = await deployed(people, options.db ?? DB);

  const stage = {
    clock,
    logs,
    queue,
    runs: runs ?? new HeldRuns(),
    seen,
    get dispatcher() {
      return current.dispatcher;
    },
    get runtime() {
      return current.runtime;
    },
    /** Deploys anew with other people: a version after the settings were changed. */
    async redeploy(changed: readonly Person[], db: D1Database = DB) {
      current = await deployed(changed, db);
    },
    /** A second version beside this one, over the same database and Workflow. */
    version: (db: D1Database = DB) => deployed(people, db),
    invocation: (meter: Meter = createMeter()): Invocation => beginInvocation(current.runtime, clock.now, meter),
    tick: (limits: Limits = DEFAULT_LIMITS, version = current) =>
      tick(version.runtime, clock.now, limits, version.jobs, version.dispatcher),
    /** A request of a person, as HTTP has it. */
    async http(subject: string | null, method: "GET" | "POST", path: string, body?: unknown) {
      const headers = new Headers(body === undefined ? {} : { "content-type": "application/json" });
      if (subject !== null) headers.set("authorization", `Bearer token-of-${subject}`);
      const init = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
      const response = await current.api.fetch(new Request(`https://x.test${path}`, init));
      const json = (await response.json()) as Record<string, unknown>;
      return { status: response.status, json };
    },
    /** Runs a command over HTTP and answers its result, or the refusal's code. */
    async command(subject: string, name: string, args: unknown = {}): Promise<Record<string, unknown>> {
      const { json } = await stage.http(subject, "POST", `/api/commands/${name}`, args);
      return json.ok === true ? (json.result as Record<string, unknown>) : json;
    },
    /** Adds a schedule and answers what `add` answered. */
    add: (name: string, cron: string, text: string, more: Record<string, unknown> = {}, by = "amy") =>
      stage.command(by, "schedule.add", {
        name,
        cron,
        text,
        channel: "inbox:ops",
        thread: "new",
        grants: { actions: ["probe:read", "probe:run"] },
        ...more,
      }),
    /** Plays an instance: its three steps, as the Workflow would run them. */
    async play(id: string) {
      const invocation = () => beginInvocation(current.runtime, clock.now, createMeter());
      stage.runs.made.set(id, "running");
      const begun = await beginStep(invocation(), id);
      if (begun === null) return "stale";
      const end = await executeStep(invocation(), current.dispatcher, begun);
      const came = await finishStep(invocation(), current.dispatcher, begun, end);
      stage.runs.made.set(id, "complete");
      return came;
    },
    /** Plays every instance that was made and has not been played. */
    async playAll() {
      for (const [id, status] of stage.runs.made) if (status === "queued") await stage.play(id);
    },
    async firings(name?: string): Promise<FiringRow[]> {
      const all = await DB.prepare("SELECT * FROM firings ORDER BY slot, id").all<FiringRow>();
      return all.results.filter((row) => name === undefined || row.name === name);
    },
    async run(id: string | null): Promise<RunRow | null> {
      return DB.prepare("SELECT * FROM runs WHERE id = ?1").bind(id).first<RunRow>();
    },
    async allRuns(): Promise<RunRow[]> {
      return (await DB.prepare("SELECT * FROM runs ORDER BY admitted_at, id").all<RunRow>()).results;
    },
    async row(name: string): Promise<ScheduleRow | null> {
      return DB.prepare("SELECT * FROM schedules WHERE name = ?1").bind(name).first<ScheduleRow>();
    },
    async messages(thread: string | null): Promise<MessageRow[]> {
      const found = await DB.prepare("SELECT * FROM messages WHERE thread = ?1 ORDER BY at, id")
        .bind(thread)
        .all<MessageRow>();
      return found.results;
    },
    /** Moves the clock to an instant, or by minutes. */
    to(at: number) {
      clock.now = at;
    },
    minutes(count: number) {
      clock.now += count * MINUTE;
    },
  };
  return stage;
}

export type Stage = Awaited<ReturnType<typeof createStage>>;

/** Empties the tables of a test before it. */
export async function clear(): Promise<void> {
  const tables = [
    "schedules",
    "firings",
    "runs",
    "threads",
    "messages",
    "confirmations",
    "plans",
    "ticks",
    "items",
    "channel_states",
    "jobs",
    "slots",
  ];
  await DB.batch(tables.map((table) => DB.prepare(`DELETE FROM ${table}`)));
}
