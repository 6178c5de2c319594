import fc from "fast-check";
import * as v from "valibot";

// biome-ignore lint/suspicious/noExplicitAny: a schema's insides are read as they are
type Schema = any;

/** Values that a valibot schema takes, made from the schema itself; what its checks refuse is left out. */
export function valuesOf(schema: Schema): fc.Arbitrary<unknown> {
  return draft(schema).filter((value) => v.safeParse(schema, value).success);
}

function draft(schema: Schema): fc.Arbitrary<unknown> {
  switch (schema.type) {
    case "strict_object":
    case "object":
      return objects(schema.entries);
    case "array":
      return fc.array(draft(schema.item), { minLength: bound(schema, "min_length") ?? 0, maxLength: 4 });
    case "string":
      return texts(schema);
    case "number":
      return fc.oneof(fc.integer({ min: bound(schema, "min_value") ?? -5, max: bound(schema, "max_value") ?? 5_000 }));
    case "boolean":
      return fc.boolean();
    case "picklist":
      return fc.constantFrom(...schema.options);
    case "literal":
      return fc.constant(schema.literal);
    case "union":
      return fc.oneof(...schema.options.map(draft));
    case "optional":
    case "nullable":
      return draft(schema.wrapped);
    case "record":
      return fc.dictionary(texts(schema.key), draft(schema.value), { maxKeys: 3 });
    case "unknown":
      return fc.jsonValue({ maxDepth: 2 });
    default:
      throw new Error(`no values are known of a ${schema.type}`);
  }
}

function objects(entries: Record<string, Schema>): fc.Arbitrary<unknown> {
  const required = Object.keys(entries).filter((key) => entries[key].type !== "optional");
  return fc.record(Object.fromEntries(Object.entries(entries).map(([key, schema]) => [key, draft(schema)])), {
    requiredKeys: required,
    noNullPrototype: true,
  });
}

function texts(schema: Schema): fc.Arbitrary<string> {
  const pieces: Schema[] = schema.pipe ?? [];
  const regex = pieces.find(({ type }) => type === "regex");
  if (regex !== undefined) return fc.stringMatching(regex.requirement);
  if (pieces.some(({ type }) => type === "uuid")) return fc.uuid();
  if (pieces.some(({ type }) => type === "iso_timestamp")) {
    return fc
      .date({ noInvalidDate: true, min: new Date("2020-01-01"), max: new Date("2030-01-01") })
      .map((date) => date.toISOString());
  }
  // What looks like the grammar itself, and like other types, comes often.
  const awkward = fc.constantFrom(
    "5",
    "null",
    "a=b",
    "--x",
    "--x=1",
    "x:=1",
    "[1]",
    '{"a": 1}',
    "'",
    '"',
    "a,b",
    "\\n",
    "in x:",
    "",
  );
  return fc.oneof(fc.string({ maxLength: 30, unit: "grapheme" }), fc.string({ maxLength: 12 }), awkward);
}

function bound(schema: Schema, type: string): number | undefined {
  return schema.pipe?.find((piece: Schema) => piece.type === type)?.requirement;
}
