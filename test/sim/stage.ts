import { env } from "cloudflare:workers";
import type { Ports } from "../../src/core/ports.ts";
import { TimedOut } from "../../src/db/deadline.ts";
import { configure } from "../../src/outbox/configure.ts";
import type { Module } from "../../src/outbox/module.ts";
import type { Runtime } from "../../src/outbox/runtime.ts";
import { platformPorts } from "../../src/platform.ts";
import { Ledger, type Snapshot } from "./ledger.ts";
import type { Random } from "./random.ts";

const DB = (env as unknown as { DB: D1Database }).DB;

/**
 * A stage on which invocations of the real code run over the real local D1, one call at a time. Every D1 call, every
 * send and every pause of a handler waits at a gate until the test opens it, so the order of things, and what goes
 * wrong with each, is the test's choice alone and can be repeated.
 */

/** What happens to a call when its gate is opened. */
export type Fault =
  | "none"
  /** It is not made, and its invocation is dead. */
  | "crash before"
  /** It is made, and its invocation is dead before the answer. */
  | "crash after"
  /** It is not made; the caller gets an error and goes on. */
  | "error"
  /** It is made; the caller gets an error and goes on. */
  | "answer lost"
  /** The caller gets a timeout and goes on; it is made some time later. */
  | "late";

/** One invocation: a tick, a consumer's batch, a request. Dead, it changes nothing any more and starts nothing. */
export interface Actor {
  readonly name: string;
  dead: boolean;
  over: boolean;
  error: unknown;
}

export interface Gate {
  readonly actor: Actor;
  readonly kind: "d1" | "send" | "handler";
  readonly label: string;
  run(): Promise<unknown>;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/** A message that the queue holds. */
export interface Flying {
  body: unknown;
  /** ms */
  notBefore: number;
}

class Crashed extends Error {
  override readonly name = "Crashed";
}

export class Stage {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly clock: { now: number };
  gates: Gate[] = [];
  actors = new Set<Actor>();
  messages: Flying[] = [];
  /** Calls whose caller has given up and that have not landed yet. */
  late: (() => Promise<unknown>)[] = [];
  /** What was done, for the report of a failure. */
  readonly trace: string[] = [];
  readonly #actorOf = new WeakMap<object, Actor>();
  #random: Random;
  #broken: unknown = null;
  #started = 0;

  constructor(modules: readonly Module[], random: Random, start: number) {
    this.#random = random;
    this.clock = { now: start };
    const ports: Ports = { ...platformPorts, log: () => {}, random: () => random.next(), bytes: (n) => this.#bytes(n) };
    const configured = configure(modules, { DB, ITEMS: { send() {}, sendBatch() {} } }, ports);
    if (configured.runtime === null) throw new Error(JSON.stringify(configured.problems));
    this.runtime = configured.runtime;
    this.ledger = new Ledger([...this.runtime.topics.values()], this.clock);
  }

  #bytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => this.#random.whole(0, 255));
  }

  /** Makes the database empty again. */
  async begin(): Promise<void> {
    await DB.batch(
      ["items", "item_keys", "dead_letters", "topics", "topic_changes", "pumps", "ticks"].map((table) =>
        DB.prepare(`DELETE FROM ${table}`),
      ),
    );
  }

  /** Starts an invocation. It runs until its first gate. */
  async start(what: string, work: (runtime: Runtime, actor: Actor) => Promise<unknown>): Promise<Actor> {
    this.#started += 1;
    const name = `#${this.#started} ${what.split(" ")[0]}`;
    const actor: Actor = { name, dead: false, over: false, error: null };
    this.actors.add(actor);
    this.trace.push(`${name}: ${what}, at ${this.clock.now}`);
    const clock = () => this.clock.now;
    this.#actorOf.set(clock, actor);
    const log: Ports["log"] = ({ event, level, ...fields }) => {
      if (level !== "info") this.trace.push(`${name}: ${event} ${JSON.stringify(fields)}`);
    };
    const runtime: Runtime = {
      ...this.runtime,
      db: this.#database(actor),
      ports: { ...this.runtime.ports, clock, log },
      queue: () => this.#queue(actor),
    };
    work(runtime, actor)
      .catch((error: unknown) => {
        actor.error = error;
      })
      .finally(() => {
        actor.over = true;
        this.actors.delete(actor);
      });
    await this.#quiet();
    return actor;
  }

  /** Opens a gate with what is to go wrong, and answers when everything stands at gates again. */
  async open(gate: Gate, fault: Fault = "none"): Promise<void> {
    this.gates = this.gates.filter((one) => one !== gate);
    this.trace.push(`${gate.actor.name}: ${gate.label}${fault === "none" ? "" : ` [${fault}]`}`);
    switch (fault) {
      case "none":
        await gate.run().then(gate.resolve, gate.reject);
        break;
      case "crash before":
        this.kill(gate.actor, gate);
        break;
      case "crash after":
        await gate.run().catch(() => {});
        this.kill(gate.actor, gate);
        break;
      case "error":
        gate.reject(new Error(gate.kind === "d1" ? "D1_ERROR: Network connection lost." : "Too Many Requests"));
        break;
      case "answer lost":
        await gate.run().catch(() => {});
        gate.reject(new TimedOut("no answer"));
        break;
      case "late":
        this.late.push(() => gate.run());
        gate.reject(new TimedOut("no answer"));
        break;
    }
    await this.#quiet();
  }

