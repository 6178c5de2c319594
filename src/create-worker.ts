import { consumeDeadLetters } from "../consumers/dead-letters.ts";
import { consumeItems } from "../consumers/items.ts";
import { createApi } from "./api/app.ts";
import { readSettings } from "./api/settings.ts";
import { createRegistry } from "./commands/registry.ts";
import type { Limits } from "./core/budget.ts";
import type { Ports } from "./core/ports.ts";
import type { Job } from "./jobs/catalog.ts";
import type { AskStorefront } from "./jobs/quarantine.ts";
import { type JobsAtWork, selectJobs } from "./jobs/selection.ts";
import { type Bindings, configure, type Problem } from "./outbox/configure.ts";
import type { Context } from "./outbox/context.ts";
import type { Module } from "./outbox/module.ts";
import { beginInvocation, contextFor, type Runtime } from "./outbox/runtime.ts";
import { TOPIC_DEFAULTS } from "./outbox/topic.ts";
import { platformPorts } from "./platform.ts";
import { tick } from "./tick/tick.ts";

export interface WorkerOptions<Env> {
  modules: readonly Module[];
  /** The catalog: jobs that `ENABLED_JOBS` may turn on. */
  jobs?: readonly Job[];
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
  jobs: JobsAtWork;
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
  const { modules, jobs: catalog = [], isDeadLetterQueue = (queue) => queue.endsWith("-dead") } = options;
  const deployments = new WeakMap<object, Deployment>();
  const deploymentOf = (env: Env): Deployment => {
    const known = deployments.get(env) ?? deploy({ modules, catalog }, env as Bindings, platformPorts, options.limits);
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
      const { runtime, problems, limits, jobs } = deploymentOf(env);
      if (runtime === null) return logProblems(problems);
      await tick(runtime, controller.scheduledTime, limits, jobs);
    },
    async queue(batch, env) {
      const { runtime, problems, jobs } = deploymentOf(env);
      if (runtime === null) {
        batch.retryAll({ delaySeconds: MISCONFIGURED_RETRY_SECONDS });
        return logProblems(problems);
      }
      if (isDeadLetterQueue(batch.queue)) consumeDeadLetters(batch, runtime);
      else await consumeItems(batch, runtime, jobs.active);
    },
  };
}

/** What a Worker is written as. */
export interface Program {
  modules: readonly Module[];
  catalog: readonly Job[];
}

/** Reads a Worker's environment once: what it is made of, or what is wrong with it. */
export function deploy({ modules, catalog }: Program, env: Bindings, ports: Ports, given?: Limits): Deployment {
  const { settings, problems } = readSettings(env, modules, given);
  const configured = configure(modules, env, ports);
  const stopping = [...problems, ...configured.problems];
  const runtime = stopping.length === 0 ? configured.runtime : null;
  const selection = selectJobs(catalog, env);
  const jobs = { active: selection.active, queue: queueOf(env) };
  const all = [...stopping, ...selection.problems];
  const api = createApi({
    runtime,
    problems: all,
    tokens: settings.tokens,
    registry: createRegistry(modules, catalog, jobs, asksOf(catalog, env, ports)),
    catalog,
    jobs: selection,
    clock: ports.clock,
  });
  return { runtime, problems: all, limits: settings.limits, jobs, api };
}

/** Whom a person may ask again about quarantined work, by job. */
function asksOf(catalog: readonly Job[], env: Bindings, ports: Ports): Map<string, AskStorefront> {
  return new Map(
    catalog.flatMap(({ id, processor }): [string, AskStorefront][] => {
      const ask = processor?.kind === "workflow" ? (processor.asks?.(env, ports.fetch) ?? null) : null;
      return ask === null ? [] : [[id, ask]];
    }),
  );
}

/** Slots travel in the queue that items have by default. */
function queueOf(env: Bindings): Queue | null {
  return (env[TOPIC_DEFAULTS.queue] as Queue | undefined) ?? null;
}

function logProblems(problems: readonly Problem[]): void {
  platformPorts.log({ event: "misconfigured", level: "error", problems });
}
