import { type Budget, unboundedBudget } from "./core/budget.ts";
import { DueworkError } from "./core/errors.ts";
import type { LogEvent, Ports } from "./core/ports.ts";
import { type Bindings, configure } from "./outbox/configure.ts";
import type { ItemContext } from "./outbox/context.ts";
import type { Module } from "./outbox/module.ts";
import { beginInvocation, contextFor } from "./outbox/runtime.ts";
import { platformPorts } from "./platform.ts";

export interface TestContextOptions {
  /** A real local D1 database with the package's migrations applied. */
  db: D1Database;
  /** The module under test; its topics can be enqueued. */
  module: Module;
  /** Unbounded when absent, as everywhere outside `scheduled`. */
  budget?: Budget;
  now?: number;
  /** Variables and bindings: settings, and the queues (without one, nothing is sent and rows are born ready). */
  env?: Bindings;
  /** Time, randomness, the network, the log: whatever the test wants to hold. */
  ports?: Partial<Ports>;
}

/**
 * A context for a module author's own tests: the real outbox over a real local D1, everything else held by the test.
 * `logs` collects what the code logged.
 * @throws DueworkError `misconfigured` naming the setting that is wrong
 */
export function testContext(options: TestContextOptions): ItemContext & { readonly logs: readonly LogEvent[] } {
  const logs: LogEvent[] = [];
  const ports = { ...platformPorts, log: (event: LogEvent) => void logs.push(event), ...options.ports };
  const env = { ...options.env, DB: options.db };
  const sends = options.module.topics.some((topic) => env[topic.options.queue as keyof typeof env] !== undefined);
  const { runtime, problems } = configure([options.module], env, ports, sends);
  if (runtime === null) {
    const [first] = problems;
    throw new DueworkError("misconfigured", first?.setting ?? "module", first?.detail ?? "misconfigured");
  }
  const invocation = beginInvocation(runtime, options.now ?? ports.clock());
  const context = contextFor(invocation, options.module.name, options.budget ?? unboundedBudget());
  return {
    ...context,
    signal: new AbortController().signal,
    deadline: Number.MAX_SAFE_INTEGER,
    logs,
  } as ItemContext & {
    logs: LogEvent[];
  };
}
