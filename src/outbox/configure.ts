import type { Ports } from "../core/ports.ts";
import { issueField } from "../core/payload.ts";
import { errorText } from "../core/text.ts";
import type { Module } from "./module.ts";
import type { Runtime } from "./runtime.ts";
import type { Topic } from "./topic.ts";

/** Something wrong with the configuration. Any of them keeps the Worker from starting work. */
export interface Problem {
  /** Stable. */
  code: string;
  /** The binding, variable or option. */
  setting: string;
  detail: string;
}

export type Bindings = Readonly<Record<string, unknown>>;

export type Configured = { runtime: Runtime; problems: [] } | { runtime: null; problems: Problem[] };

/**
 * Builds the runtime of a deployment from its modules and its environment. Everything is checked at once, so that a
 * person mends all of it in one go.
 *
 * @param sends false off-platform, where there is no queue and every topic goes by the drain
 */
export function configure(modules: readonly Module[], env: Bindings, ports: Ports, sends = true): Configured {
  const problems: Problem[] = [];
  const topics = new Map<string, Topic>();
  const settings = new Map<string, unknown>();
  const names = new Set<string>();
  for (const module of modules) {
    if (names.has(module.name)) {
      problems.push({ code: "module_twice", setting: module.name, detail: `two modules are named ${module.name}` });
    }
    names.add(module.name);
    for (const topic of module.topics) {
      topics.set(topic.name, topic);
      problems.push(...problemsOf(topic, env, sends));
    }
    const read = readSettings(module, env);
    if ("problem" in read) problems.push(read.problem);
    else settings.set(module.name, read.value);
  }
  const db = env.DB;
  if (!isDatabase(db)) {
    problems.push({ code: "binding_missing", setting: "DB", detail: "bind a D1 database as DB" });
    return { runtime: null, problems };
  }
  if (problems.length > 0) return { runtime: null, problems };
  return {
    problems: [],
    runtime: {
      modules,
      topics,
      db,
      ports,
      queue: (topic) => (sends ? (env[topic.options.queue] as Queue) : null),
      settings: (module) => settings.get(module),
    },
  };
}

function problemsOf(topic: Topic, env: Bindings, sends: boolean): Problem[] {
  const { queue } = topic.options;
  if (!sends || isQueue(env[queue])) return [];
  const detail = `topic ${topic.name} is carried by the queue bound as ${queue}, which is not bound`;
  return [{ code: "queue_not_bound", setting: queue, detail }];
}

function readSettings(module: Module, env: Bindings): { value: unknown } | { problem: Problem } {
  if (module.settings === null) return { value: undefined };
  const refused = (setting: string, detail: string) => ({ problem: { code: "bad_setting", setting, detail } });
  try {
    const answer = module.settings["~standard"].validate(env);
    if (answer instanceof Promise) return refused(module.name, "the module's settings schema is asynchronous");
    if (!answer.issues) return { value: answer.value };
    const [issue] = answer.issues;
    const path = issueField(issue?.path);
    return refused(path || module.name, String(issue?.message));
  } catch (error) {
    return refused(module.name, errorText(error));
  }
}

function isDatabase(value: unknown): value is D1Database {
  return typeof (value as D1Database | undefined)?.prepare === "function";
}

function isQueue(value: unknown): value is Queue {
  return typeof (value as Queue | undefined)?.sendBatch === "function";
}
