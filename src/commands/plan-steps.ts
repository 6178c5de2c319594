import * as v from "valibot";
import type { Actor } from "./actor.ts";
import { SCOPE } from "./actor.ts";
import type { Registered } from "./define.ts";
import { may } from "./policy.ts";

/** The steps of a plan: which commands it may hold, what they need, and by what they are known again. */

/** One command of a plan, as it is stored. */
export const stepSchema = v.strictObject({
  command: v.string(),
  args: v.record(v.string(), v.unknown()),
  scope: v.nullable(v.pipe(v.string(), v.regex(SCOPE))),
});
export type Step = v.InferOutput<typeof stepSchema>;

/** SHA-256 of the steps as JSON whose keys are sorted, lower-case hex. */
export async function digestOf(steps: readonly Step[]): Promise<string> {
  const bytes = new TextEncoder().encode(JSON.stringify(sorted(steps)));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The same JSON with the keys of each object in order: as it is stored, so that its text does not depend on the typing. */
export function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, one]) => [key, sorted(one)]));
}

/** What keeps a command out of plans; null = nothing does. */
export function unfit(command: Registered | undefined): string | null {
  if (command === undefined) return "there is no such command";
  if (command.effect !== "write") return "it writes nothing: a plan holds commands that write";
  if (command.name.startsWith("plan.")) return "a plan approves no plans";
  if (command.name === "schedule.add") return "a schedule's author is a person, whose grants it lives by";
  if (command.personOnly) return "only a person may ask for it";
  return command.secret ? "its answer is a secret, which a plan would not keep" : null;
}

/** What an actor lacks of what a step needs. The approval stands in for the hand: he is asked as a person would be. */
export function missingFor({ scope }: Step, command: Registered, actor: Actor): string | null {
  const allowed = may({ ...actor, kind: "user" }, command, { scope });
  return allowed.ok ? null : allowed.field;
}
