import type { Context, Handler, MiddlewareHandler } from "hono";
import { bodyLimit } from "hono/body-limit";
import * as v from "valibot";
import { type Actor, mayDo } from "../commands/actor.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { problem } from "./problem.ts";

/** What the sign-in puts into a request's context. */
export type Env = { Variables: { actor: Actor; runtime: Runtime } };

/** The query of a read without parameters. */
export const noQuery = v.strictObject({});

const limit = v.optional(
  v.pipe(
    v.string(),
    v.regex(/^\d{1,3}$/, "a limit is a whole number from 1 to 200"),
    v.transform(Number),
    v.minValue(1, "a limit is at least 1"),
    v.maxValue(200, "a limit is at most 200"),
  ),
  "50",
);

/** The query of a list whose cursor is checked where it is read. */
export const listSchema = v.strictObject({ limit, cursor: v.optional(v.pipe(v.string(), v.nonEmpty())) });

/** The query of a list whose cursor is a number. */
export const pageSchema = v.strictObject({
  limit,
  cursor: v.optional(v.pipe(v.string(), v.regex(/^\d{1,15}$/, "not a cursor of this list"), v.transform(Number))),
});

/**
 * A read: checks the grant, then the query, then answers what `answer` gives as JSON, or its refusal as a problem.
 * @param action the grant it needs; null = none
 */
export function read<Schema extends v.GenericSchema>(
  action: string | null,
  query: Schema,
  answer: (query: v.InferOutput<Schema>, c: Context<Env>) => Promise<object>,
): Handler<Env> {
  return async (c) => {
    if (action !== null && !mayDo(c.get("actor"), action)) return notGranted(c, action);
    const asked = readQuery(c, query);
    if (!asked.ok) return problem(c, "bad_arguments", asked.message, { field: asked.field });
    const view = await answer(asked.query, c);
    return isRefusal(view) ? problem(c, view.code, view.message, { field: view.field }) : c.json(view);
  };
}

/** A request's parameters behind the `?`: each once, and none that the schema does not name. */
export function readQuery<Schema extends v.GenericSchema>(
  c: Context,
  schema: Schema,
): { ok: true; query: v.InferOutput<Schema> } | { ok: false; field: string; message: string } {
  const all = c.req.queries();
  const twice = Object.keys(all).find((name) => (all[name]?.length ?? 0) > 1);
  if (twice !== undefined) return { ok: false, field: twice, message: `${twice}: it is given twice` };
  const parsed = v.safeParse(schema, c.req.query());
  if (parsed.success) return { ok: true, query: parsed.output };
  const [issue] = parsed.issues;
  const field = v.getDotPath(issue) ?? "query";
  const unknown = issue.type === "strict_object" && issue.expected === "never";
  return { ok: false, field, message: unknown ? `there is no parameter ${field}` : `${field}: ${issue.message}` };
}

/** Refuses a larger body, unread. @param bytes the most it may be */
export function bodyUpTo(bytes: number): MiddlewareHandler<Env> {
  return bodyLimit({
    maxSize: bytes,
    onError: (c) => problem(c, "body_too_large", `a body is at most ${bytes} bytes`),
  });
}

/** A path parameter: always there, since the route has it. */
export const part = (c: Context, name: string): string => c.req.param(name) ?? "";

export const notGranted = (c: Context, grant: string): Response =>
  problem(c, "not_granted", `this needs the grant ${grant}`, { grant });

function isRefusal(view: object): view is { ok: false; code: string; field: string; message: string } {
  return "ok" in view && view.ok === false;
}
