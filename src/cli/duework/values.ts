import { check, type JsonSchema, kindsOf, resolved } from "./schema.ts";

/**
 * Texts of a command line made into what a schema takes. A text that fits in no way stays text: the check names what is
 * wrong with it.
 */

/** The value that the texts of one argument mean; several are a list. */
export function readTexts(texts: readonly string[], schema: JsonSchema, root: JsonSchema): unknown {
  const [text = ""] = texts;
  const kinds = kindsOf(schema, root);
  if (texts.length > 1) return kinds.size === 0 || kinds.has("array") ? listOf(texts, schema, root) : texts;
  if (kinds.size === 0) return parsed(text) ?? (text === "null" ? null : text);
  if (kinds.has("string") && takes(schema, text, root)) return text;
  const value = typed(text, kinds);
  if (value !== undefined) return value;
  return kinds.has("array") ? listFrom(text, schema, root) : text;
}

/** True when a text is taken as it stands. */
const takes = (schema: JsonSchema, text: string, root: JsonSchema) => check(schema, text, root) === null;

/** A text as a value of one of the kinds; undefined = it is none. */
function typed(text: string, kinds: ReadonlySet<string>): unknown {
  if (kinds.has("boolean") && /^(true|false)$/.test(text)) return text === "true";
  if (kinds.has("null") && text === "null") return null;
  const isNumber = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  if (isNumber && (kinds.has("number") || kinds.has("integer"))) return Number(text);
  const json = parsed(text);
  if (Array.isArray(json)) return kinds.has("array") ? json : undefined;
  return typeof json === "object" && kinds.has("object") ? json : undefined;
}

/** One text as a list: a thing of JSON alone, or parts between commas. */
function listFrom(text: string, schema: JsonSchema, root: JsonSchema): unknown[] {
  if (typeof parsed(text) === "object") return listOf([text], schema, root);
  const parts = text.split(",").map((part) => part.trim());
  return listOf(
    parts.filter((part) => part !== ""),
    schema,
    root,
  );
}

function listOf(texts: readonly string[], schema: JsonSchema, root: JsonSchema): unknown[] {
  const each = resolved(listSchema(schema, root).items, root);
  return texts.map((text) => readTexts([text], each, root));
}

/** The part of a schema that says what a list holds. */
function listSchema(schema: JsonSchema, root: JsonSchema): JsonSchema {
  const either = [schema.anyOf, schema.oneOf].flatMap((one) => (Array.isArray(one) ? one : []));
  const lists = either.map((one) => resolved(one, root)).find((one) => kindsOf(one, root).has("array"));
  return lists ?? schema;
}

/** JSON as a value; undefined = it is none, or null. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text) ?? undefined;
  } catch {
    return undefined;
  }
}
