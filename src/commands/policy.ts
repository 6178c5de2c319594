import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { type Actor, holds } from "./actor.ts";
import type { Registered } from "./define.ts";

/** Who may do what, as data: whoever meets all conditions of one rule may. No rule, no access. */

export type PolicyCode = "schedule_write" | "schedule_fire" | "not_granted" | "bad_arguments";

/** What is asked for. A tick that an outer clock fires is no command, but stands under the same rules. */
interface Asked {
  name: string;
  effect: Registered["effect"] | "tick";
  grant: string;
  personOnly: boolean;
  scoped: boolean;
  channel: string | null;
  scope: string | null;
}

type Denial = Refusal<PolicyCode>;

/** All that a rule can ask, in the order in which a rule of this file asks it. Null = met. */
const CONDITIONS = {
  /** It is not a person's business alone. */
  "is-impersonal": (_, { name, personOnly }) =>
    personOnly ? refuse("schedule_fire", "command", `only a person may ask for ${name}`) : null,
  "holds-grant": (actor, { effect, grant }) => {
    // What an outer clock holds opens no command, whatever a command says it needs.
    const opens = effect === "tick" || grant !== TICK_GRANT;
    return opens && holds(actor, "actions", grant) ? null : lacks("grant", grant);
  },
  "holds-channel": (actor, { channel }) =>
    channel === null || holds(actor, "channels", channel) ? null : lacks("channel", channel),
  "holds-scope": (actor, { name, scoped, scope }) => {
    if (scope === null) {
      // Whoever holds some scopes and not all must say in which one he acts.
      const limited = scoped && actor.grants.scopes !== "all" && actor.grants.scopes.length > 0;
      return limited ? refuse("not_granted", "scope", `you hold some scopes: say "in <scope>:" before ${name}`) : null;
    }
    if (!scoped) return refuse("bad_arguments", "scope", `${name} knows no scopes`);
    return holds(actor, "scopes", scope) ? null : lacks("scope", scope);
  },
} satisfies Record<string, (actor: Actor, asked: Asked) => Denial | null>;

const TICK_GRANT = "tick:fire";

const ruleSchema = v.strictObject({
  effect: v.picklist(["read", "exec", "write", "tick"]),
  kinds: v.pipe(v.array(v.picklist(["user", "service", "schedule"])), v.minLength(1)),
  conditions: v.pipe(v.array(v.picklist(Object.keys(CONDITIONS) as (keyof typeof CONDITIONS)[])), v.minLength(1)),
});
type Rule = v.InferOutput<typeof ruleSchema>;

/**
 * Checks rules and freezes them.
 * @throws v.ValiError for an effect, a kind or a condition that is not known, or a rule that asks nothing.
 */
export function loadPolicy(rules: readonly unknown[]): readonly Rule[] {
  return Object.freeze(rules.map((rule) => Object.freeze(v.parse(ruleSchema, rule))));
}

const PERSON = ["holds-grant", "holds-channel", "holds-scope"];
// A schedule's channel is its row's: whoever added the row had to hold it.
const SCHEDULE = ["is-impersonal", "holds-grant", "holds-scope"];

/** No rule lets a schedule write, and none gives the runtime itself a command. */
const POLICY = loadPolicy([
  { effect: "read", kinds: ["user"], conditions: PERSON },
  { effect: "exec", kinds: ["user"], conditions: PERSON },
  { effect: "write", kinds: ["user"], conditions: PERSON },
  { effect: "read", kinds: ["schedule"], conditions: SCHEDULE },
  { effect: "exec", kinds: ["schedule"], conditions: SCHEDULE },
  { effect: "tick", kinds: ["user", "service"], conditions: ["holds-grant"] },
]);

/**
 * Whether an actor may do a command.
 * @param at.channel where a person dispatches it into; absent or null = nowhere: HTTP, the command line
 * @param at.scope what `in <scope>:` said; absent or null = nothing
 */
export function may(
  actor: Actor,
  command: Pick<Registered, "name" | "effect" | "grant" | "personOnly" | "scoped">,
  at: { channel?: string | null; scope?: string | null } = {},
): { ok: true } | Refusal<PolicyCode> {
  return judge(actor, { ...command, channel: at.channel ?? null, scope: at.scope ?? null });
}

/** Whether an actor may fire a tick from outside. */
export function mayTick(actor: Actor): { ok: true } | Refusal<PolicyCode> {
  const tick = { name: "the tick", effect: "tick", grant: TICK_GRANT, personOnly: false, scoped: false } as const;
  return judge(actor, { ...tick, channel: null, scope: null });
}

function judge(actor: Actor, asked: Asked): { ok: true } | Denial {
  let denial: Denial | null = null;
  for (const { effect, kinds, conditions } of POLICY) {
    if (effect !== asked.effect || !kinds.includes(actor.kind)) continue;
    const unmet = firstUnmet(conditions, actor, asked);
    if (unmet === null) return { ok: true };
    denial ??= unmet;
  }
  return denial ?? noRule(actor, asked);
}

function firstUnmet(conditions: Rule["conditions"], actor: Actor, asked: Asked): Denial | null {
  for (const condition of conditions) {
    const denial = CONDITIONS[condition](actor, asked);
    if (denial !== null) return denial;
  }
  return null;
}

function noRule({ kind }: Actor, { name, effect, grant }: Asked): Denial {
  if (kind === "schedule" && effect === "write") {
    return refuse("schedule_write", "command", `${name} writes, and a schedule does not: a person may run it`);
  }
  return refuse("not_granted", grant, `a ${kind} may not ask for ${name}`);
}

function lacks(axis: "grant" | "channel" | "scope", entry: string): Denial {
  return refuse("not_granted", entry, `this needs the ${axis} ${entry}`);
}
