/** As much of JSON Schema as the arguments of commands use. What is not known here is left to the deployment. */
export interface JsonSchema {
  [keyword: string]: unknown;
}

/** What is wrong with a value, and where: `grants.actions.0`. */
export interface Fault {
  field: string;
  message: string;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** A schema with its references followed. `root` holds the definitions. */
export function resolved(schema: unknown, root: JsonSchema): JsonSchema {
  if (!isObject(schema)) return {};
  const [, name] = typeof schema.$ref === "string" ? (/^#\/\$defs\/(.+)$/.exec(schema.$ref) ?? []) : [];
  const target = name === undefined || !isObject(root.$defs) ? undefined : root.$defs[name];
  return isObject(target) ? target : schema;
}

/** The kinds of value that a schema takes; empty = any. */
export function kindsOf(schema: JsonSchema, root: JsonSchema): Set<string> {
  const either = alternatives(schema);
  if (either.length > 0) {
    const kinds = either.map((one) => kindsOf(resolved(one, root), root));
    return kinds.some(({ size }) => size === 0) ? new Set() : new Set(kinds.flatMap((each) => [...each]));
  }
  const { type } = schema;
  if (typeof type === "string") return new Set([type]);
  if (Array.isArray(type)) return new Set(type.filter((one): one is string => typeof one === "string"));
  const values = Array.isArray(schema.enum) ? schema.enum : "const" in schema ? [schema.const] : [];
  return new Set(values.map(kindOf));
}

function alternatives({ anyOf, oneOf }: JsonSchema): unknown[] {
  if (Array.isArray(anyOf)) return anyOf;
  return Array.isArray(oneOf) ? oneOf : [];
}

function kindOf(value: unknown): string {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
}

/** The schema of what stands at a path of names; `{}` = anything may. Null: nothing may stand there. */
export function schemaAt(root: JsonSchema, path: readonly string[]): JsonSchema | null {
  let schema = root;
  for (const step of path) {
    const properties = isObject(schema.properties) ? schema.properties : {};
    if (Object.hasOwn(properties, step)) schema = resolved(properties[step], root);
    else if (schema.additionalProperties === false) return null;
    else schema = resolved(schema.additionalProperties, root);
  }
  return schema;
}

const WORDS: Record<string, string> = {
  string: "text",
  integer: "a whole number",
  number: "a number",
  boolean: "true or false",
  array: "a list",
  object: "an object",
  null: "null",
};

/** What a schema takes, in words. */
export function toldKinds(kinds: ReadonlySet<string>): string {
  return [...kinds].map((kind) => WORDS[kind] ?? kind).join(" or ");
}

/** Holds a value to a schema: the first fault, or null. */
export function check(
  schema: JsonSchema,
  value: unknown,
  root: JsonSchema = schema,
  path: string[] = [],
): Fault | null {
  const fault = (message: string): Fault => ({ field: path.join("."), message });
  const either = alternatives(schema).map((one) => resolved(one, root));
  if (either.length > 0) return checkEither(either, value, root, path, fault);
  const { enum: among } = schema;
  if ("const" in schema && schema.const !== value) return fault(`it is ${JSON.stringify(schema.const)}`);
  if (Array.isArray(among) && !among.includes(value)) return fault(`it is one of ${among.join(", ")}`);
  const kinds = kindsOf(schema, root);
  const kind = kindOf(value);
  const fits = kinds.size === 0 || kinds.has(kind) || (kinds.has("integer") && Number.isInteger(value));
  if (!fits) return fault(`it takes ${toldKinds(kinds)}`);
  if (typeof value === "string") return checkText(schema, value, fault);
  if (typeof value === "number") return checkNumber(schema, value, fault);
  if (Array.isArray(value)) return checkList(schema, value, root, path, fault);
  return isObject(value) ? checkObject(schema, value, root, path, fault) : null;
}

type Say = (message: string) => Fault;

/** The fault of the alternative that is meant: the one of this kind, where there is one. */
function checkEither(either: readonly JsonSchema[], value: unknown, root: JsonSchema, path: string[], say: Say) {
  const faults = either.map((one) => check(one, value, root, path));
  if (faults.includes(null)) return null;
  const meant = either.findIndex((one) => kindsOf(one, root).has(kindOf(value)));
  return faults[meant] ?? say(`it takes ${toldKinds(kindsOf({ anyOf: either }, root))}`);
}

const FORMATS: Record<string, [RegExp, string]> = {
  uuid: [/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i, "it is a UUID"],
  "date-time": [/^\d{4}-\d\d-\d\d[T ]\d\d:\d\d/, "it is an instant, as 2026-08-01T09:00:00Z"],
};

function checkText({ minLength, maxLength, pattern, format }: JsonSchema, text: string, say: Say): Fault | null {
  const length = [...text].length;
  if (typeof minLength === "number" && length < minLength) {
    return say(minLength === 1 ? "it is empty" : `it has at least ${minLength} characters`);
  }
  if (typeof maxLength === "number" && length > maxLength) return say(`it has at most ${maxLength} characters`);
  if (typeof pattern === "string" && !matches(pattern, text)) return say(`it is of the form ${pattern}`);
  const [form, sentence = ""] = (typeof format === "string" && FORMATS[format]) || [];
  return form === undefined || form.test(text) ? null : say(sentence);
}

function matches(pattern: string, text: string): boolean {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    // A pattern of another dialect: the deployment knows what it means.
    return true;
  }
}

function checkNumber({ minimum, maximum }: JsonSchema, value: number, say: Say): Fault | null {
  if (typeof minimum === "number" && value < minimum) return say(`it is at least ${minimum}`);
  return typeof maximum === "number" && value > maximum ? say(`it is at most ${maximum}`) : null;
}

function checkList(schema: JsonSchema, list: unknown[], root: JsonSchema, path: string[], say: Say): Fault | null {
  const { minItems, maxItems } = schema;
  if (typeof minItems === "number" && list.length < minItems) return say(`it has at least ${minItems}`);
  if (typeof maxItems === "number" && list.length > maxItems) return say(`it has at most ${maxItems}`);
  const each = resolved(schema.items, root);
  return firstFault(list.map((one, index) => () => check(each, one, root, [...path, String(index)])));
}

function checkObject(
  schema: JsonSchema,
  value: Record<string, unknown>,
  root: JsonSchema,
  path: string[],
  say: Say,
): Fault | null {
  const required = Array.isArray(schema.required) ? schema.required : [];
  const missing = required.find((name) => typeof name === "string" && !Object.hasOwn(value, name));
  if (typeof missing === "string") return { ...say("it is needed"), field: [...path, missing].join(".") };
  return firstFault(
    Object.entries(value).map(([name, one]) => () => {
      const at = schemaAt({ ...schema, $defs: root.$defs }, [name]);
      if (at === null) return { field: [...path, name].join("."), message: "there is no such argument" };
      return check(at, one, root, [...path, name]);
    }),
  );
}

function firstFault(checks: readonly (() => Fault | null)[]): Fault | null {
  for (const run of checks) {
    const fault = run();
    if (fault !== null) return fault;
  }
  return null;
}
