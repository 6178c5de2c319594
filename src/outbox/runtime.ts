import { type Budget, unboundedBudget } from "../core/budget.ts";
import type { Ports } from "../core/ports.ts";
import { laterOf } from "../core/time.ts";
import { meterDb } from "../db/client.ts";
import { createMeter, type Meter } from "../db/meter.ts";
import { meterFetch } from "../db/network.ts";
import type { Context } from "./context.ts";
import { drainWithin } from "./drain.ts";
import { deadLetters, replay } from "./dead-letters.ts";
import { enqueue, enqueueNow } from "./enqueue.ts";
import type { TopicLease } from "./items.ts";
import type { Module } from "./module.ts";
import type { Topic } from "./topic.ts";

/** What a deployment is made of, once its modules and settings have been read. One for the life of the isolate. */
export interface Runtime {
  readonly modules: readonly Module[];
  readonly topics: ReadonlyMap<string, Topic>;
  readonly db: D1Database;
  readonly ports: Ports;
  /** The queue that carries a topic; null off-platform, where nothing is sent. */
  queue(topic: Topic): Queue | null;
  /** What a module's settings schema answered. */
  settings(module: string): unknown;
}

/** One invocation: its instant, what it has used, its metered client. */
export interface Invocation {
  readonly runtime: Runtime;
  /** ms, taken once. */
  readonly now: number;
  readonly meter: Meter;
  readonly db: D1Database;
}

/** Begins an invocation at `now`. */
export function beginInvocation(runtime: Runtime, now: number, meter: Meter = createMeter()): Invocation {
  return { runtime, now, meter, db: meterDb(runtime.db, meter) };
}

/**
 * The instant it is now, ms: by the clock, and no earlier than the invocation's own, since a tick may be driven ahead of
 * the clock. What an invocation does late in its life counts from here.
 */
export function instantOf({ runtime, now }: Invocation): number {
  return laterOf(now, runtime.ports.clock());
}

/** A topic's lease as the statements of `items.ts` take it. Off-platform every topic is on the drain. */
export function leaseOf(runtime: Runtime, topic: Topic): TopicLease {
  const { path, leaseMs } = topic.options;
  return { topic: topic.name, leaseMs, defaultPath: runtime.queue(topic) === null ? "drain" : path };
}

/** The context a module's code gets in this invocation. */
export function contextFor(invocation: Invocation, module: string, budget: Budget = unboundedBudget()): Context {
  const { runtime, now, meter, db } = invocation;
  const { ports } = runtime;
  return {
    module,
    now,
    clock: ports.clock,
    budget,
    db,
    fetch: meterFetch(ports.fetch, meter),
    log: (event, fields = {}) => ports.log({ ...fields, event, level: "info", module }),
    bytes: ports.bytes,
    random: ports.random,
    settings: runtime.settings(module),
    outbox: {
      enqueue: (topic, items, options) => enqueue(invocation, topic, items, options),
      enqueueNow: (topic, items, options) => enqueueNow(invocation, topic, items, options),
      drainWithin: (topic, within, options) => drainWithin(invocation, topic, within, options),
      deadLetters: (topic, options) => deadLetters(invocation, topic, options),
      replay: (id) => replay(invocation, id),
    },
  };
}
