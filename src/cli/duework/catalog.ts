import * as v from "valibot";
import { type Deployment, UnreachableError } from "./deployment.ts";
import type { JsonSchema } from "./schema.ts";

/** What a deployment can be asked: its registry's commands, and the reads of its OpenAPI document. */

/** One thing that can be asked for, by its words. */
export interface Entry {
  /** `["schedule", "add"]` */
  readonly words: readonly string[];
  readonly help: string;
  /** Arguments that need no name, in this order. */
  readonly positional: readonly string[];
  /** What its arguments are; null = only the deployment knows. */
  readonly args: JsonSchema | null;
  readonly grant: string;
  readonly ask: Ask;
}

export type Ask =
  | { readonly kind: "command"; readonly name: string; readonly effect: string; readonly secret: boolean }
  /** `part`: the one value of the answer that is shown. */
  | { readonly kind: "read"; readonly path: string; readonly parts: readonly string[]; readonly part?: string };

const schema = v.record(v.string(), v.unknown());
const name = v.pipe(v.string(), v.regex(/^[a-z0-9][\w-]*(\.[a-z0-9][\w-]*)*$/i));
const commandList = v.object({
  items: v.array(
    v.object({
      name,
      effect: v.string(),
      grant: v.string(),
      help: v.string(),
      positional: v.array(v.string()),
      secret: v.boolean(),
      args: v.nullable(schema),
    }),
  ),
});
const parameter = v.object({ name: v.string(), in: v.string(), required: v.optional(v.boolean(), false), schema });
const document = v.object({ paths: v.record(v.string(), v.object({ get: v.optional(v.unknown()) })) });
const operation = v.object({
  summary: v.optional(v.string(), ""),
  description: v.optional(v.string(), ""),
  parameters: v.optional(v.array(parameter), []),
});

/**
 * All that a deployment can be asked, by its words.
 * @throws RefusedError, UnreachableError
 */
export async function loadCatalog(deployment: Deployment): Promise<Entry[]> {
  const [commands, api] = await Promise.all([deployment.read("/api/commands"), deployment.read("/openapi.json")]);
  const list = v.safeParse(commandList, commands.value);
  const reads = v.safeParse(document, api.value);
  if (!list.success || !reads.success) {
    throw new UnreachableError(`${deployment.url} does not list its commands as this version reads them`);
  }
  const entries = [...readEntries(reads.output), ...list.output.items.map(commandEntry)];
  // A read wins: it is the same by GET.
  const byWords = new Map(entries.reverse().map((entry) => [entry.words.join(" "), entry]));
  return [...byWords.values()].sort((a, b) => (a.words.join(" ") < b.words.join(" ") ? -1 : 1));
}

function commandEntry(command: v.InferOutput<typeof commandList>["items"][number]): Entry {
  const { name, effect, grant, help, positional, secret, args } = command;
  return { words: name.split("."), help, positional, args, grant, ask: { kind: "command", name, effect, secret } };
}

function readEntries({ paths }: v.InferOutput<typeof document>): Entry[] {
  return Object.entries(paths).flatMap(([path, { get }]) => {
    const words = wordsOf(path);
    const read = v.safeParse(operation, get);
    if (words === null || !read.success) return [];
    const { summary, description, parameters } = read.output;
    const parts = parameters.flatMap(({ in: where, name }) => (where === "path" ? [name] : []));
    const entry: Entry = {
      words,
      help: `${summary}.`,
      positional: [...parts, ...parameters.flatMap(({ name }) => (ALONE.has(name) ? [name] : []))],
      args: {
        type: "object",
        properties: Object.fromEntries(parameters.map(({ name, schema }) => [name, schema])),
        required: parameters.flatMap(({ name, required }) => (required ? [name] : [])),
        additionalProperties: false,
      },
      grant: /`([^`]+)`/.exec(description)?.[1] ?? "none",
      ask: { kind: "read", path, parts },
    };
    return path === "/api/items/{id}" ? [entry, explained(entry)] : [entry];
  });
}

/** Parameters of lists that need no name. */
const ALONE = new Set(["topic", "schedule"]);

/** `/api/jobs` as `jobs`, `/api/jobs/{id}` as `job show`, `/api/jobs/{id}/slots` as `job slots`; null: no read of these. */
function wordsOf(path: string): string[] | null {
  const [, api, nouns = "", ...rest] = path.split("/");
  const plain = rest.filter((part) => !part.startsWith("{"));
  const known = api === "api" && nouns !== "commands" && [nouns, ...plain].every((word) => /^[a-z][a-z-]*$/.test(word));
  if (!known || plain.length > 1) return null;
  if (rest.length === 0) return [nouns];
  return [nouns.replace(/s$/, ""), plain[0] ?? "show"];
}

/** `item explain`: the one sentence of an item that says why it is not running. */
function explained(entry: Entry): Entry {
  const help = "Why an item is not running, and what will happen when.";
  const { path, parts } = entry.ask as Extract<Ask, { kind: "read" }>;
  return { ...entry, words: ["item", "explain"], help, ask: { kind: "read", path, parts, part: "explanation" } };
}

/** The entry whose words begin these, the longest first. */
export function findEntry(entries: readonly Entry[], said: readonly string[]): Entry | null {
  const fits = entries.filter(({ words }) => words.every((word, index) => said[index] === word));
  return fits.sort((a, b) => b.words.length - a.words.length)[0] ?? null;
}

/** The form that was most likely meant: few letters away, or the first of the same noun. */
export function nearest(said: string, forms: readonly string[]): string | null {
  const near = forms
    .map((form) => ({ form, distance: distance(said.split(" ").slice(0, form.split(" ").length).join(" "), form) }))
    .filter(({ form, distance }) => distance <= Math.max(1, Math.min(3, Math.floor(form.length / 3))))
    .sort((a, b) => a.distance - b.distance);
  return near[0]?.form ?? null;
}

/** Longest text that is compared, characters. */
const COMPARED = 64;

/** Letters to add, drop, change or swap with their neighbour between two short texts. */
function distance(from: string, to: string): number {
  const [a, b] = [from.slice(0, COMPARED), to.slice(0, COMPARED)];
  const rows: number[][] = [Array.from({ length: b.length + 1 }, (_, index) => index)];
  const at = (i: number, j: number) => rows[i]?.[j] ?? 0;
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    rows.push(row);
    for (let j = 1; j <= b.length; j += 1) {
      const changed = at(i - 1, j - 1) + (a[i - 1] === b[j - 1] ? 0 : 1);
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      row.push(Math.min(changed, at(i - 1, j) + 1, at(i, j - 1) + 1, swapped ? at(i - 2, j - 2) + 1 : changed));
    }
  }
  return at(a.length, b.length);
}
