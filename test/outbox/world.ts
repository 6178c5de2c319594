import { env } from "cloudflare:workers";
import * as v from "valibot";
import { type Limits, UNBOUNDED } from "../../src/core/budget.ts";
import type { LogEvent, Ports } from "../../src/core/ports.ts";
import { configure } from "../../src/outbox/configure.ts";
import { consume, type Verdict } from "../../src/outbox/consume.ts";
import { defineModule, type Module } from "../../src/outbox/module.ts";
import { createMeter, type Meter } from "../../src/db/meter.ts";
import { beginInvocation, contextFor, type Invocation, type Runtime } from "../../src/outbox/runtime.ts";
import { type Topic, type TopicOptions, topic } from "../../src/outbox/topic.ts";
import { platformPorts } from "../../src/platform.ts";
import { tick } from "../../src/tick/tick.ts";

export const DB = (env as unknown as { DB: D1Database }).DB;

/** A message as it was sent, with the delay it was given. */
export interface SentMessage {
  body: unknown;
  delaySeconds: number;
  /** How often it has been delivered. Default: 1. */
  attempts?: number;
}

/** A queue held by the test: it keeps what was sent, and can refuse, hang, or lie about having taken it. */
export class HeldQueue {
  messages: SentMessage[] = [];
  calls = 0;
  mode: "take" | "refuse" | "hang" | "take and hang" = "take";

  take(): SentMessage[] {
    const all = this.messages;
    this.messages = [];
    return all;
  }

  async send(body: unknown, options: { delaySeconds?: number } = {}) {
    return this.sendBatch([{ body, ...options }]);
  }

  async sendBatch(batch: Iterable<{ body: unknown; delaySeconds?: number }>) {
    this.calls += 1;
    if (this.mode === "refuse") throw new Error("Too Many Requests");
    if (this.mode === "hang") return new Promise<never>(() => {});
    for (const { body, delaySeconds = 0 } of batch) this.messages.push({ body: structuredClone(body), delaySeconds });
    if (this.mode === "take and hang") return new Promise<never>(() => {});
    return { metadata: { metrics: { backlogCount: this.messages.length } } };
  }
}

export interface World {
  runtime: Runtime;
  queue: HeldQueue;
  logs: LogEvent[];
  /** The clock, ms; a test moves it. */
  clock: { now: number };
  context(module?: string, meter?: Meter): ReturnType<typeof contextFor>;
  invocation(meter?: Meter): Invocation;
  tick(limits?: Limits): ReturnType<typeof tick>;
  /** Delivers messages to the consumer as one batch. Answers a verdict for each; the meter counts what it used. */
  deliver(messages: readonly SentMessage[], meter?: Meter): Promise<(Verdict | null)[]>;
  rows(topic: string): Promise<Row[]>;
  /** Dead letters of a topic, oldest first. */
  deadLetters(topic: string): Promise<DeadLetter[]>;
  /** Taken keys of a topic. */
  keys(topic: string): Promise<{ k: string; seq: string; held_until: number | null }[]>;
  /** The words of the log so far that are not plain progress. */
  warnings(): string[];
}

export interface Row {
  topic: string;
  lane: number;
  at: number;
  seq: string;
  turn: number;
  due_at: number;
  born_at: number;
  k: string | null;
  attempts: number;
  deliveries: number;
  lapses: number;
  error: string | null;
  payload: string;
}

export interface DeadLetter {
  id: string;
  k: string | null;
  payload: string;
  reason: string;
  error: string;
  attempts: number;
  deliveries: number;
}

/**
 * The real D1 behind a door that the test shuts. `ask` is told what each call is about and answers what becomes of it:
 * it goes through, it fails before it reaches D1, or it lands and its answer is lost.
 */