  /** Lets a call land whose caller gave it up long ago. */
  async land(index: number): Promise<void> {
    const [run] = this.late.splice(index, 1);
    this.trace.push("a late call lands");
    await run?.().catch(() => {});
    await this.#quiet();
  }

  kill(actor: Actor, at?: Gate): void {
    actor.dead = true;
    const own = this.gates.filter((gate) => gate.actor === actor);
    this.gates = this.gates.filter((gate) => gate.actor !== actor);
    for (const gate of at === undefined ? own : [at, ...own]) gate.reject(new Crashed());
  }

  /** Runs everything that is under way to its end, without faults. */
  async finish(): Promise<void> {
    for (let gate = this.gates[0]; gate !== undefined; gate = this.gates[0]) await this.open(gate);
    while (this.late.length > 0) await this.land(0);
  }

  /** For handlers: who runs this, and a gate to stand at. A handler of a dead invocation never starts. */
  enter(clock: object, itemId: string): { actor: Actor; pause(): Promise<void> } {
    const actor = this.#actorOf.get(clock);
    if (actor === undefined || actor.dead) throw new Crashed();
    this.ledger.start(itemId, actor);
    this.trace.push(`${actor.name}: handler starts ${itemId}`);
    return {
      actor,
      pause: async () => void (await this.#wait(actor, "handler", `handler of ${itemId}`, async () => {})),
    };
  }

  #wait(actor: Actor, kind: Gate["kind"], label: string, run: () => Promise<unknown>): Promise<unknown> {
    if (actor.dead) return Promise.reject(new Crashed());
    return new Promise((resolve, reject) => {
      this.gates.push({ actor, kind, label, run, resolve, reject });
    });
  }

  #database(actor: Actor): D1Database {
    const call = async (statements: readonly Held[]) => {
      const label = statements.map(({ sql }) => sql.replace(/\s+/g, " ").slice(0, 40)).join("; ");
      return (await this.#wait(actor, "d1", label, () => this.#commit(actor, statements))) as D1Result[];
    };
    const held = (sql: string, real: D1PreparedStatement): Held => ({
      sql,
      real,
      bind: (...values) => held(sql, real.bind(...values)),
      all: async () => (await call([held(sql, real)]))[0] as D1Result,
    });
    return {
      prepare: (sql: string) => held(sql, DB.prepare(sql)),
      batch: (statements: Held[]) => call(statements),
    } as unknown as D1Database;
  }

  /** Makes a call together with a look at all that there is, in one transaction. */
  async #commit(actor: Actor, statements: readonly Held[]): Promise<D1Result[]> {
    const results = await DB.batch([...statements.map(({ real }) => real), DB.prepare(SNAPSHOT)]);
    const [seen] = (results.pop() as D1Result<{ seen: string }>).results;
    try {
      this.ledger.observe(actor, JSON.parse(seen?.seen ?? "{}") as Snapshot);
    } catch (error) {
      // Thrown from here it would be one more D1 error to the code under test.
      this.#broken ??= error;
    }
    return results;
  }

  #queue(actor: Actor): Queue {
    const sendBatch = (batch: Iterable<{ body: unknown; delaySeconds?: number }>) => {
      const all = [...batch].map(({ body, delaySeconds = 0 }) => ({ body: structuredClone(body), delaySeconds }));
      return this.#wait(actor, "send", `send ${JSON.stringify(all.map(({ body }) => body))}`, async () => {
        for (const { body, delaySeconds } of all) {
          this.messages.push({ body, notBefore: this.clock.now + delaySeconds * 1_000 });
        }
        return { metadata: { metrics: { backlogCount: this.messages.length } } };
      });
    };
    return {
      send: (body: unknown, options = {}) => sendBatch([{ body, ...options }]),
      sendBatch,
    } as unknown as Queue;
  }

  /** All that can go on by itself has gone on: nothing here waits for anything but a gate. */
  async #quiet(): Promise<void> {
    for (let turn = 0; turn < 120; turn++) await Promise.resolve();
    if (this.#broken !== null) throw this.#broken;
    this.ledger.checkStarts();
  }
}

interface Held {
  sql: string;
  real: D1PreparedStatement;
  bind(...values: unknown[]): Held;
  all(): Promise<D1Result>;
}

const SNAPSHOT = `SELECT json_object(
  'items', (SELECT json_group_array(json_object('topic', topic, 'lane', lane, 'at', at, 'seq', seq, 'turn', turn,
    'due', due_at, 'k', k, 'attempts', attempts, 'deliveries', deliveries, 'lapses', lapses)) FROM items),
  'keys', (SELECT json_group_array(json_object('topic', topic, 'k', k, 'seq', seq, 'heldUntil', held_until)) FROM item_keys),
  'letters', (SELECT json_group_array(json_object('id', id, 'reason', reason, 'attempts', attempts, 'deliveries', deliveries)) FROM dead_letters),
  'topics', (SELECT json_group_array(json_object('topic', topic, 'path', path, 'paused', paused)) FROM topics)) AS seen`;
