import type { Context } from "hono";
import type { Child } from "hono/jsx";
import type { Access } from "../api/access.ts";
import type { InstanceSource } from "../api/workflows.ts";
import { type Actor, mayDo, type Token } from "../commands/actor.ts";
import type { Registered } from "../commands/define.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { may } from "../commands/policy.ts";
import type { Job } from "../jobs/catalog.ts";
import type { JobsAtWork, Selection } from "../jobs/selection.ts";
import type { Problem } from "../outbox/configure.ts";
import type { Runtime } from "../outbox/runtime.ts";

/** What the panel serves: a runtime, or why there is none. */
export interface PanelDeps {
  runtime: Runtime | null;
  problems: readonly Problem[];
  /** Null: missing or malformed, and nobody gets in. */
  tokens: readonly Token[] | null;
  /** Null: Cloudflare Access is not set up. */
  access: Access | null;
  registry: ReadonlyMap<string, Registered>;
  catalog: readonly Job[];
  selection: Selection;
  jobs: JobsAtWork;
  dispatcher: Dispatcher;
  /** Where Workflow instances are known from. */
  instances: readonly InstanceSource[];
  /** Cloudflare's account that this Worker runs in, for links to its dashboard; null = not said. */
  account: string | null;
  /** The folder of assets; null = it is not bound, and pages come without style and script. */
  assets: Pick<Fetcher, "fetch"> | null;
  clock(): number;
}

/** What the last act came to, shown once. */
export interface Notice {
  tone: "good" | "bad";
  text: string;
}

/** One request of somebody who is signed in. */
export interface Visit {
  readonly deps: PanelDeps;
  readonly runtime: Runtime;
  readonly db: D1Database;
  /** ms */
  readonly now: number;
  readonly actor: Actor;
  /** What this session's forms carry. */
  readonly csrf: string;
  readonly url: URL;
  readonly notice: Notice | null;
}

export type Env = { Variables: { visit: Visit; session: string } };

/** A page's own part: the frame around it is the layout's. */
export interface Content {
  title: string;
  body: Child;
  /** Looks again by itself every few seconds; `rarely` where a look counts many rows. Default: it does. */
  live?: boolean | "rarely";
  status?: 200 | 400 | 403 | 404 | 409 | 413 | 500 | 502 | 503;
}

export type Page = (visit: Visit, c: Context<Env>) => Promise<Content>;

/** True when the actor may run the command: the policy's word, and of nothing else. */
export function canDo({ actor, deps }: Pick<Visit, "actor" | "deps">, command: string): boolean {
  const registered = deps.registry.get(command);
  return registered !== undefined && may(actor, registered).ok;
}

/** True when the actor may read what the action names. */
export function canRead({ actor }: Pick<Visit, "actor">, action: string): boolean {
  return mayDo(actor, action);
}

/** Where a sign-in leads back to: pages of the runtime's own that are for eyes. */
const FOR_EYES = ["/panel", "/docs"];

/** A path of the panel or of `/docs`; anything else, another site above all, is the overview. */
export function ownPath(text: unknown): string {
  // One slash and no backslash: a browser takes `//` and `/\` for another site's address.
  if (typeof text !== "string" || !/^\/[a-z](?:[\x21-\x5b\x5d-\x7e]*)$/.test(text)) return "/panel";
  const { origin, pathname, search } = new URL(text, "https://panel.invalid");
  const own = FOR_EYES.some((path) => pathname === path || pathname.startsWith(`${path}/`));
  return own && origin === "https://panel.invalid" ? pathname + search : "/panel";
}

/** The page's own address with other parameters; null takes one away. */
export function linkTo(url: URL, change: Record<string, string | null>): string {
  const query = new URLSearchParams(url.search);
  for (const [name, value] of Object.entries(change)) {
    if (value === null) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return text === "" ? url.pathname : `${url.pathname}?${text}`;
}
