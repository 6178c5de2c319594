import type { Refusal } from "../core/errors.ts";
import { SECOND } from "../core/time.ts";
import type { Effect } from "../outbox/module.ts";
import type { Registered } from "./define.ts";

/** How long a router may take, ms. */
export const ROUTE_MS = 2 * SECOND;

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
  input: Record<string, unknown>;
  scope: string | null;
  inferred: boolean;
  form: string;
}

/** Text to command: the exact chat form first, then the router. */
export async function route(
  _text: string,
  _registry: ReadonlyMap<string, Registered>,
  _router: Router | null,
  _timeoutMs: number = ROUTE_MS,
): Promise<Route | Refusal<"no_route" | "bad_arguments">> {
  throw new Error("not built yet");
}
