import type { Context } from "hono";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import { ACTION } from "../commands/actor.ts";
import type { Registered } from "../commands/define.ts";
import { execute } from "../commands/execute.ts";
import { may } from "../commands/policy.ts";
import { parseJson } from "../core/payload.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import { beginInvocation } from "../outbox/runtime.ts";
import { type Answered, isKey, once } from "./idempotency.ts";
import { type JsonSchema, jsonSchemaOf } from "./json-schema.ts";
import { PROBLEM, problem, problemOf } from "./problem.ts";
import { type Env, noQuery, notGranted, readQuery } from "./request.ts";
import type { Served } from "./served.ts";

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

/** `POST /api/commands/<name>`: the arguments are the body, a JSON object. */
export async function runCommand(c: Context<Env>, served: Served): Promise<Response> {
  const name = c.req.param("name") ?? "";
  const command = served.registry.get(name);
  if (command === undefined) return problem(c, "unknown_command", `there is no command ${name}`);
  const allowed = may(c.get("actor"), command);
  if (!allowed.ok) {
    return allowed.code === "not_granted"
      ? notGranted(c, allowed.field)
      : problem(c, allowed.code, allowed.message, { field: allowed.field });
  }
  const query = readQuery(c, noQuery);
  if (!query.ok) return problem(c, "bad_arguments", query.message, { field: query.field });
  if (!/^application\/json\b/i.test(c.req.header("content-type") ?? "")) {
    return problem(c, "unsupported_media_type", "the arguments are a JSON object (content-type application/json)");
  }
  const text = await c.req.text();
  const body = parseJson(text);
  if (!body.ok) return problem(c, "bad_arguments", "the body is not JSON", { field: "body" });
  const invocation = beginInvocation(c.get("runtime"), served.clock());
  const actor = c.get("actor");
  const run = async () => answered(await execute(command, body.value, invocation, actor, null));

  const key = c.req.header("idempotency-key");
  // A read changes nothing, and a repeat is to see how things are by then.
  if (key === undefined || command.effect === "read") return respond(c, await run());
  if (!isKey(key)) {
    return problem(c, "bad_arguments", "a key is 1 to 255 visible ASCII characters", { field: "Idempotency-Key" });
  }
  const asked = { actor: actor.id, key, command: name, body: text, secret: command.secret };
  const answer = await once(invocation, asked, run);
  if (!answer.ok) return problem(c, answer.code, answer.message, { field: answer.field });
  if (answer.repeated) c.header("idempotent-replayed", "true");
  return respond(c, answer.answer);
}

/** A command's answer as it goes over HTTP. */
function answered(answer: CommandAnswer): Answered {
  if (answer.ok) return { status: 200, body: { ok: true, result: answer.result } };
  // What a command finds lacking is said as what every route finds lacking.
  const grant = answer.code === "not_granted" && ACTION.test(answer.field) ? { grant: answer.field } : {};
  return problemOf(answer.code, answer.message, { field: answer.field || "body", ...grant });
}

function respond(c: Context, { status, body }: Answered): Response {
  return c.json(body, status as ContentfulStatusCode, status < 400 ? {} : PROBLEM);
}
