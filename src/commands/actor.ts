import * as v from "valibot";
import { NAME } from "../core/names.ts";

/** A person or program behind a token, the runtime's own tick, or a stored schedule. */
export type ActorKind = "user" | "service" | "schedule";

/** Who acts, and what he may do. */
export interface Actor {
  readonly kind: ActorKind;
  /** `http:<subject>`, `service:tick`, `schedule:<name>`. */
  readonly id: string;
  readonly grants: Grants;
}

/** An action: what one does to which noun. */
export const ACTION = /^[a-z0-9][a-z0-9-]{0,62}:(?:read|write|fire|run)$/;
/** A channel: its kind and its name. */
export const CHANNEL = /^(?:inbox|slack|webhook):[a-z0-9][a-z0-9-]{0,62}$/;
/** A scope is a word of the app's own: a shop, a repository. */
export const SCOPE = /^[\w./@-]{1,128}$/;

const words = (pattern: RegExp, what: string) =>
  v.pipe(v.array(v.pipe(v.string(), v.regex(pattern, what))), v.maxLength(200));
const actions = words(ACTION, "an action is <noun>:read, :write, :fire or :run");
const channels = words(CHANNEL, "a channel is inbox:<name>, slack:<name> or webhook:<name>");
// `"all"` in a list would be read as all of them by whoever writes it.
const scope = v.pipe(v.string(), v.regex(SCOPE, "a scope is 1 to 128 of a-z A-Z 0-9 _ . / @ -"), v.notValue("all"));
const scopes = v.pipe(v.array(scope), v.maxLength(200));
const orAll = <Schema extends v.GenericSchema>(schema: Schema) => v.optional(v.union([v.literal("all"), schema]), []);

/** What an actor may do. An axis that is absent is empty; `"all"` is explicit. No rule, no access. */
export const grantsSchema = v.strictObject({
  actions: orAll(actions),
  channels: orAll(channels),
  scopes: orAll(scopes),
});
export type Grants = v.InferOutput<typeof grantsSchema>;

/** The grants of a schedule: each named one by one, never `"all"`. */
export const scheduleGrantsSchema = v.strictObject({
  actions: v.optional(actions, []),
  channels: v.optional(channels, []),
  scopes: v.optional(scopes, []),
});

const tokenSchema = v.strictObject({
  subject: v.pipe(v.string(), v.regex(NAME, "a subject is named in a-z, 0-9 and -")),
  /** SHA-256 of the token, lower-case hex. */
  sha256: v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/, "sha256 is 64 lower-case hex digits")),
  grants: grantsSchema,
  /** The Slack user that is this subject: his messages run under its grants. */
  slackUser: v.optional(v.pipe(v.string(), v.regex(/^[UW][A-Z0-9]{2,20}$/, "a Slack user id begins with U or W"))),
  /** The person whom Cloudflare Access knows by this address: he gets its grants. */
  email: v.optional(v.pipe(v.string(), v.email("an e-mail address"), v.maxLength(254), v.toLowerCase())),
});
export type Token = v.InferOutput<typeof tokenSchema>;

/** The runtime itself: its tick may fire, and nothing else. */
export const TICK: Actor = {
  kind: "service",
  id: "service:tick",
  grants: { actions: ["tick:fire"], channels: [], scopes: [] },
};

/** Reads the secret `DUEWORK_TOKENS`. The problem names the entry, never a token. */
export function parseTokens(text: string): { ok: true; tokens: Token[] } | { ok: false; problem: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { ok: false, problem: "it is not JSON" };
  }
  const parsed = v.safeParse(v.array(tokenSchema), value);
  if (!parsed.success) {
    const [issue] = parsed.issues;
    return { ok: false, problem: `${v.getDotPath(issue) ?? "list"}: ${issue.message}` };
  }
  const tokens = parsed.output;
  for (const key of ["subject", "sha256", "slackUser", "email"] as const) {
    const values = tokens.flatMap((token) => token[key] ?? []);
    const twice = values.findIndex((value, index) => values.indexOf(value) !== index);
    // Who of two is meant would be a guess, and grants are no guesswork.
    if (twice !== -1) return { ok: false, problem: `${twice}.${key}: it is there twice` };
  }
  return { ok: true, tokens };
}

/** Finds who holds a bearer token; null = nobody. Compares every digest in full, so that time says nothing. */
export async function actorOf(bearer: string, tokens: readonly Token[]): Promise<Actor | null> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(bearer)));
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let found: Token | null = null;
  for (const token of tokens) if (sameText(hex, token.sha256)) found = token;
  return found === null ? null : userOf(found);
}

/** Compares two texts in a time that says nothing of where they differ. */
export function sameText(a: string, b: string): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i += 1) difference |= a.charCodeAt(i) ^ b.charCodeAt(i);
  return difference === 0;
}

function userOf({ subject, grants }: Token): Actor {
  return { kind: "user", id: `http:${subject}`, grants };
}

/** A person by his actor's id, as the tokens stand now; null = he is gone. */
export function personById(id: string, tokens: readonly Token[]): Actor | null {
  const token = tokens.find(({ subject }) => id === `http:${subject}`);
  return token === undefined ? null : userOf(token);
}

/** The person whom a Slack user is; null = nobody. */
export function personOnSlack(user: string, tokens: readonly Token[]): Actor | null {
  const token = tokens.find(({ slackUser }) => slackUser === user);
  return token === undefined ? null : userOf(token);
}

/** The person whom Cloudflare Access names; null = nobody. @param email in lower case */
export function personByEmail(email: string, tokens: readonly Token[]): Actor | null {
  const token = tokens.find((one) => one.email === email);
  return token === undefined ? null : userOf(token);
}

/** A schedule as it acts: with exactly its row's grants. */
export function scheduleActor(name: string, grants: Grants): Actor {
  return { kind: "schedule", id: `schedule:${name}`, grants };
}

export type Axis = keyof Grants;

/** True when the actor holds the entry. */
export function holds({ grants }: Actor, axis: Axis, entry: string): boolean {
  const held = grants[axis];
  return held === "all" || held.includes(entry);
}

/** The first of `wanted` that the actor does not hold; null = he holds them all. `"all"` is held only by `"all"`. */
export function lacking(actor: Actor, wanted: Grants): { axis: Axis; entry: string } | null {
  for (const axis of ["actions", "channels", "scopes"] as const) {
    const entries = wanted[axis];
    if (entries === "all") {
      if (actor.grants[axis] !== "all") return { axis, entry: "all" };
      continue;
    }
    const entry = entries.find((one) => !holds(actor, axis, one));
    if (entry !== undefined) return { axis, entry };
  }
  return null;
}

/** True when the actor holds the action. */
export function mayDo(actor: Actor, action: string): boolean {
  return holds(actor, "actions", action);
}
