import type { Entry } from "./catalog.ts";
import { check, type JsonSchema, kindsOf, resolved } from "./schema.ts";
import { visible } from "./visible.ts";

/** A line that could be typed for each thing; a test holds each to the schema it is for. */

const EXAMPLES: Record<string, string> = {
  "dead-letter replay": "duework dead-letter replay webhooks.deliver-0000001a2b",
  "dead-letter replay-all": "duework dead-letter replay-all webhooks.deliver",
  "dead-letters": "duework dead-letters webhooks.deliver --all --json",
  dispatch: 'duework dispatch "webhooks report" --channel inbox:ops',
  firings: "duework firings nightly --limit 10",
  "item enqueue": `duework item enqueue webhooks.deliver '[{"key": "a", "payload": {}}]' --onKey keep`,
  items: "duework items webhooks.deliver --state leased",
  "job stop": 'duework job stop inventory-checkout-expiry "the storefront is down"',
  "merchants add": `duework merchants add 'accounts:=[{"id": "m1", "url": "https://shop.example/", "everySeconds": 60}]'`,
  "plan approve": `duework plan approve nightly 'commands:=["topic pause webhooks.deliver"]'`,
  "quarantine revalidate":
    'duework quarantine revalidate inventory-checkout-expiry 11111111-1111-4111-8111-111111111111 "the storefront is back"',
  "quarantine settle":
    'duework quarantine settle inventory-checkout-expiry 11111111-1111-4111-8111-111111111111 "mended by hand"',
  "schedule add":
    'duework schedule add nightly "0 3 * * *" --timeZone Europe/Berlin --text "webhooks report" --channel inbox:ops --grants.actions webhooks:read',
  "schedule preview": 'duework schedule preview "0 9 * * mon" --timeZone Europe/Berlin --count 3',
  "topic path": "duework topic path webhooks.deliver queue",
  "topic pause": "duework topic pause webhooks.deliver",
  "webhooks endpoint-add": `duework webhooks endpoint-add https://hooks.example/in 'invoice.paid,invoice.void'`,
  "webhooks publish": `duework webhooks publish invoice.paid --data '{"number": 7}' --idempotency-key invoice-7`,
};

/** An example: a written one, or one made from the schema. */
export function exampleOf(entry: Entry): string {
  const { words, positional, args } = entry;
  const form = words.join(" ");
  const written = Object.hasOwn(EXAMPLES, form) ? EXAMPLES[form] : undefined;
  if (written !== undefined) return written;
  const required = Array.isArray(args?.required) ? args.required.map(String) : [];
  const properties = (args?.properties ?? {}) as Record<string, unknown>;
  const values = required.map((name) => {
    const value = sample(words[0] ?? "", name, resolved(properties[name], args ?? {}), args ?? {});
    return positional.includes(name) ? value : `--${name} ${value}`;
  });
  return visible(["duework", form, ...values].join(" "));
}

/** What this repository's own Worker calls some of its things. */
const NAMES: Record<string, string> = {
  "job id": "inventory-checkout-expiry",
  "plan name": "nightly",
  "schedule name": "nightly",
  "workflow workflow": "run",
};

function sample(noun: string, name: string, schema: JsonSchema, root: JsonSchema): string {
  const known = NAMES[`${noun} ${name}`];
  if (known !== undefined) return known;
  if (Array.isArray(schema.enum)) return String(schema.enum[0]);
  const kinds = kindsOf(schema, root);
  if (kinds.has("integer") || kinds.has("number")) return "1";
  if (kinds.has("boolean")) return "true";
  if (kinds.has("object")) return "'{}'";
  // Capitals say that something is to be put there; some forms have none.
  return check(schema, name.toUpperCase(), root) === null ? name.toUpperCase() : name.toLowerCase();
}
