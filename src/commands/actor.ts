import * as v from "valibot";
import { NAME } from "../core/names.ts";

/** Who acts, and what he may do. An axis that is absent is empty; `"all"` is explicit. No rule, no access. */
export interface Actor {
  /** `http:<subject>`, `service:tick`. */
  readonly id: string;
  readonly grants: Grants;
}

const axis = v.optional(v.union([v.literal("all"), v.array(v.string())]), []);
const grantsSchema = v.strictObject({ actions: axis, channels: axis, scopes: axis });
export type Grants = v.InferOutput<typeof grantsSchema>;

const tokenSchema = v.strictObject({
  subject: v.pipe(v.string(), v.regex(NAME, "a subject is named in a-z, 0-9 and -")),
  /** SHA-256 of the token, lower-case hex. */
  sha256: v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/, "sha256 is 64 lower-case hex digits")),
  grants: grantsSchema,
});
export type Token = v.InferOutput<typeof tokenSchema>;

/** Reads the secret `DUEWORK_TOKENS`. The problem names the entry, never a token. */
export function parseTokens(text: string): { ok: true; tokens: Token[] } | { ok: false; problem: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { ok: false, problem: "it is not JSON" };
  }
  const parsed = v.safeParse(v.array(tokenSchema), value);
  if (parsed.success) return { ok: true, tokens: parsed.output };
  const [issue] = parsed.issues;
  return { ok: false, problem: `${v.getDotPath(issue) ?? "list"}: ${issue.message}` };
}

/** Finds who holds a bearer token; null = nobody. Compares every digest in full, so that time says nothing. */
export async function actorOf(bearer: string, tokens: readonly Token[]): Promise<Actor | null> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(bearer)));
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let found: Token | null = null;
  for (const token of tokens) if (sameText(hex, token.sha256)) found = token;
  return found === null ? null : { id: `http:${found.subject}`, grants: found.grants };
}

function sameText(a: string, b: string): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i += 1) difference |= a.charCodeAt(i) ^ b.charCodeAt(i);
  return difference === 0;
}

/** True when the actor holds the action. */
export function mayDo({ grants }: Actor, action: string): boolean {
  return grants.actions === "all" || grants.actions.includes(action);
}
