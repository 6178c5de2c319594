import { type ParseArgsConfig, parseArgs } from "node:util";
import { UsageError } from "../flags.ts";
import { type Entry, nearest } from "./catalog.ts";
import { check, type JsonSchema, kindsOf, resolved, schemaAt, toldKinds } from "./schema.ts";
import { readTexts } from "./values.ts";

/**
 * A command line's words made into arguments: a value in the order of `positional`, `--name value`, `name=value`, or
 * `name:=` JSON, as in a command's text. Dots lead into objects.
 */

type Options = NonNullable<ParseArgsConfig["options"]>;

/** Flags of the program itself, wherever they stand. An argument of the same name is given as `name=value`. */
export const FLAGS = {
  url: { type: "string" },
  token: { type: "string" },
  json: { type: "boolean" },
  all: { type: "boolean" },
  "idempotency-key": { type: "string" },
  help: { type: "boolean", short: "h" },
} as const satisfies Options;

export interface Flags {
  url: string | null;
  /** `--url` stands behind the words, where it may have been meant as a command's argument. */
  urlBehind: boolean;
  token: string | null;
  json: boolean;
  all: boolean;
  key: string | null;
  help: boolean;
}

/** The flags of a command line, and the words it begins with. */
export function readFlags(argv: readonly string[]): { flags: Flags; words: string[] } {
  const flags: Flags = { url: null, urlBehind: false, token: null, json: false, all: false, key: null, help: false };
  const words: string[] = [];
  let begins = true;
  for (const token of tokensOf(argv)) {
    if (token.kind === "option-terminator") begins = false;
    else if (token.kind === "positional") {
      if (begins) words.push(token.value);
    } else if (!takeFlag(flags, token, words.length > 0)) begins = false;
  }
  return { flags, words };
}

function tokensOf(argv: readonly string[]) {
  const { tokens } = parseArgs({ args: [...argv], options: FLAGS, strict: false, tokens: true });
  const end = tokens.findIndex(({ kind }) => kind === "option-terminator");
  return end === -1 ? tokens : tokens.slice(0, end + 1);
}

/** Notes a flag of the program. False: it is none. */
function takeFlag(flags: Flags, { name, value }: { name: string; value?: string | undefined }, behind: boolean) {
  const text = (): string => {
    if (value === undefined || value === "") throw new UsageError(`--${name} takes a value`);
    return value;
  };
  switch (name) {
    case "url":
      flags.url = text();
      flags.urlBehind = behind;
      return true;
    case "token":
      flags.token = text();
      return true;
    case "idempotency-key":
      flags.key = text();
      return true;
    case "json":
    case "all":
    case "help":
      if (value !== undefined) throw new UsageError(`--${name} takes no value`);
      flags[name] = true;
      return true;
    default:
      return false;
  }
}

/** What was given for one argument. */
interface Given {
  path: string[];
  texts: string[];
  /** After `:=`. */
  json?: unknown;
}

/**
 * The arguments that a command line gives an entry, held to its schema.
 * @throws UsageError that begins with the argument's name
 */
export function readArguments(argv: readonly string[], entry: Entry): Record<string, unknown> {
  const root = entry.args ?? {};
  const input = build([...givenBy(argv, entry, root).values()], root);
  const fault = entry.args === null ? null : check(root, input);
  if (fault !== null) throw new UsageError(`${fault.field === "" ? "" : `${fault.field}: `}${fault.message}`);
  return input;
}

function givenBy(argv: readonly string[], entry: Entry, root: JsonSchema): Map<string, Given> {
  const known = optionsOf(root);
  const { names, options } = withDotted(argv, entry, known);
  const { tokens } = parseArgs({ args: [...argv], options, strict: true, allowPositionals: true, tokens: true });
  const given = new Map<string, Given>();
  const take = (name: string, text: string) => {
    const before = given.get(name);
    if (before === undefined) given.set(name, { path: name.split("."), texts: [text] });
    else before.texts.push(text);
  };
  let terminated = false;
  let place = -entry.words.length;
  const alone = new Set<string>();
  for (const token of tokens) {
    if (token.kind === "option-terminator") terminated = true;
    else if (token.kind === "option") {
      if (token.name in FLAGS) continue;
      const name = names.get(token.name) ?? token.name;
      if (alone.has(name)) throw twice(name);
      take(name, token.value ?? (token.name.startsWith("no-") && !known.has(token.name) ? "false" : "true"));
    } else if (place < 0) place += 1;
    else if (terminated || !takeNamed(token.value, root, entry, given)) {
      const name = placeOf(entry, root, place);
      if (!alone.has(name) && given.has(name)) throw twice(name);
      alone.add(name);
      take(name, token.value);
      place += 1;
    }
  }
  for (const [name, { path, texts }] of given) {
    if (path.some((_, length) => length > 0 && given.has(path.slice(0, length).join(".")))) throw twice(name);
    const kinds = kindsOf(schemaAt(root, path) ?? {}, root);
    if (texts.length > 1 && kinds.size > 0 && !kinds.has("array")) throw twice(name);
  }
  return given;
}

