import { env } from "cloudflare:workers";
import * as v from "valibot";
import { type Limits, UNBOUNDED } from "../../src/core/budget.ts";
import type { LogEvent, Ports } from "../../src/core/ports.ts";
import { configure } from "../../src/outbox/configure.ts";
import { consume, type Verdict } from "../../src/outbox/consume.ts";
import { defineModule, type Module } from "../../src/outbox/module.ts";
import { beginInvocation, contextFor, type Runtime } from "../../src/outbox/runtime.ts";
import { type Topic, type TopicOptions, topic } from "../../src/outbox/topic.ts";
import { platformPorts } from "../../src/platform.ts";
import { tick } from "../../src/tick/tick.ts";

export const DB = (env as unknown as { DB: D1Database }).DB;

/** A message as it was sent, with the delay it was given. */
export interface SentMessage {
  body: unknown;
  delaySeconds: number;
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
  context(module?: string): ReturnType<typeof contextFor>;
  tick(limits?: Limits): ReturnType<typeof tick>;
  /** Delivers messages to the consumer as one batch. Answers a verdict for each. */
  deliver(messages: readonly SentMessage[]): Promise<(Verdict | null)[]>;
  rows(topic: string): Promise<Row[]>;
}

export interface Row {
  topic: string;
  lane: number;
  at: number;
  seq: string;
  turn: number;
  due_at: number;
  attempts: number;
  deliveries: number;
  lapses: number;
  error: string | null;
  payload: string;
}

/** A runtime over the real local D1 with a queue, a clock and randomness of the test's. */
export function createWorld(modules: readonly Module[], options: { ports?: Partial<Ports>; db?: D1Database; start?: number } = {}): World {
  const queue = new HeldQueue();
  const logs: LogEvent[] = [];
  const clock = { now: options.start ?? Date.UTC(2026, 0, 1, 12) };
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
    context: (module = modules[0]?.name ?? "app") => contextFor(beginInvocation(runtime, clock.now), module),
    tick: (limits = UNBOUNDED) => tick(runtime, clock.now, limits),
    async deliver(messages) {
      const verdicts: (Verdict | null)[] = messages.map(() => null);
      await consume(
        beginInvocation(runtime, clock.now),
        messages.map(({ body }, index) => ({
          body: structuredClone(body),
          settle(verdict) {
            verdicts[index] ??= verdict;
          },
        })),
      );
      return verdicts;
    },
    async rows(name) {
      const { results } = await DB.prepare("SELECT * FROM items WHERE topic = ?1 ORDER BY lane, at, seq").bind(name).all<Row>();
      return results;
    },
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
