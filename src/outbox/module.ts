import type { StandardSchemaV1 } from "@standard-schema/spec";
import { DueworkError } from "../core/errors.ts";
import { NAME, splitTopicName } from "../core/names.ts";
import type { Floor } from "../core/split.ts";
import type { CommandContext, Context } from "./context.ts";
import type { Topic } from "./topic.ts";

/** What a command does to the world: `read` changes nothing, `exec` starts work, `write` changes durable state. */
export type Effect = "read" | "exec" | "write";

/** A named, typed operation. Every surface (HTTP, text, CLI, panel) is made from these. */
export interface Command<Settings = unknown> {
  /** `<noun>.<verb>`; a module's commands begin with the module's name. */
  readonly name: string;
  readonly effect: Effect;
  /** The action that an actor must hold, `<noun>:read|write|fire|run`. */
  readonly grant: string;
  readonly args: StandardSchemaV1;
  /** One line. */
  readonly help: string;
  /** Arguments that a text may give without their names, in this order. Default: none. */
  readonly positional?: readonly string[];
  /** Knows scopes: `in <scope>:` before its text is `ctx.scope`, and the actor must hold it. Default: false. */
  readonly scoped?: boolean;
  /** Its answer holds a secret, which is shown once and kept nowhere. Default: false. */
  readonly secret?: boolean;
  // biome-ignore lint/suspicious/noExplicitAny: the arguments are what `args` answers
  handle(args: any, ctx: CommandContext<Settings>): Promise<CommandAnswer>;
}

/** A command's answer: its result, or a refusal whose code the surfaces pass on. */
export type CommandAnswer = { ok: true; result: unknown } | { ok: false; code: string; field: string; message: string };

/** What {@link command} takes: the same, with the arguments typed by their schema. */
export interface CommandOptions<Schema extends StandardSchemaV1, Settings> {
  name: string;
  effect: Effect;
  grant: string;
  args: Schema;
  help: string;
  positional?: readonly string[];
  scoped?: boolean;
  secret?: boolean;
  handle(args: StandardSchemaV1.InferOutput<Schema>, ctx: CommandContext<Settings>): Promise<CommandAnswer>;
}

/** Declares a command. */
export function command<Schema extends StandardSchemaV1, Settings = unknown>(
  options: CommandOptions<Schema, Settings>,
): Command<Settings> {
  return options as Command<Settings>;
}

/** What a module is made of. */
export interface ModuleOptions<Settings = unknown> {
  topics?: readonly Topic[];
  /** Called in every tick within the module's share of the budget. */
  scheduled?(ctx: Context<Settings>): Promise<void>;
  commands?: readonly Command<Settings>[];
  /** The least share that is worth starting with: below it the module gets nothing this tick and is first in the next. */
  floor?: Floor;
  /**
   * Reads the module's settings from the Worker's environment (variables and secrets) and answers `ctx.settings`. Any
   * Standard Schema that answers at once; keys it does not name are ignored. What it refuses stops the Worker from
   * starting work, and `/healthz` names the setting.
   */
  settings?: StandardSchemaV1<unknown, Settings>;
}

/** A unit of user code: topics, a scheduled part, commands. Made by {@link defineModule}. */
export interface Module {
  readonly name: string;
  readonly topics: readonly Topic[];
  readonly commands: readonly Command[];
  readonly scheduled: ((ctx: Context<never>) => Promise<void>) | null;
  readonly floor: Floor | null;
  readonly settings: StandardSchemaV1 | null;
}

/**
 * Declares a module.
 * @throws DueworkError `bad_module` naming the field: a bad name, a topic or command of another module's name, two of
 * one name.
 */
export function defineModule<Settings = unknown>(name: string, options: ModuleOptions<Settings>): Module {
  const fail = (field: string, message: string): never => {
    throw new DueworkError("bad_module", `${name}.${field}`, message);
  };
  if (!NAME.test(name)) fail("name", `a module is named in a-z, 0-9 and -, not "${name}"`);
  const names = new Set<string>();
  for (const { name: topic } of options.topics ?? []) {
    if (splitTopicName(topic).module !== name) fail("topics", `topic ${topic} does not begin with "${name}."`);
    if (names.has(topic)) fail("topics", `topic ${topic} is declared twice`);
    names.add(topic);
  }
  for (const { name: command } of options.commands ?? []) {
    if (!command.startsWith(`${name}.`)) fail("commands", `command ${command} does not begin with "${name}."`);
    if (names.has(`command ${command}`)) fail("commands", `command ${command} is declared twice`);
    names.add(`command ${command}`);
  }
  return {
    name,
    topics: options.topics ?? [],
    commands: (options.commands ?? []) as readonly Command[],
    scheduled: (options.scheduled as Module["scheduled"]) ?? null,
    floor: options.floor ?? null,
    settings: options.settings ?? null,
  };
}
