import type { Context } from "hono";
import { statusOf } from "../api/problem.ts";
import { checkArguments, execute } from "../commands/execute.ts";
import { may } from "../commands/policy.ts";
import { type Refusal, refuse } from "../core/errors.ts";
import { parseJson } from "../core/payload.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import { beginInvocation } from "../outbox/runtime.ts";
import { ACTS, type ActWords } from "./acts.ts";
import { leaveNotice } from "./notices.ts";
import { asJson, Whole } from "./parts.tsx";
import { type Content, type Env, ownPath, type Visit } from "./visit.ts";

/** Acts of a person: each is a command of the registry, run by the one way under the one policy. */

export type Fields = Record<string, unknown>;

/**
 * The arguments that a form gives: `args` holds what its page knew, as JSON; `text.<name>` is what was typed;
 * `each.<name>`, given as often as there are entries, is a list of JSON.
 */
export function argumentsOf(fields: Fields): { ok: true; args: Record<string, unknown> } | Refusal<"bad_arguments"> {
  const bad = (field: string) => refuse("bad_arguments", field, `${field}: not a form of this panel`);
  const known = parseJson(typeof fields.args === "string" ? fields.args : "{}");
  if (!known.ok || typeof known.value !== "object" || known.value === null || Array.isArray(known.value)) {
    return bad("args");
  }
  const args: Record<string, unknown> = { ...known.value };
  for (const [name, value] of Object.entries(fields)) {
    if (name.startsWith("text.") && typeof value === "string") args[name.slice("text.".length)] = value;
    if (!name.startsWith("each.")) continue;
    const entries = [value].flat().map((one) => parseJson(typeof one === "string" ? one : ""));
    if (entries.some(({ ok }) => !ok)) return bad(name);
    args[name.slice("each.".length)] = entries.flatMap((one) => (one.ok ? [one.value] : []));
  }
  return { ok: true, args };
}

/** Runs a command for a visit, if its actor may. */
export async function runFor(visit: Visit, name: string, args: unknown): Promise<CommandAnswer> {
  const command = visit.deps.registry.get(name);
  if (command === undefined) return refuse("unknown_command", "command", `there is no command ${name}`);
  const allowed = may(visit.actor, command);
  if (!allowed.ok) return allowed;
  return execute(command, args, beginInvocation(visit.runtime, visit.now), visit.actor, null);
}

/** A refusal as a page. */
export function refused({ code, field, message }: Refusal, back: string | null): Content {
  return {
    title: "Refused",
    live: false,
    status: statusOf(code) as NonNullable<Content["status"]>,
    body: (
      <>
        <p class="notice bad" role="alert">
          {message}
        </p>
        <p>
          Code <code>{code}</code>
          {field === "" ? null : (
            <>
              , about <code>{field}</code>
            </>
          )}
          . Nothing was changed.
        </p>
        {back === null ? null : (
          <p>
            <a href={back}>Back</a>
          </p>
        )}
      </>
    ),
  };
}

/** The page that says what an act will do, and asks for it. */
export async function ask(visit: Visit, name: string, fields: Fields): Promise<Content> {
  const words = ACTS[name];
  const command = visit.deps.registry.get(name);
  if (words === undefined || command === undefined) return nothing();
  const back = ownPath(fields.back);
  const allowed = may(visit.actor, command);
  if (!allowed.ok) return refused(allowed, back);
  const given = argumentsOf(fields);
  if (!given.ok) return refused(given, back);
  // What the command would refuse is not asked for first.
  const checked = await checkArguments(command, words.reason ? { reason: "to be given", ...given.args } : given.args);
  return checked.ok ? question(visit, name, words, given.args, back) : refused(checked, back);
}

function question(visit: Visit, name: string, words: ActWords, args: Fields, back: string): Content {
  return {
    title: words.verb,
    live: false,
    body: (
      <form method="post" action={`/panel/act/${name}`} class="stack">
        <p class="says">{words.asks?.(args) ?? visit.deps.registry.get(name)?.help ?? name}</p>
        {words.reason ? (
          <>
            <label for="reason">Reason</label>
            <input id="reason" name="text.reason" required maxlength={500} autocomplete="off" />
          </>
        ) : null}
        <input type="hidden" name="csrf" value={visit.csrf} />
        <input type="hidden" name="args" value={JSON.stringify(args)} />
        <input type="hidden" name="back" value={back} />
        <input type="hidden" name="asked" value="yes" />
        <div class="row">
          <button type="submit" class="danger">
            {words.verb}
          </button>
          <a href={back}>Leave it</a>
        </div>
      </form>
    ),
  };
}

/** Runs what a form asks for, and goes back to its page; or says why not. */
export async function act(visit: Visit, c: Context<Env>, name: string, fields: Fields): Promise<Content | Response> {
  const words = ACTS[name];
  if (words === undefined && name !== "run.as-me") return nothing();
  const back = ownPath(fields.back);
  const given = argumentsOf(fields);
  if (!given.ok) return refused(given, back);
  // What destroys something is asked for once, whatever page the form stood on.
  if (words?.asks && fields.asked !== "yes") return ask(visit, name, fields);
  const answer = await runFor(visit, name, given.args);
  if (!answer.ok) {
    // What was said stands in its thread, with why it was refused.
    const thread = threadOf({ ...answer });
    if (thread === null) return refused(answer, back);
    leaveNotice(c, { tone: "bad", text: answer.message });
    return c.redirect(thread, 303);
  }
  const result = (answer.result ?? {}) as Record<string, unknown>;
  if (words === undefined) return confirmation(visit, result, back);
  leaveNotice(c, { tone: "good", text: words.done(given.args, result) });
  return c.redirect((name === "dispatch" ? threadOf(result) : null) ?? back, 303);
}

/** The page of the thread that an answer names. */
const threadOf = ({ thread }: Fields): string | null =>
  typeof thread === "string" && thread !== "" ? `/panel/threads/${encodeURIComponent(thread)}` : null;

/** `run as me` was pressed: what will run, under whose grants, until when. */
function confirmation(visit: Visit, result: Record<string, unknown>, back: string): Content {
  const { confirmation: id, form, command, args, expiresAt } = result;
  return {
    title: "Run it as yourself",
    live: false,
    body: (
      <form method="post" action="/panel/act/run.confirm" class="stack">
        <p class="says">
          {`${asText(command)} runs once, with the grants that ${visit.actor.id} holds at that moment. It may be confirmed until ${asText(expiresAt)}.`}
        </p>
        <Whole label="The command" text={asText(form)} />
        <Whole label="Its arguments" text={asJson(args)} />
        <input type="hidden" name="csrf" value={visit.csrf} />
        <input type="hidden" name="args" value={JSON.stringify({ id })} />
        <input type="hidden" name="back" value={back} />
        <div class="row">
          <button type="submit" class="danger">
            Run it as me
          </button>
          <a href={back}>Leave it</a>
        </div>
      </form>
    ),
  };
}

const asText = (value: unknown): string => (typeof value === "string" ? value : "");

export function nothing(): Content {
  return {
    title: "Nothing here",
    live: false,
    status: 404,
    body: (
      <p>
        There is no such page. <a href="/panel">Go to the overview</a>
      </p>
    ),
  };
}
