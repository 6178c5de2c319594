import type * as v from "valibot";
import type { Registered } from "../commands/define.ts";
import { commandEntries, healthView, pageOf, tickReport } from "./answers.ts";
import { type CommandView, viewCommands } from "./commands.ts";
import { type JsonSchema, jsonSchemaOf } from "./json-schema.ts";
import { codesByStatus } from "./problem.ts";
import type { ReadRoute } from "./routes.ts";

/**
 * The OpenAPI 3.1 document of a deployment, made from the same lists that the router serves: the reads, and the
 * registry of commands.
 */

type Responses = Record<string, object>;

const JSON_TYPE = "application/json";
const ref = (kind: string, name: string) => ({ $ref: `#/components/${kind}/${name}` });

/** The version of what the paths promise, not of the package: it grows when a caller must change. */
const API_VERSION = "1";

export function openApi(reads: readonly ReadRoute[], registry: ReadonlyMap<string, Registered>) {
  const commands = viewCommands(registry);
  const schemas: Record<string, JsonSchema> = { Problem: problemSchema };
  return {
    openapi: "3.1.0",
    info: {
      title: "Duework",
      version: API_VERSION,
      description:
        "Reads are GETs, and each needs the grant that it names. Writes are commands: a POST with the arguments as a " +
        "JSON object. Instants are ISO 8601 in UTC. Errors are problem+json (RFC 9457) with a stable code. Lists are " +
        "read by pages: while nextCursor is no null, it is the next page's cursor.",
      license: { name: "MIT", identifier: "MIT" },
    },
    servers: [{ url: "/", description: "This Worker" }],
    security: [{ bearer: [] }, { session: [] }, { access: [] }],
    tags: tagsOf(reads, commands),
    paths: {
      "/healthz": healthPath(),
      "/metrics": metricsPath(),
      ...Object.fromEntries(reads.map((route) => [templateOf(route.path), { get: readOperation(route) }])),
      "/api/commands": { get: commandList() },
      "/api/tick": { post: tickOperation() },
      ...Object.fromEntries(
        commands.map((command) => [`/api/commands/${command.name}`, { post: commandOperation(command, schemas) }]),
      ),
    },
    components: {
      schemas,
      responses: problems(),
      parameters: { idempotencyKey },
      securitySchemes: {
        bearer: { type: "http", scheme: "bearer", description: "A token of DUEWORK_TOKENS." },
        session: {
          type: "apiKey",
          in: "cookie",
          name: SESSION_COOKIE,
          description: "The panel's sign-in, for reads. Over https: __Host-duework.",
        },
        access: {
          type: "apiKey",
          in: "header",
          name: "Cf-Access-Jwt-Assertion",
          description: "What Cloudflare Access puts on a request, where ACCESS_TEAM_DOMAIN and ACCESS_AUD are set.",
        },
      },
    },
  };
}

/** Over https with the prefix `__Host-`. */
const SESSION_COOKIE = "duework";

const problemSchema: JsonSchema = {
  type: "object",
  description: "RFC 9457. `code` is stable, `field` names what was wrong, `grant` what is lacking.",
  properties: {
    type: { type: "string" },
    title: { type: "string" },
    status: { type: "integer" },
    code: { type: "string" },
    detail: { type: "string" },
    field: { type: "string" },
    grant: { type: "string" },
  },
  required: ["type", "title", "status", "code", "detail"],
};

const idempotencyKey = {
  name: "Idempotency-Key",
  in: "header",
  required: false,
  description:
    "1 to 255 visible ASCII characters. The same key, command and body within 24 hours answer the same, and the command runs once.",
  schema: { type: "string", minLength: 1, maxLength: 255, pattern: "^[\\x21-\\x7e]+$" },
};

const TITLES: Record<string, string> = {
  400: "The input is refused. A command's own refusals that have no other status are here too.",
  401: "Nobody is signed in.",
  403: "A grant is lacking: it is named.",
  404: "There is no such thing.",
  405: "Another method.",
  409: "It does not fit how things stand now.",
  413: "The body is too large.",
  415: "The body is not declared as JSON.",
  429: "Too many, too soon.",
  500: "The fault is here, not with the caller.",
  502: "A service behind this one did not answer as it must.",
  503: "Not set up, or a service that is needed cannot be reached.",
};

/** A named answer for each status that some code has. Only a refused input may bear a module's own code. */
function problems(): Responses {
  return Object.fromEntries(
    [...codesByStatus()].map(([status, codes]) => {
      const code = status === 400 ? { type: "string" } : { type: "string", enum: codes };
      const schema = { allOf: [ref("schemas", "Problem"), { type: "object", properties: { code } }] };
      const description = TITLES[status] ?? `Refused as ${status}.`;
      return [`Problem${status}`, { description, content: { "application/problem+json": { schema } } }];
    }),
  );
}

const refusals = (...statuses: number[]): Responses =>
  Object.fromEntries(statuses.map((status) => [String(status), ref("responses", `Problem${status}`)]));

const answered = (description: string, schema: JsonSchema): Responses => ({
  "200": { description, content: { [JSON_TYPE]: { schema } } },
});

