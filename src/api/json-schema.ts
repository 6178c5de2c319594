import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type ConversionConfig, toJsonSchema } from "@valibot/to-json-schema";
import type { GenericSchema } from "valibot";

/** A JSON Schema, draft 2020-12: the one that OpenAPI 3.1 speaks. */
export type JsonSchema = Record<string, unknown>;

const INPUT: ConversionConfig = {
  target: "draft-2020-12",
  // What a caller sends, not what a transform makes of it.
  typeMode: "input",
  // A check that JSON Schema cannot say is left out: the schema itself still holds whoever calls.
  errorMode: "ignore",
  overrideSchema: ({ valibotSchema }) =>
    valibotSchema.type === "date" ? { type: "string", format: "date-time" } : undefined,
};

/** What a schema takes, as JSON Schema; null = it is no valibot schema, or one that cannot be told. */
export function jsonSchemaOf(schema: StandardSchemaV1): JsonSchema | null {
  if (schema["~standard"].vendor !== "valibot") return null;
  try {
    const { $schema: _, ...converted } = toJsonSchema(schema as GenericSchema, INPUT);
    return converted;
  } catch {
    // A module brings its own valibot: what this converter cannot read keeps no list from being served.
    return null;
  }
}
