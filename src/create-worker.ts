import { consumeDeadLetters } from "../consumers/dead-letters.ts";
import { consumeItems } from "../consumers/items.ts";
import { createAccess } from "./api/access.ts";
import { createApi } from "./api/app.ts";
import { NO_TOKENS, readSettings } from "./api/settings.ts";
import { runInstances } from "./api/threads.ts";
import { jobInstances } from "./api/workflows.ts";
import { slackEvents } from "./api/slack-events.ts";
import { createChannels } from "./commands/channels.ts";
import { confirmationCommands } from "./commands/confirmations.ts";
import type { Registered } from "./commands/define.ts";
import { dispatchCommand, dispatchText } from "./commands/dispatch.ts";
import type { Dispatcher } from "./commands/dispatcher.ts";
import { planCommands } from "./commands/plans.ts";
import { createRegistry } from "./commands/registry.ts";
import type { Router } from "./commands/router.ts";
import { runCommands } from "./commands/run.ts";
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
import { createPanel } from "./panel/app.tsx";
import { sessionReader } from "./panel/guard.ts";
import { platformPorts } from "./platform.ts";
import { scheduleCommands } from "./schedules/commands.ts";
import { tick } from "./tick/tick.ts";

export interface WorkerOptions<Env> {
  modules: readonly Module[];
  /** The catalog: jobs that `ENABLED_JOBS` may turn on. */
  jobs?: readonly Job[];
  /**
   * Finds the command that a free text means, where the text is no command's own form. What it infers is checked like any
   * input, and a write that it infers waits for a person's confirmation. Default: such text is refused.
   */
  router?: Router;
  /** Fixes the tick's limits in code; otherwise the variable `SCHEDULED_LIMITS` says them. */
  limits?: Limits;
  /**
   * Serves what the runtime does not: everything but `/healthz`, `/metrics`, `/openapi.json`, `/docs`, `/panel` and
   * `/api`. The context is named `app` and holds the outbox, so that a request can put items on it in its own batch.
   */
  fetch?(request: Request, ctx: Context, env: Env): Promise<Response> | Response;
  /** A queue of this name is a dead-letter queue. Default: names that end in `-dead`. */
  isDeadLetterQueue?(queue: string): boolean;
}

/** A Worker over its environment, read once for the life of the isolate. */
export interface Deployment {
  runtime: Runtime | null;
  problems: readonly Problem[];
  limits: Limits;
  jobs: JobsAtWork;
  dispatcher: Dispatcher;
  api: ReturnType<typeof createApi>;
  panel: ReturnType<typeof createPanel>;
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
  const { isDeadLetterQueue = (queue) => queue.endsWith("-dead") } = options;
  return {
    async fetch(request, env) {
      const { api, panel, runtime } = deploymentOf(options, env);
      const { pathname } = new URL(request.url);
      if (pathname === "/panel" || pathname.startsWith("/panel/")) return panel.fetch(request);
      const own = OWN_PATHS.some((path) => pathname === path || pathname.startsWith(`${path}/`));
      if (own || options.fetch === undefined || runtime === null) return api.fetch(request);
      return options.fetch(request, contextFor(beginInvocation(runtime, runtime.ports.clock()), "app"), env);
    },
    async scheduled(controller, env) {
      const { runtime, problems, limits, jobs, dispatcher } = deploymentOf(options, env);
      if (runtime === null) return logProblems(problems);
      await tick(runtime, controller.scheduledTime, limits, jobs, dispatcher);
    },
    async queue(batch, env) {
      const { runtime, problems, jobs } = deploymentOf(options, env);
      if (runtime === null) {
        batch.retryAll({ delaySeconds: MISCONFIGURED_RETRY_SECONDS });
        return logProblems(problems);
      }
      if (isDeadLetterQueue(batch.queue)) consumeDeadLetters(batch, runtime);
      else await consumeItems(batch, runtime, jobs.active);
    },
  };
}

/** What the runtime serves itself, and all below it. */
const OWN_PATHS = ["/healthz", "/api", "/openapi.json", "/docs", "/metrics"];

const deployments = new WeakMap<object, WeakMap<object, Deployment>>();

