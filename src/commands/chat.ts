import { type Refusal, refuse } from "../core/errors.ts";
import { SCOPE } from "./actor.ts";
import type { Registered } from "./define.ts";
import { matchSchema, readingsOf, type Typed } from "./typed.ts";
import { cutWords, isKey, mistake, quoteText, type Word } from "./words.ts";

/** Longest text, bytes of UTF-8. */
export const TEXT_MAX_BYTES = 8 * 1024;

/** A command as a text said it. `input` is what its schema takes, not what the schema answers. */
export interface Read {
  ok: true;
  command: Registered;
  input: Record<string, unknown>;
  scope: string | null;
}

const IN_SCOPE = /^\s*in\s+([\w./@-]{1,128}):\s*/;

/**
 * Reads a text as a command: `[in <scope>:] <name's words> <arguments>`. An argument is a value in the order of
 * `positional`, `key=value`, `--key value` or `--key=value`; `grants.actions=…` leads into an object. Quotes are "…"
 * with \" \\ \n, or '…'. A value is text where the schema takes text, else JSON, else a list split at commas; after
 * `key:=` it is JSON and nothing else.
 *
 * `no_route`: no command's name begins it. `bad_arguments`: one does, and the rest is wrong.
 */
export async function readChat(
  text: string,
  registry: ReadonlyMap<string, Registered>,
): Promise<Read | Refusal<"no_route" | "bad_arguments">> {
  const problem = textProblem(text);
  if (problem !== null) return problem;
  const [prefix = "", scope = null] = IN_SCOPE.exec(text) ?? [];
  const found = findCommand(text, prefix.length, registry);
  if (found === null) return noRoute(text.slice(prefix.length), registry);
  const words = cutWords(text, found.next);
  if (!words.ok) return words;
  const values = placeWords(words.words, found.command);
  if (!values.ok) return values;
  const matched = await matchSchema(found.command.args, values.values);
  return matched.ok ? { ok: true, command: found.command, input: matched.input, scope } : matched;
}

/** Why no text of a run can be this one. */
function textProblem(text: string): Refusal<"bad_arguments"> | null {
  const bytes = new TextEncoder().encode(text).length;
  if (bytes > TEXT_MAX_BYTES) {
    return refuse("bad_arguments", "text", `a text is at most ${TEXT_MAX_BYTES} bytes, and this has ${bytes}`);
  }
  const nul = text.indexOf("\0");
  if (nul !== -1) return mistake("a text has no NUL: there is one", nul);
  const half = text.search(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/);
  return half === -1 ? null : mistake("a text is well-formed: half a surrogate pair stands", half);
}

const wordsOf = (name: string) => name.split(".");

/** The command of the longest name whose words begin the text from `start` on. */
function findCommand(
  text: string,
  start: number,
  registry: ReadonlyMap<string, Registered>,
): { command: Registered; next: number } | null {
  const said = [...text.slice(start).matchAll(/\S+/g)];
  let found: { command: Registered; next: number; words: number } | null = null;
  for (const command of registry.values()) {
    const words = wordsOf(command.name);
    if (words.length <= (found?.words ?? 0)) continue;
    const last = said[words.length - 1];
    if (last === undefined || words.some((word, index) => said[index]?.[0] !== word)) continue;
    found = { command, words: words.length, next: start + last.index + last[0].length };
  }
  return found;
}

function noRoute(text: string, registry: ReadonlyMap<string, Registered>): Refusal<"no_route"> {
  const near = nearName(text, [...registry.keys()]);
  return refuse("no_route", "text", `no command begins this text${near === null ? "" : `: was "${near}" meant?`}`);
}

