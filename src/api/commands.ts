import type { Registered } from "../commands/define.ts";
import { type JsonSchema, jsonSchemaOf } from "./json-schema.ts";

/** A command as a surface outside needs it: enough to make a form, a line of text or a call of it. */
export interface CommandView {
  name: string;
  effect: Registered["effect"];
  grant: string;
  help: string;
  positional: readonly string[];
  scoped: boolean;
  secret: boolean;
  personOnly: boolean;
  /** What its arguments are; null = they are no valibot schema, and only a call says what is wrong with them. */
  args: JsonSchema | null;
}

const views = new WeakMap<ReadonlyMap<string, Registered>, readonly CommandView[]>();

/** All commands, by name. Made once a registry: it does not change while the isolate lives. */
export function viewCommands(registry: ReadonlyMap<string, Registered>): readonly CommandView[] {
  const known = views.get(registry);
  if (known !== undefined) return known;
  const made = [...registry.values()]
    .map(({ name, effect, grant, help, positional, scoped, secret, personOnly, args }) => {
      return { name, effect, grant, help, positional, scoped, secret, personOnly, args: jsonSchemaOf(args) };
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  views.set(registry, made);
  return made;
}
