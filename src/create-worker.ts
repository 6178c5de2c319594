import { consumeDeadLetters } from "../consumers/dead-letters.ts";
import { consumeItems } from "../consumers/items.ts";
import { createApi } from "./api/app.ts";
import { readSettings } from "./api/settings.ts";
import { createRegistry } from "./commands/registry.ts";
import { DEFAULT_LIMITS, type Limits } from "./core/budget.ts";
import type { Ports } from "./core/ports.ts";
import { type Bindings, configure, type Problem } from "./outbox/configure.ts";
import type { Context } from "./outbox/context.ts";
import type { Module } from "./outbox/module.ts";
import { beginInvocation, contextFor, type Runtime } from "./outbox/runtime.ts";
import { platformPorts } from "./platform.ts";
import { tick } from "./tick/tick.ts";

export interface WorkerOptions<Env> {
  modules: readonly Module[];
  /** Fixes the tick's limits in code; otherwise the variable `SCHEDULED_LIMITS` says them. */
  limits?: Limits;
  /**
   * Serves what the runtime does not: everything but `/healthz` and `/api`. The context is named `app` and holds the
   * outbox, so that a request can put items on it in its own batch.
   */
  fetch?(request: Request, ctx: Context, env: Env): Promise<Response> | Response;
  /** A queue of this name is a dead-letter queue. Default: names that end in `-dead`. */
  isDeadLetterQueue?(queue: string): boolean;
}

interface Deployment {
  runtime: Runtime | null;
  problems: readonly Problem[];
  limits: Limits;
  api: ReturnType<typeof createApi>;
}

/** Time before a message is tried again while the Worker is misconfigured, s. */
const MISCONFIGURED_RETRY_SECONDS = 60;

/**
 * A Worker's handlers over its modules. Its environment needs a D1 database bound as `DB` and the queues that its
 * topics name; what is missing or wrong keeps it from starting work, and `/healthz` says so.
 */
export function createWorker<Env extends object = Bindings>(
  options: WorkerOptions<Env>,
): Required<Pick<ExportedHandler<Env>, "fetch" | "scheduled" | "queue">> {
  const { modules, isDeadLetterQueue = (queue) => queue.endsWith("-dead") } = options;
  const deployments = new WeakMap<object, Deployment>();
  const deploymentOf = (env: Env): Deployment => {
    const known = deployments.get(env) ?? deploy(modules, env as Bindings, platformPorts, options.limits);
    deployments.set(env, known);
    return known;
  };
  return {
    async fetch(request, env) {
      const { api, runtime } = deploymentOf(env);
      const { pathname } = new URL(request.url);
      const own = pathname === "/healthz" || pathname === "/api" || pathname.startsWith("/api/");
      if (own || options.fetch === undefined || runtime === null) return api.fetch(request);
      return options.fetch(request, contextFor(beginInvocation(runtime, runtime.ports.clock()), "app"), env);
    },
    async scheduled(controller, env) {
      const { runtime, problems, limits } = deploymentOf(env);
      if (runtime === null) return logProblems(problems);
      await tick(runtime, controller.scheduledTime, limits);
    },
    async queue(batch, env) {
      const { runtime, problems } = deploymentOf(env);
      if (runtime === null) {
        batch.retryAll({ delaySeconds: MISCONFIGURED_RETRY_SECONDS });
        return logProblems(problems);
      }
      if (isDeadLetterQueue(batch.queue)) consumeDeadLetters(batch, runtime);
      else await consumeItems(batch, runtime);
    },
  };
}

/** Reads a Worker's environment once: what it is made of, or what is wrong with it. */
export function deploy(modules: readonly Module[], env: Bindings, ports: Ports, given?: Limits): Deployment {
  const { settings, problems } = readSettings(env, modules, given);
  const configured = configure(modules, env, ports);
  const all = [...problems, ...configured.problems];
  const runtime = all.length === 0 ? configured.runtime : null;
  const api = createApi({
    runtime,
    problems: all,
    tokens: settings.tokens,
    registry: createRegistry(modules),
    clock: ports.clock,
  });
  return { runtime, problems: all, limits: settings.limits ?? DEFAULT_LIMITS, api };
}

function logProblems(problems: readonly Problem[]): void {
  platformPorts.log({ event: "misconfigured", level: "error", problems });
}
