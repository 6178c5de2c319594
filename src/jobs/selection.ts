import type { Bindings, Problem } from "../outbox/configure.ts";
import type { Job, Processor, ProcessorKind } from "./catalog.ts";

/** A job that is on, and who works its slots. */
export interface ActiveJob {
  job: Job;
  kind: ProcessorKind;
  /** What works it: the route's address and secret, the handler, or the Workflow's binding. */
  work:
    | { kind: "route"; url: string; secret: string }
    | Extract<Processor, { kind: "module" }>
    | { kind: "workflow"; workflow: Workflow };
}

/** The jobs that are on, and the queue that carries the slots of `route` and `module` jobs. */
export interface JobsAtWork {
  readonly active: readonly ActiveJob[];
  readonly queue: Queue | null;
}

export const NO_JOBS: JobsAtWork = { active: [], queue: null };

export interface Selection {
  active: readonly ActiveJob[];
  /** Jobs that are off because of a mistake, and ids that say nothing. They stop nothing else. */
  problems: readonly Problem[];
}

/**
 * Which jobs are on and who works them, by the two variables: `ENABLED_JOBS` turns a job on, and its slots go to the
 * legacy route; `WORKER_PROCESSORS` then moves its slots here. Taking an id out of either goes one step back.
 */
export function selectJobs(catalog: readonly Job[], env: Bindings): Selection {
  const problems: Problem[] = [];
  const enabled = readList(env, "ENABLED_JOBS", catalog, problems);
  const moved = readList(env, "WORKER_PROCESSORS", catalog, problems);
  for (const id of moved) {
    if (enabled.has(id)) continue;
    const detail = `${id} is not in ENABLED_JOBS, so it is off and its processor is never asked`;
    problems.push({ code: "processor_of_a_job_that_is_off", setting: "WORKER_PROCESSORS", detail });
  }
  const active = catalog
    .filter(({ id }) => enabled.has(id))
    .flatMap((job) => {
      const work = moved.has(job.id) ? workHere(job, env) : workByRoute(job, env);
      if (!("code" in work)) return [{ job, kind: work.kind, work }];
      problems.push(work);
      return [];
    });
  return { active, problems };
}

function workHere({ id, processor }: Job, env: Bindings): ActiveJob["work"] | Problem {
  if (processor === null) {
    return {
      code: "no_processor",
      setting: "WORKER_PROCESSORS",
      detail: `${id} has no processor here: only its route`,
    };
  }
  if (processor.kind === "module") return processor;
  const [problem] = processor.problems?.(env) ?? [];
  if (problem !== undefined) return { ...problem, detail: `${id}: ${problem.detail}` };
  const workflow = env[processor.binding] as Workflow | undefined;
  if (typeof workflow?.createBatch === "function") return { kind: "workflow", workflow };
  return {
    code: "binding_missing",
    setting: processor.binding,
    detail: `${id} needs the Workflow bound as ${processor.binding}`,
  };
}

function workByRoute({ id, route }: Job, env: Bindings): ActiveJob["work"] | Problem {
  if (route === null) {
    return { code: "no_route", setting: "ENABLED_JOBS", detail: `${id} has no route: add it to WORKER_PROCESSORS too` };
  }
  const url = env[route.urlSetting];
  const secret = env[route.secretSetting];
  if (typeof url !== "string" || !URL.canParse(url)) {
    return { code: "bad_setting", setting: route.urlSetting, detail: `${id} needs the address of its route` };
  }
  if (typeof secret !== "string" || secret === "") {
    return { code: "bad_setting", setting: route.secretSetting, detail: `${id} needs the secret of its route` };
  }
  return { kind: "route", url, secret };
}

function readList(env: Bindings, setting: string, catalog: readonly Job[], problems: Problem[]): Set<string> {
  const value = env[setting] ?? "";
  if (typeof value !== "string") {
    problems.push({ code: "bad_setting", setting, detail: "a list of ids, separated by commas" });
    return new Set();
  }
  const ids = value
    .split(",")
    .map((id) => id.trim())
    .filter((id) => id !== "");
  for (const id of ids) {
    if (catalog.some((job) => job.id === id)) continue;
    problems.push({ code: "unknown_job", setting, detail: `there is no job ${id}` });
  }
  return new Set(ids);
}
