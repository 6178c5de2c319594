import { type Limits, UNBOUNDED } from "./core/budget.ts";
import { DueworkError } from "./core/errors.ts";
import type { Ports } from "./core/ports.ts";
import { type Bindings, configure } from "./outbox/configure.ts";
import type { Module } from "./outbox/module.ts";
import { platformPorts } from "./platform.ts";
import type { TickReport } from "./tick/record.ts";
import { tick } from "./tick/tick.ts";

export interface FanOutOptions {
  modules: readonly Module[];
  /** A D1 database, or a client that answers as one, with the package's migrations applied. */
  db: D1Database;
  /** The minute that is due, ms; the tick counts from the later of it and the clock. Default: the clock. */
  scheduledTime?: number;
  /** Default: none. */
  limits?: Limits;
  /** Variables for the modules' settings. */
  env?: Bindings;
  ports?: Partial<Ports>;
}

/**
 * The same tick for a host without queues: every topic goes by the drain, with no limits unless they are given.
 * @throws DueworkError `misconfigured` naming the first setting that is wrong
 */
export async function fanOut(options: FanOutOptions): Promise<TickReport> {
  const ports = { ...platformPorts, ...options.ports };
  const { runtime, problems } = configure(options.modules, { ...options.env, DB: options.db }, ports, false);
  if (runtime === null) {
    const [first] = problems;
    throw new DueworkError("misconfigured", first?.setting ?? "modules", first?.detail ?? "misconfigured");
  }
  return tick(runtime, options.scheduledTime ?? ports.clock(), options.limits ?? UNBOUNDED);
}