/** The deployment of these options in this environment: made once, since both live as long as the isolate. */
export function deploymentOf<Env extends object>(options: WorkerOptions<Env>, env: Env): Deployment {
  const own = deployments.get(options) ?? new WeakMap<object, Deployment>();
  deployments.set(options, own);
  const { modules, jobs: catalog = [], router = null } = options;
  const known = own.get(env) ?? deploy({ modules, catalog, router }, env as Bindings, platformPorts, options.limits);
  own.set(env, known);
  return known;
}

/** What a Worker is written as. */
export interface Program {
  modules: readonly Module[];
  catalog: readonly Job[];
  router?: Router | null;
}

/** Reads a Worker's environment once: what it is made of, or what is wrong with it. */
export function deploy(program: Program, env: Bindings, ports: Ports, given?: Limits): Deployment {
  const { catalog } = program;
  const setup = createChannels(env);
  const modules = setup.module === null ? program.modules : [...program.modules, setup.module];
  const { settings, problems } = readSettings(env, modules, given);
  const configured = configure(modules, env, ports);
  const stopping = [...problems, ...configured.problems];
  const runtime = stopping.length === 0 ? configured.runtime : null;
  const selection = selectJobs(catalog, env);
  const jobs = { active: selection.active, queue: queueOf(env) };
  const isClosed = !env.DUEWORK_TOKENS;
  const all = [...stopping, ...(isClosed ? [NO_TOKENS] : []), ...selection.problems, ...setup.problems];
  const tokens = settings.tokens ?? [];
  let registry: ReadonlyMap<string, Registered> = new Map();
  const dispatcher: Dispatcher = {
    registry: () => registry,
    tokens,
    router: program.router ?? null,
    runs: workflowOf(env),
    channels: setup.channels,
    alertsTo: settings.alertsTo,
  };
  registry = createRegistry(modules, catalog, jobs, asksOf(catalog, env, ports), [
    dispatchCommand(dispatcher),
    ...confirmationCommands(dispatcher),
    ...runCommands(dispatcher),
    ...planCommands(dispatcher),
    ...scheduleCommands(dispatcher, catalog, jobs),
  ]);
  const access = settings.access === null ? null : createAccess(settings.access, ports);
  const api = createApi({
    runtime,
    problems: all,
    tokens: settings.tokens,
    access,
    session:
      runtime === null || settings.tokens === null ? null : sessionReader(runtime.db, settings.tokens, ports.clock),
    registry,
    catalog,
    jobs: selection,
    runs: dispatcher.runs,
    events: slackEvents({
      clock: ports.clock,
      signingSecret: setup.signingSecret,
      tokens: settings.tokens,
      runtime,
      channels: setup.channels,
      dispatch: (invocation, actor, said) => dispatchText(invocation, dispatcher, actor, said),
    }),
    assets: (env.ASSETS as Fetcher | undefined) ?? null,
    tick: (runtime) => tick(runtime, ports.clock(), settings.limits, jobs, dispatcher),
    clock: ports.clock,
  });
  const panel = createPanel({
    runtime,
    problems: all,
    tokens: settings.tokens,
    access,
    registry,
    catalog,
    selection,
    jobs,
    dispatcher,
    account: accountOf(env),
    instances: [jobInstances(catalog, selection), runInstances(dispatcher.runs)],
    assets: (env.ASSETS as Fetcher | undefined) ?? null,
    clock: ports.clock,
  });
  return { runtime, problems: all, limits: settings.limits, jobs, dispatcher, api, panel };
}

/** The Workflow that runs are instances of; without it nothing is dispatched, and no schedule fires. */
function workflowOf(env: Bindings): Workflow | null {
  const bound = env.RUN as Workflow | undefined;
  return typeof bound?.createBatch === "function" ? bound : null;
}

/** The account whose dashboard the panel links to. It is no secret, and nothing else depends on it. */
function accountOf({ CLOUDFLARE_ACCOUNT_ID: id }: Bindings): string | null {
  return typeof id === "string" && /^[0-9a-f]{32}$/.test(id) ? id : null;
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