const twice = (name: string) => new UsageError(`${name}: it is given twice`);

/** Takes `name=value` and `name:=json`, where the name is an argument's. False: it is a value alone. */
function takeNamed(word: string, root: JsonSchema, { args }: Entry, given: Map<string, Given>): boolean {
  const [, name = "", equals, text = ""] = /^([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)(:?=)([\s\S]*)$/.exec(word) ?? [];
  if (equals === undefined) return false;
  const [head = ""] = name.split(".");
  if (args !== null && !Object.hasOwn(propertiesOf(root), head)) return false;
  const before = given.get(name);
  if (equals === "=") {
    if (before?.json !== undefined) throw twice(name);
    if (before === undefined) given.set(name, { path: name.split("."), texts: [text] });
    else before.texts.push(text);
    return true;
  }
  if (before !== undefined) throw twice(name);
  try {
    given.set(name, { path: name.split("."), texts: [], json: JSON.parse(text) as unknown });
  } catch {
    throw new UsageError(`${name}: what follows := is not JSON`);
  }
  return true;
}

/** The argument that the nth value without a name is; the last one takes all that follow, where it is a list. */
function placeOf({ words, positional }: Entry, root: JsonSchema, place: number): string {
  const name = positional[place];
  if (name !== undefined) return name;
  const last = positional.at(-1);
  if (last !== undefined && kindsOf(schemaAt(root, [last]) ?? {}, root).has("array")) return last;
  const most = positional.length === 0 ? "none" : `at most ${positional.length} (${positional.join(", ")})`;
  throw new UsageError(`${words.join(" ")} takes ${most} without a name: one too many`);
}

const propertiesOf = (schema: JsonSchema) => (schema.properties ?? {}) as Record<string, unknown>;

/** How deep options lead into objects. */
const DEEPEST = 4;

/** Every argument that a schema names, by its path, with the kinds it takes. */
export function optionsOf(root: JsonSchema): Map<string, { schema: JsonSchema; kinds: Set<string> }> {
  const all = new Map<string, { schema: JsonSchema; kinds: Set<string> }>();
  const walk = (schema: JsonSchema, path: string[]) => {
    for (const [name, one] of Object.entries(propertiesOf(schema))) {
      const at = resolved(one, root);
      const here = [...path, name];
      all.set(here.join("."), { schema: at, kinds: kindsOf(at, root) });
      if (here.length < DEEPEST) walk(at, here);
    }
  };
  walk(root, []);
  return all;
}

const kebab = (name: string) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** The options of the schema, and those that lead into an object whose names it leaves open. */
function withDotted(argv: readonly string[], entry: Entry, known: ReturnType<typeof optionsOf>) {
  const options: Options = { ...FLAGS };
  const names = new Map<string, string>();
  for (const [name, { kinds }] of known) {
    for (const form of new Set([name, kebab(name)])) {
      if (form in FLAGS) continue;
      const isSwitch = kinds.size === 1 && kinds.has("boolean");
      options[form] = isSwitch ? { type: "boolean" } : { type: "string", multiple: true };
      names.set(form, name);
      if (!isSwitch || `no-${form}` in options) continue;
      options[`no-${form}`] = { type: "boolean" };
      names.set(`no-${form}`, name);
    }
  }
  const root = entry.args ?? {};
  for (const token of tokensOf(argv)) {
    if (token.kind !== "option" || token.name in options) continue;
    const path = token.name.split(".");
    const open = entry.args === null || (path.length > 1 && schemaAt(root, path) !== null);
    if (!open || !path.every((step) => /^[A-Za-z_][\w-]*$/.test(step))) throw unknown(token.rawName, entry, options);
    options[token.name] = { type: "string", multiple: true };
  }
  return { names, options };
}

function unknown(given: string, { words }: Entry, options: Options): UsageError {
  const near = nearest(given.replace(/^-+/, ""), Object.keys(options));
  return new UsageError(`${words.join(" ")} has no ${given}${near === null ? "" : `: was --${near} meant?`}`);
}

function build(given: readonly Given[], root: JsonSchema): Record<string, unknown> {
  const input: Record<string, unknown> = Object.create(null);
  for (const { path, texts, json } of given) {
    const name = path.join(".");
    let place = input;
    for (const step of path.slice(0, -1)) {
      place[step] ??= Object.create(null);
      place = place[step] as Record<string, unknown>;
    }
    const last = path.at(-1) ?? "";
    if (place[last] !== undefined || last === "__proto__") throw twice(name);
    const schema = schemaAt(root, path);
    if (schema === null) throw new UsageError(`${name}: there is no such argument`);
    place[last] = json === undefined ? readTexts(texts, schema, root) : json;
  }
  return input;
}

/** An argument's kinds, as help tells them. */
export function toldOption(schema: JsonSchema, kinds: ReadonlySet<string>): string {
  const among = Array.isArray(schema.enum) ? schema.enum.join(" | ") : toldKinds(kinds) || "any value";
  const value = schema.default;
  const told = value === undefined || typeof value === "object" || value === "" ? "" : ` (default: ${value})`;
  return `${among}${told}`;
}
