/** `docs/api.md`, made from the OpenAPI document. */

export interface Schema {
  type?: string | string[];
  format?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  minimum?: number;
  maximum?: number;
  default?: unknown;
}

interface Operation {
  operationId: string;
  summary: string;
  description?: string;
  parameters?: { name: string; in: string; required: boolean; schema: Schema }[];
  requestBody?: { content: { "application/json": { schema: Schema } } };
  responses: Record<string, { content?: { "application/json"?: { schema: Schema } } }>;
}

export interface Document {
  paths: Record<string, { get?: Operation; post?: Operation }>;
  components: {
    responses: Record<
      string,
      { description: string; content: { "application/problem+json": { schema: { allOf: Schema[] } } } }
    >;
  };
}

const HEAD = `# The HTTP API

Made from the OpenAPI document, which a running Worker serves at \`/openapi.json\` and shows at \`/docs\`; both, like all below but \`/healthz\`, to whoever is signed in. \`npm run docs:api\` writes this page, and a test fails when it is behind. These are the commands of this repository's own Worker: a module of yours adds its own.

## Asking

- **Who asks**: \`Authorization: Bearer <token>\`, a token of \`DUEWORK_TOKENS\`; or, for reads, the panel's session; or what Cloudflare Access puts on a request, where it is [set up](deploy.md#cloudflare-access). A bearer token wins.
- **Reads** are GETs. A bad parameter, one that is not known, or one that is given twice is 400.
- **Lists** take \`limit\` (1 to 200, by default 50) and \`cursor\`, and answer \`{items, nextCursor}\`: while \`nextCursor\` is no null, it is the next page's cursor. A cursor belongs to its list. A filtered list that has read its bound answers early, perhaps with no items, and a cursor.
- **Writes** are commands: \`POST /api/commands/<name>\` with the arguments as a JSON object (at most 256 KiB), answered \`{ok: true, result}\`. \`GET /api/commands\` lists them with the JSON Schema of their arguments.
- **Instants** are ISO 8601 in UTC, with milliseconds. Names are camelCase. A count \`{value, capped}\` read so many rows at most.
- **Errors** are \`application/problem+json\` (RFC 9457): \`{type, title, status, code, detail}\`, with \`field\` where there is one, and \`grant\` where one is lacking. \`code\` is stable.

## Once

A command that is not a read takes \`Idempotency-Key\`, 1 to 255 visible ASCII characters of your making. For 24 hours the same key of the same actor, with the same command and the same body, answers the same status and body, and the command runs once. Otherwise:

| code | what it means |
| --- | --- |
| \`idempotency_conflict\` | the key was used for another command or another body |
| \`idempotency_in_progress\` | the first is being done: ask again in a moment |
| \`idempotency_unknown\` | the first was begun and its outcome is not known: look at what it changes before you ask under another key. It is never run again by itself |
| \`idempotency_secret\` | it was done; its answer held a secret, which was shown once |
| \`idempotency_too_large\` | it was done; its answer was too large to be kept |
| \`idempotency_full\` | too many keys are kept: nothing was run |
`;

export function apiPage(document: Document): string {
  const operations = Object.entries(document.paths).flatMap(([path, { get, post }]) => [
    ...(get === undefined ? [] : [{ path, method: "GET", ...get }]),
    ...(post === undefined ? [] : [{ path, method: "POST", ...post }]),
  ]);
  const commands = operations.filter(({ path }) => path.startsWith("/api/commands/"));
  const reads = operations.filter(({ path, method }) => method === "GET" && /^\/api\/./.test(path));
  const others = operations.filter((one) => !commands.includes(one) && !reads.includes(one));
  return [
    HEAD,
    "## Reads\n",
    table(
      ["path", "grant", "parameters", "what"],
      reads.map((one) => [code(one.path), grantOf(one), parametersOf(one), one.summary]),
    ),
    "## What they answer\n",
    ...reads.map((one) => `- ${code(one.path)}: ${code(typeOf(answerOf(one)))}`),
    "\n## Commands\n",
    table(
      ["name", "effect", "grant", "arguments", "what"],
      commands.map((one) => [code(nameOf(one.path)), effectOf(one), grantOf(one), argumentsOf(one), one.summary]),
    ),
    "## Other paths\n",
    table(
      ["path", "grant", "what"],
      others.map((one) => [code(`${one.method} ${one.path}`), grantOf(one), one.summary]),
    ),
    "## Codes\n",
    "A command's own code that is not here comes with 400.\n",
    table(["status", "codes", "what it means"], problemsOf(document)),
  ].join("\n");
}

const code = (text: string) => `\`${text}\``;
const nameOf = (path: string) => path.replace("/api/commands/", "");
const answerOf = ({ responses }: Operation): Schema => responses["200"]?.content?.["application/json"]?.schema ?? {};

function table(head: readonly string[], rows: readonly string[][]): string {
  const line = (cells: readonly string[]) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
  return `${[line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n")}\n`;
}

function grantOf({ description = "" }: Operation): string {
  const [, grant] = /Grant: `([^`]+)`/.exec(description) ?? [];
  return grant === undefined ? "none" : code(grant);
}

const effectOf = ({ description = "" }: Operation) => /Effect: (\w+)/.exec(description)?.[1] ?? "";

function parametersOf({ parameters = [] }: Operation): string {
  return parameters
    .filter((one) => one.in === "query")
    .map(({ name, schema }) => (schema.enum === undefined ? code(name) : code(`${name}: ${typeOf(schema)}`)))
    .join(", ");
}

function argumentsOf({ requestBody }: Operation): string {
  const schema = requestBody?.content["application/json"].schema ?? {};
  return Object.keys(schema.properties ?? {}).length === 0 ? "" : code(typeOf(schema));
}

function problemsOf({ components }: Document): string[][] {
  return Object.entries(components.responses).map(([name, { description, content }]) => {
    const [, own] = content["application/problem+json"].schema.allOf;
    const codes = own?.properties?.code?.enum ?? ["bad_arguments"];
    return [name.replace("Problem", ""), codes.map((one) => code(String(one))).join(", "), description];
  });
}

/** A schema in the words of TypeScript. */
export function typeOf(schema: Schema): string {
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf !== undefined) return [...new Set(schema.anyOf.map(typeOf))].join(" | ");
  if (Array.isArray(schema.type)) return schema.type.join(" | ");
  if (schema.type === "array") return listOf(typeOf(schema.items ?? {}));
  if (schema.type === "object") return objectOf(schema);
  if (schema.format === "date-time") return "instant";
  return schema.type ?? "any";
}

const listOf = (type: string) => (type.includes(" | ") ? `(${type})[]` : `${type}[]`);

function objectOf({ properties = {}, required = [] }: Schema): string {
  const fields = Object.entries(properties).map(
    ([name, one]) => `${name}${required.includes(name) ? "" : "?"}: ${typeOf(one)}`,
  );
  return fields.length === 0 ? "object" : `{ ${fields.join(", ")} }`;
}