export function faultyDb(): { db: D1Database; ask: (call: number) => "pass" | "fail" | "lose"; calls: number } {
  const faulty = {
    calls: 0,
    ask: (_call: number): "pass" | "fail" | "lose" => "pass",
    db: new Proxy(DB, {
      get(target, name) {
        const member = Reflect.get(target, name, target);
        if (name !== "batch") return typeof member === "function" ? member.bind(target) : member;
        return async (statements: D1PreparedStatement[]) => {
          faulty.calls += 1;
          const fate = faulty.ask(faulty.calls);
          if (fate === "fail") throw new Error("D1_ERROR: Network connection lost.");
          const results = await target.batch(statements);
          if (fate === "lose") throw new Error("D1_ERROR: Network connection lost.");
          return results;
        };
      },
    }),
  };
  return faulty;
}

const WEEK = 7 * 86_400_000;
let worldsMade = 0;

/** A runtime over the real local D1 with a queue, a clock and randomness of the test's. Worlds of one file share the tick
 * record, so each starts a week after the one before it.
 */
export function createWorld(
  modules: readonly Module[],
  options: { ports?: Partial<Ports>; db?: D1Database; start?: number } = {},
): World {
  const queue = new HeldQueue();
  const logs: LogEvent[] = [];
  worldsMade += 1;
  const clock = { now: options.start ?? Date.UTC(2026, 0, 1, 12) + worldsMade * WEEK };
  const ports: Ports = {
    ...platformPorts,
    clock: () => clock.now,
    random: () => 0.5,
    log: (event) => void logs.push(event),
    ...options.ports,
  };
  const configured = configure(modules, { DB: options.db ?? DB, ITEMS: queue }, ports);
  if (configured.runtime === null) throw new Error(JSON.stringify(configured.problems));
  const { runtime } = configured;
  return {
    runtime,
    queue,
    logs,
    clock,
    context: (module = modules[0]?.name ?? "app", meter = createMeter()) =>
      contextFor(beginInvocation(runtime, clock.now, meter), module),
    invocation: (meter = createMeter()) => beginInvocation(runtime, clock.now, meter),
    tick: (limits = UNBOUNDED) => tick(runtime, clock.now, limits),
    async deliver(messages, meter = createMeter()) {
      const verdicts: (Verdict | null)[] = messages.map(() => null);
      await consume(
        beginInvocation(runtime, clock.now, meter),
        messages.map(({ body, attempts = 1 }, index) => ({
          body: structuredClone(body),
          attempts,
          settle(verdict) {
            verdicts[index] ??= verdict;
          },
        })),
      );
      return verdicts;
    },
    async rows(name) {
      const { results } = await DB.prepare("SELECT * FROM items WHERE topic = ?1 ORDER BY lane, at, seq")
        .bind(name)
        .all<Row>();
      return results;
    },
    async deadLetters(name) {
      const { results } = await DB.prepare("SELECT * FROM dead_letters WHERE topic = ?1 ORDER BY died_at, id")
        .bind(name)
        .all<DeadLetter>();
      return results;
    },
    async keys(name) {
      const { results } = await DB.prepare("SELECT k, seq, held_until FROM item_keys WHERE topic = ?1 ORDER BY k")
        .bind(name)
        .all<{ k: string; seq: string; held_until: number | null }>();
      return results;
    },
    warnings: () => logs.filter(({ level }) => level !== "info").map(({ event }) => event),
  };
}

let modulesMade = 0;

/** A module of one topic with a name no other test has: storage is isolated by file, not by test. */
export function oneTopic<Schema extends v.GenericSchema = v.GenericSchema<{ n: number }>>(
  handle: TopicOptions<Schema>["handle"],
  options: Partial<TopicOptions<Schema>> = {},
): { module: Module; topic: Topic; name: string } {
  modulesMade += 1;
  const name = `t${modulesMade}`;
  const made = topic(`${name}.work`, {
    schema: v.object({ n: v.number() }) as unknown as Schema,
    handle,
    ...options,
  }) as Topic;
  return { module: defineModule(name, { topics: [made] }), topic: made, name: made.name };
}