/** `/api/jobs/:id` as `/api/jobs/{id}`. */
const templateOf = (path: string) => path.replace(/:(\w+)/g, "{$1}");
const nounOf = (path: string) => path.split("/")[2] ?? "";
const wordsOf = (path: string) =>
  path
    .split(/[/:-]+/)
    .filter((word) => word !== "" && word !== "api")
    .map((word, n) => (n === 0 ? word : `${word[0]?.toUpperCase()}${word.slice(1)}`))
    .join("");

function tagsOf(reads: readonly ReadRoute[], commands: readonly CommandView[]) {
  const names = new Set(["runtime", ...reads.map(({ path }) => nounOf(path)), "commands"]);
  for (const { name } of commands) names.add(commandTag(name));
  return [...names].map((name) => ({ name }));
}

const commandTag = (name: string) => `commands: ${name.split(".")[0]}`;

function readOperation({ path, grant, summary, query, answer }: ReadRoute) {
  const parts = [...path.matchAll(/:(\w+)/g)].map(([, name]) => ({
    name,
    in: "path",
    required: true,
    schema: { type: "string" },
  }));
  const missing = parts.length > 0 || nounOf(path) === "items" || nounOf(path) === "dead-letters" ? [404] : [];
  return {
    operationId: `read${wordsOf(path).replace(/^./, (first) => first.toUpperCase())}`,
    tags: [nounOf(path)],
    summary,
    description:
      grant === null ? "Grant: none. Whoever is signed in sees what his grants let him." : `Grant: \`${grant}\`.`,
    parameters: [...parts, ...queryParameters(query)],
    responses: { ...answered("The answer", described(answer)), ...refusals(400, 401, 403, ...missing, 500, 503) },
  };
}

const described = (schema: v.GenericSchema): JsonSchema => jsonSchemaOf(schema) ?? {};

/** A query's parameters. A number is text in an address, so that its schema says text; what it says of it is told here. */
function queryParameters(query: v.GenericSchema) {
  const { properties = {}, required = [] } = described(query) as {
    properties?: Record<string, JsonSchema>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, schema]) => ({
    name,
    in: "query",
    required: required.includes(name),
    schema: name === "limit" ? { type: "integer", minimum: 1, maximum: 200, default: 50 } : schema,
  }));
}

function commandOperation(
  { name, effect, grant, help, secret, args }: CommandView,
  schemas: Record<string, JsonSchema>,
) {
  const once = secret ? " Its answer holds a secret that is shown once: a repeat with the same key is refused." : "";
  return {
    operationId: name.replace(/[.-](\w)/g, (_, first: string) => first.toUpperCase()),
    tags: [commandTag(name)],
    summary: help,
    description: `Effect: ${effect}. Grant: \`${grant}\`.${once}`,
    ...(effect !== "read" && { parameters: [ref("parameters", "idempotencyKey")] }),
    requestBody: {
      required: true,
      content: { [JSON_TYPE]: { schema: args === null ? { type: "object" } : hoisted(name, args, schemas) } },
    },
    responses: {
      ...answered("It is done", {
        type: "object",
        properties: { ok: { const: true }, result: {} },
        required: ["ok", "result"],
      }),
      ...refusals(400, 401, 403, 404, 409, 413, 415, 500, 502, 503),
    },
  };
}

/** A schema's own definitions moved to the document's, where its references then lead. */
function hoisted(command: string, args: JsonSchema, schemas: Record<string, JsonSchema>): JsonSchema {
  const { $defs, ...rest } = args as JsonSchema & { $defs?: Record<string, JsonSchema> };
  if ($defs === undefined) return rest;
  const moved = (schema: JsonSchema) =>
    JSON.parse(JSON.stringify(schema).replaceAll('"#/$defs/', `"#/components/schemas/${command}.`)) as JsonSchema;
  for (const [name, schema] of Object.entries($defs)) schemas[`${command}.${name}`] = moved(schema);
  return moved(rest);
}

const commandList = () => ({
  operationId: "readCommands",
  tags: ["commands"],
  summary: "All commands, and what each takes",
  description: "Grant: none. Whoever is signed in may read it.",
  responses: { ...answered("The answer", described(pageOf(commandEntries))), ...refusals(400, 401, 500, 503) },
});

const tickOperation = () => ({
  operationId: "fireTick",
  tags: ["runtime"],
  summary: "Fire a tick, as the cron would",
  description: "Grant: `tick:fire`. For a clock outside, should the platform's stop. Two at once do no harm.",
  responses: { ...answered("The tick's report", described(tickReport)), ...refusals(400, 401, 403, 500, 503) },
});

const healthPath = () => {
  const schema = described(healthView);
  const content = { [JSON_TYPE]: { schema } };
  return {
    get: {
      operationId: "readHealth",
      tags: ["runtime"],
      summary: "How the runtime is doing",
      security: [],
      responses: {
        "200": { description: "ok, starting or degraded", content },
        "503": { description: "misconfigured", content },
      },
    },
  };
};

const metricsPath = () => ({
  get: {
    operationId: "readMetrics",
    tags: ["runtime"],
    summary: "Metrics in Prometheus's text format",
    description: "Grant: `metrics:read`.",
    responses: {
      "200": { description: "Metrics", content: { "text/plain": { schema: { type: "string" } } } },
      ...refusals(400, 401, 403, 500, 503),
    },
  },
});
