import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type Refusal, refuse } from "../core/errors.ts";
import { issueField, issueMessage, parseJson } from "../core/payload.ts";

/** Texts made into what a schema takes. Only the schema says what that is. */

/** A value as it was typed: where it goes, and what it may stand for, the first first. */
export interface Typed {
  readonly path: readonly string[];
  readonly readings: readonly unknown[];
}

/** How often a schema is asked at most: some say one thing at a time, or only that all of it is wrong. */
const TRIES_MAX = 64;

/** What a text may stand for: itself, then JSON that is no text, then a list split at commas. */
export function readingsOf(text: string): readonly unknown[] {
  const json = parseJson(text);
  const parts = text.split(",").map((part) => part.trim());
  const list = parts.filter((part) => part !== "");
  return [text, ...(json.ok && typeof json.value !== "string" ? [json.value] : []), list];
}

type Issue = StandardSchemaV1.Issue;

/**
 * Finds the readings that the schema takes, those nearest to plain text first. What it refuses at a value's place is
 * read in the next way; what it refuses further out is tried with each value below it read so.
 */
export async function matchSchema(
  schema: StandardSchemaV1,
  values: readonly Typed[],
): Promise<{ ok: true; input: Record<string, unknown> } | Refusal<"bad_arguments">> {
  const queue: number[][] = [values.map(() => 0)];
  const seen = new Set<string>();
  /** What the schema said of each value: of its text, or of a reading that has the right type and the wrong value. */
  const said = new Map<number, Issue>();
  let first: Issue | undefined;
  let fatal: Issue | null = null;
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const chosen = queue.shift();
    if (chosen === undefined) break;
    const input = build(values, chosen);
    const answer = await schema["~standard"].validate(input);
    if (!answer.issues) return { ok: true, input };
    const { next, dead } = follow(values, chosen, answer.issues, said);
    first ??= answer.issues[0];
    fatal ??= dead;
    for (const one of next) {
      // No more wait than may still be tried: a text may hold a thousand values.
      if (seen.size >= TRIES_MAX || seen.has(one.join())) continue;
      seen.add(one.join());
      queue.push(one);
    }
  }
  const blamed = fatal ?? first;
  const field = issueField(blamed?.path);
  const message = blamed === undefined ? "the arguments fit in no way" : issueMessage(blamed);
  return refuse("bad_arguments", field, field === "" ? message : `${field}: ${message}`);
}

/** What to try after these issues. `dead`: what nothing can mend. */
function follow(
  values: readonly Typed[],
  chosen: readonly number[],
  issues: readonly Issue[],
  said: Map<number, Issue>,
): { next: number[][]; dead: Issue | null } {
  const moved = [...chosen];
  const doubtful = new Set<number>();
  for (const issue of issues) {
    const path = (issue.path ?? []).map((step) => String(typeof step === "object" ? step.key : step));
    const at = values.findIndex((value) => begins(path, value.path));
    if (at !== -1) {
      if (!said.has(at) || (kindOf(said.get(at)) === "schema" && kindOf(issue) === "validation")) said.set(at, issue);
      const { readings, path: own } = values[at] as Typed;
      if ((chosen[at] ?? 0) + 1 >= readings.length) {
        // Deep in what was read the schema is clearer; of the value itself, clearest about its text.
        return { next: [], dead: path.length > (own?.length ?? 0) ? issue : (said.get(at) ?? issue) };
      }
      moved[at] = (chosen[at] ?? 0) + 1;
      continue;
    }
    const below = values.flatMap(({ path: own, readings }, index) =>
      begins(own, path) && (chosen[index] ?? 0) + 1 < readings.length ? [index] : [],
    );
    if (below.length === 0) return { next: [], dead: issue };
    for (const index of below) doubtful.add(index);
  }
  if (moved.some((reading, index) => reading !== chosen[index])) return { next: [moved], dead: null };
  const next = [...doubtful]
    .slice(0, TRIES_MAX)
    .map((which) => chosen.map((reading, index) => (index === which ? reading + 1 : reading)));
  return { next, dead: null };
}

/** What valibot says an issue is about: `schema`, its type, or `validation`, its value. Other libraries do not say. */
function kindOf(issue: Issue | undefined): unknown {
  return (issue as { kind?: unknown } | undefined)?.kind;
}

/** True when a path begins with another, or is it. */
function begins(path: readonly string[], start: readonly string[]): boolean {
  return start.every((step, index) => path[index] === step);
}

function build(values: readonly Typed[], chosen: readonly number[]): Record<string, unknown> {
  const input: Record<string, unknown> = {};
  for (const [index, { path, readings }] of values.entries()) {
    let place = input;
    for (const step of path.slice(0, -1)) {
      // What every object inherits is no place of this one.
      if (!Object.hasOwn(place, step)) place[step] = {};
      place = place[step] as Record<string, unknown>;
    }
    place[path.at(-1) ?? ""] = readings[chosen[index] ?? 0];
  }
  return input;
}
