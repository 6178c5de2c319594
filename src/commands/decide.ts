import { unreachable } from "../core/errors.ts";
import { safeText } from "../core/text.ts";
import { isoInstant } from "../core/time.ts";
import type { Actor } from "./actor.ts";
import type { Registered } from "./define.ts";
import type { Dispatcher } from "./dispatcher.ts";
import { checkPlan, type PlanRow, readPlans } from "./plans.ts";
import { may } from "./policy.ts";
import { route } from "./router.ts";
import type { AdmitIf, NewRun } from "./runs.ts";
import type { NewMessage, Only } from "./threads.ts";

/** Of a command's text form, a message shows this much, UTF-16 units; its data hold what it is made of. */
const FORM_CHARS = 1_000;

/** Why a dispatch starts no run. Stable: a firing's outcome is `refused:<code>`. */
export type RefusalCode =
  | "schedule_write"
  | "schedule_fire"
  | "no_route"
  | "not_granted"
  | "author_lost_grant"
  | "bad_arguments"
  | "thread_busy"
  | "channel_gone"
  | "invalid_row"
  | "plan_not_approved"
  | "secret_answer"
  | "not_configured";

/** A command as a text said it. */
export interface Said {
  command: Registered;
  input: Record<string, unknown>;
  scope: string | null;
  /** The text that says the same to the letter. */
  form: string;
}

/** What a text comes to under an actor, before anything is written. */
export type Decision =
  | { kind: "run"; said: Said }
  /** A write that a router inferred: only a person's word makes it one. */
  | { kind: "offer"; said: Said }
  | { kind: "refused"; code: RefusalCode; field: string; message: string; said: Said | null };

/** Text → router → effect → grants. Reads nothing but the text; what a plan says is asked by {@link heedPlans}. */
export async function decide(
  { registry, router }: Dispatcher,
  actor: Actor,
  text: string,
  channel: string,
): Promise<Decision> {
  const routed = await route(text, registry(), router);
  if (!routed.ok) return { kind: "refused", ...routed, said: null };
  const { command, input, scope, form, inferred } = routed;
  const said = { command, input, scope, form };
  const allowed = may(actor, command, { channel: actor.kind === "user" ? channel : null, scope });
  if (!allowed.ok) return { kind: "refused", ...allowed, said };
  if (command.secret) {
    const code = actor.kind === "schedule" ? "bad_arguments" : "secret_answer";
    return { kind: "refused", code, field: "text", message: secretMessage(command), said };
  }
  if (!inferred || !needsWord(command)) return { kind: "run", said };
  if (actor.kind === "user") return { kind: "offer", said };
  const message = `${command.name} was inferred, and would write: its own form says it`;
  return { kind: "refused", code: "schedule_write", field: "text", message, said };
}

/** Why a command of this kind is no text's: a thread keeps what is said in it. */
export function secretMessage({ name }: Registered): string {
  return `${name} answers a secret, which a thread would keep: use the API or the command line`;
}

/**
 * What no router starts by itself: what writes, also by way of a plan; and what is a person's own business, such as a
 * text or a confirmation within the text.
 */
function needsWord({ name, effect, personOnly }: Registered): boolean {
  return effect === "write" || personOnly || name === "plan.run";
}

/** Refuses the runs of plans that may not run now. One read, and none when no decision is about a plan. */
export async function heedPlans<Case extends { actor: Actor; decision: Decision }>(
  db: D1Database,
  { registry, tokens }: Dispatcher,
  cases: readonly Case[],
  now: number,
): Promise<Case[]> {
  const names = [...new Set(cases.flatMap(({ decision }) => planOf(decision) ?? []))];
  if (names.length === 0) return [...cases];
  const { results } = await readPlans(db, names).all<PlanRow>();
  return Promise.all(
    cases.map(async (one) => {
      const { actor, decision } = one;
      const name = planOf(decision);
      if (name === null || decision.kind === "refused") return one;
      const row = results.find((plan) => plan.name === name) ?? null;
      const refusal = await checkPlan(row, { tokens, registry: registry(), actor, now });
      return refusal === null ? one : { ...one, decision: { kind: "refused", ...refusal, said: decision.said } };
    }),
  );
}

function planOf(decision: Decision): string | null {
  if (decision.kind === "refused" || decision.said.command.name !== "plan.run") return null;
  return typeof decision.said.input.name === "string" ? decision.said.input.name : null;
}

/** Where and as what a decision is carried out. */
export interface Place {
  actor: Actor;
  channel: string;
  /** Null: a channel without threads, where nothing is said but the result. */
  thread: string | null;
  /** The run's id, should there be one; a message's id is made from it. */
  runId: string;
  /** ms */
  at: number;
  /** What a schedule's run is for. */
  firing: { id: string; slot: number } | null;
  admitIf?: AdmitIf;
}

/** The run that a decision admits, and what is said about it in the thread. */
export function carryOut(decision: Decision, place: Place): { run: NewRun | null; reply: NewMessage | null } {
  const { actor, channel, thread, runId, at, firing } = place;
  const say = (kind: NewMessage["kind"], text: string, data: NewMessage["data"], only?: Only): NewMessage | null =>
    thread === null
      ? null
      : {
          id: `${runId}-${kind}`,
          thread,
          at,
          author: "duework",
          kind,
          text,
          data: { ...data, ...(firing !== null && { firing: firing.id }) },
          ...(only !== undefined && { only }),
        };
  switch (decision.kind) {
    case "run": {
      const { command, input, scope, form } = decision.said;
      const run: NewRun = {
        id: runId,
        actor: actor.id,
        actorKind: actor.kind === "schedule" ? "schedule" : "user",
        grants: JSON.stringify(actor.grants),
        command: command.name,
        args: input,
        scope,
        channel,
        thread,
        firing: firing?.id ?? null,
        ...(place.admitIf !== undefined && { admitIf: place.admitIf }),
      };
      const due = firing === null ? "" : `, for ${isoInstant(firing.slot)}`;
      const receipt = `${shown(form)}\nruns with the grants of ${actor.id}${due}`;
      return { run, reply: say("receipt", receipt, { run: runId, command: command.name }, { run: runId }) };
    }
    case "offer": {
      const text = `${shown(decision.said.form)}\nwould write, and was inferred: run it as yourself to have it done`;
      return { run: null, reply: say("offer", text, dataOf(decision.said)) };
    }
    case "refused": {
      const { code, message, said } = decision;
      const text = said === null ? `${code}: ${message}` : `${code}: ${message}\n${shown(said.form)}`;
      const data = { code, ...(said !== null && dataOf(said)) };
      const only = firing === null ? undefined : { firing: firing.id, outcome: `refused:${code}` };
      return { run: null, reply: say("refusal", text, data, only) };
    }
    default:
      return unreachable(decision);
  }
}

/** A form as a message shows it: a hundred long ones must fit in one statement. */
const shown = (form: string) => safeText(form, FORM_CHARS);

function dataOf({ command, input, scope }: Said) {
  return { command: command.name, args: input, scope };
}