/** Where each word goes. */
function placeWords(
  words: readonly Word[],
  { name, positional }: Registered,
): { ok: true; values: Typed[] } | Refusal<"bad_arguments"> {
  const values: Typed[] = [];
  const taken = new Map<string, "leaf" | "branch">();
  let alone = 0;
  for (const word of words) {
    const key = word.key ?? positional[alone];
    if (word.key === null) alone += 1;
    if (key === undefined) {
      const most = positional.length === 0 ? "none" : `at most ${positional.length} (${positional.join(", ")})`;
      return mistake(`"${name.replaceAll(".", " ")}" takes ${most} without a name: one too many`, word.at);
    }
    const path = key.split(".");
    if (!path.every(isKey)) return mistake(`${key} is no argument: it stands`, word.at, key);
    if (!take(taken, path)) return mistake(`${key} is given twice: again`, word.at, key);
    const readings = word.json ? readJson(word.value) : readingsOf(word.value);
    if (readings === null) return mistake(`what follows ${key}:= is not JSON:`, word.at, key);
    values.push({ path, readings });
  }
  return { ok: true, values };
}

/** Notes that a value stands at a path. False: one does already, there, above or below. */
function take(taken: Map<string, "leaf" | "branch">, path: readonly string[]): boolean {
  const whole = path.join(".");
  if (taken.has(whole)) return false;
  for (let length = 1; length < path.length; length += 1) {
    const above = path.slice(0, length).join(".");
    if (taken.get(above) === "leaf") return false;
    taken.set(above, "branch");
  }
  taken.set(whole, "leaf");
  return true;
}

function readJson(text: string): readonly unknown[] | null {
  try {
    return [JSON.parse(text)];
  } catch {
    return null;
  }
}

/**
 * The text that {@link readChat} reads back as the same, in one line. Text is written as text; all else as `key:=` JSON,
 * which is read in one way whatever the schema takes. What a text cannot hold (NUL, half a pair) is refused when read.
 * @throws when the scope is none, or an argument's name no word: both were held to their forms before
 */
export function chatForm(
  { name, positional }: Pick<Registered, "name" | "positional">,
  input: Record<string, unknown>,
  scope: string | null,
): string {
  if (scope !== null && !SCOPE.test(scope)) throw new Error(`not a scope: ${scope}`);
  const odd = Object.keys(input).find((key) => !isKey(key));
  if (odd !== undefined) throw new Error(`no text can name the argument ${JSON.stringify(odd)}`);
  const parts = [...(scope === null ? [] : ["in", `${scope}:`]), ...wordsOf(name)];
  // Values without names stand in their order, so the first that is no text ends them.
  const misses = positional.findIndex((key) => typeof input[key] !== "string");
  const alone = misses === -1 ? positional : positional.slice(0, misses);
  for (const key of alone) parts.push(quoteText(input[key] as string));
  for (const [key, value] of Object.entries(input)) {
    if (!alone.includes(key)) parts.push(...namedParts(key, value));
  }
  return parts.join(" ");
}

function namedParts(key: string, value: unknown): string[] {
  if (value === undefined) return [];
  if (typeof value === "string") return [`${key}=${quoteText(value)}`];
  const entries = isRecord(value) ? Object.entries(value).filter(([, one]) => one !== undefined) : [];
  if (entries.length > 0 && entries.every(([step]) => isKey(step))) {
    return entries.flatMap(([step, one]) => namedParts(`${key}.${step}`, one));
  }
  return [`${key}:=${JSON.stringify(value)}`];
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The name that a text may have meant: at most two letters away, else one of the same noun; null = none. */
function nearName(text: string, names: readonly string[]): string | null {
  const said = (text.match(/\S{1,64}/g) ?? []).slice(0, 3);
  let best: { form: string; distance: number } | null = null;
  for (const name of names) {
    const words = wordsOf(name);
    const distance = editDistance(said.slice(0, words.length).join(" "), words.join(" "));
    if (distance <= 2 && distance < (best?.distance ?? 3)) best = { form: words.join(" "), distance };
  }
  if (best !== null) return best.form;
  const sameNoun = names.find((name) => wordsOf(name)[0] === said[0]);
  return sameNoun === undefined ? null : wordsOf(sameNoun).join(" ");
}

/** Letters to add, drop or change between two short texts. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const swap = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(swap, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
