import { env } from "cloudflare:workers";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { Meter } from "../../src/db/meter.ts";
import type { CommandAnswer, Context, DrainReport, Module, Topic } from "../../src/index.ts";
import { configure } from "../../src/outbox/configure.ts";
import { consume } from "../../src/outbox/consume.ts";
import { beginInvocation, contextFor } from "../../src/outbox/runtime.ts";

const { DB } = env as unknown as { DB: D1Database };
const TABLES = ["items", "item_keys", "dead_letters", "webhook_endpoints", "webhook_deliveries", "merchant_accounts"];

/** A module on real D1, with a clock that the test moves, a stub for the network, and a queue that keeps what it got. */
export interface Rig {
  db: D1Database;
  /** Every log event so far. */
  logged: Record<string, unknown>[];
  now(): number;
  wait(ms: number): void;
  /** A context of a new invocation. */
  context(): Context<never>;
  /** Runs a command as a surface would: arguments held to the schema, then the handler. */
  run(name: string, args: unknown, scope?: string): Promise<CommandAnswer>;
  /** The same for one that is expected to succeed. */
  // biome-ignore lint/suspicious/noExplicitAny: a test says what it expects of the result
  result(name: string, args: unknown): Promise<any>;
  /** Works what is due of a topic, as a drain. */
  drain(topic: Topic, limit?: number): Promise<DrainReport>;
  /** Consumes what the queue has got, as one batch. Answers how many messages there were. */
  consume(): Promise<number>;
  /** What the last invocation used. */
  used(): Meter;
}

/**
 * Empties the module's tables first: storage is isolated by file, not by test.
 * @param options.path `queue`: there is a queue to send to
 */
export async function createRig(
  module: Module,
  fetch: (request: Request) => Response | Promise<Response>,
  options: { env?: Record<string, string>; path?: "queue" | "drain"; start?: number } = {},
): Promise<Rig> {
  await DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`)));
  let clock = options.start ?? Date.UTC(2027, 0, 10, 12);
  const logged: Record<string, unknown>[] = [];
  const messages: unknown[] = [];
  const sendBatch = async (batch: Iterable<MessageSendRequest>) => {
    for (const { body } of batch) messages.push(body);
  };
  const ports = {
    clock: () => clock,
    random: Math.random,
    bytes: (length: number) => crypto.getRandomValues(new Uint8Array(length)),
    fetch: async (input: string | URL | Request, init?: RequestInit) => fetch(new Request(input as string, init)),
    log: (event: Record<string, unknown>) => void logged.push(event),
  };
  const bindings = { ...options.env, DB, ITEMS: { sendBatch } };
  const { runtime, problems } = configure([module], bindings, ports, options.path === "queue");
  if (runtime === null) throw new Error(JSON.stringify(problems));

  let invocation = beginInvocation(runtime, clock);
  const begin = () => {
    invocation = beginInvocation(runtime, clock);
    return invocation;
  };
  const context = () => contextFor(begin(), module.name) as Context<never>;
  const run: Rig["run"] = async (name, args, scope) => {
    const command = module.commands.find((one) => one.name === name);
    if (command === undefined) throw new Error(`no command ${name}`);
    const checked = command.args["~standard"].validate(args) as StandardSchemaV1.Result<unknown>;
    const [issue] = checked.issues ?? [];
    if (issue !== undefined) return { ok: false, code: "bad_arguments", field: "", message: issue.message };
    return command.handle((checked as { value: unknown }).value, {
      ...context(),
      actor: "http:test",
      scope: scope ?? null,
    });
  };
  return {
    db: DB,
    logged,
    now: () => clock,
    wait: (ms) => {
      clock += ms;
    },
    context,
    run,
    result: async (name, args) => {
      const answer = await run(name, args);
      if (!answer.ok) throw new Error(`${name}: ${answer.code} ${answer.field} ${answer.message}`);
      return answer.result;
    },
    drain: (topic, limit = 100) => {
      const ctx = context();
      return ctx.outbox.drainWithin(topic, ctx.budget, { limit });
    },
    consume: async () => {
      const batch = messages.splice(0).map((body) => ({ body, attempts: 1, settle: () => {} }));
      if (batch.length > 0) await consume(begin(), batch);
      return batch.length;
    },
    used: () => invocation.meter,
  };
}
