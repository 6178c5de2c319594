import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { checkJson, PAYLOAD_MAX_BYTES } from "../core/payload.ts";
import { safeText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { Effect } from "../outbox/module.ts";
import { SCOPE } from "./actor.ts";
import { chatForm, readChat, TEXT_MAX_BYTES } from "./chat.ts";
import type { Registered } from "./define.ts";
import { checkArguments } from "./execute.ts";

/** How long a router may take, ms. */
export const ROUTE_MS = 2 * SECOND;
/** Longest reason of a router that is passed on, characters. */
const REASON_CHARS = 200;

/** What a router made of a text: a command by its name, and its arguments. */
export interface Routed {
  command: string;
  args: Record<string, unknown>;
  scope?: string | null;
}

/** Finds the command that a free text means; null = none. What it answers is checked like any input. */
export type Router = (
  text: string,
  commands: readonly { name: string; effect: Effect; help: string }[],
) => Routed | null | Promise<Routed | null>;

/** A command that a text stands for. `inferred`: a router said so, not the text itself. `form` is its chat form. */
export interface Route {
  ok: true;
  command: Registered;
  /** What its schema takes. */
  input: Record<string, unknown>;
  scope: string | null;
  inferred: boolean;
  form: string;
}

const routedSchema = v.strictObject({
  command: v.string(),
  args: v.record(v.string(), v.unknown()),
  scope: v.optional(v.nullable(v.pipe(v.string(), v.regex(SCOPE))), null),
});

/**
 * The command that a text stands for: by its chat form, else by what the router makes of it. A router that is late,
 * that throws, or whose answer is no command with fitting arguments has found nothing: `no_route`, with the reason.
 */
export async function route(
  text: string,
  registry: ReadonlyMap<string, Registered>,
  router: Router | null,
  timeoutMs: number = ROUTE_MS,
): Promise<Route | Refusal<"no_route" | "bad_arguments">> {
  const read = await readChat(text, registry);
  if (read.ok) {
    // What is nested too deeply for a store, or is no number there, would take all that is written with it down.
    const json = checkJson(read.input, { maxBytes: PAYLOAD_MAX_BYTES });
    if (json.ok) return routeTo(read.command, read.input, read.scope, false);
    const field = json.path.replace(/^\$\.?/, "");
    return refuse("bad_arguments", field, `${field}: ${json.problem}`);
  }
  if (read.code !== "no_route" || router === null) return read;
  try {
    const answer = await withDeadline(ask(router, text, registry), timeoutMs, "the router");
    return answer === null ? read : await checkRouted(answer, registry);
  } catch (error) {
    return noRoute(safeText(error, REASON_CHARS));
  }
}

/** Async, so that a router that throws at once is one that rejects. */
async function ask(router: Router, text: string, registry: ReadonlyMap<string, Registered>): Promise<unknown> {
  const commands = [...registry.values()].map(({ name, effect, help }) => ({ name, effect, help }));
  return router(text, commands);
}

async function checkRouted(
  answer: unknown,
  registry: ReadonlyMap<string, Registered>,
): Promise<Route | Refusal<"no_route">> {
  // Written out and read back: what is stored, shown and run later is what was checked here.
  const json = checkJson(answer, { maxBytes: 2 * TEXT_MAX_BYTES });
  if (!json.ok) return noRoute(`its answer is no JSON: ${json.path}: ${json.problem}`);
  const routed = v.safeParse(routedSchema, JSON.parse(json.json));
  if (!routed.success) return noRoute(`its answer has no form of one: ${routed.issues[0].message}`);
  const { command: name, args, scope } = routed.output;
  const command = registry.get(name);
  if (command === undefined) return noRoute(`there is no command ${safeText(name, REASON_CHARS)}`);
  const checked = await checkArguments(command, args);
  return checked.ok ? routeTo(command, args, scope, true) : noRoute(`${name}: ${checked.message}`);
}

function routeTo(command: Registered, input: Record<string, unknown>, scope: string | null, inferred: boolean): Route {
  return { ok: true, command, input, scope, inferred, form: chatForm(command, input, scope) };
}

function noRoute(reason: string): Refusal<"no_route"> {
  return refuse("no_route", "text", `no command is this text, and the router found none: ${reason}`);
}
