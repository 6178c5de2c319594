import { CHANNEL, parseTokens, type Token } from "../commands/actor.ts";
import { DEFAULT_LIMITS, type Limits, parseLimits } from "../core/budget.ts";
import { checkFloors } from "../core/split.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import type { Module } from "../outbox/module.ts";
import { RUNTIME_RESERVE } from "../tick/tick.ts";
import { type AccessSettings, readAccess } from "./access.ts";

/** Settings named `DUEWORK_…`: any other of that prefix is a mistake, and is refused. */
const OWN = new Set(["DUEWORK_TOKENS"]);

/** What the Worker's environment says. */
export interface Settings {
  limits: Limits;
  /** Null: missing or malformed, and nobody gets in. */
  tokens: readonly Token[] | null;
  /** Null: tokens of Cloudflare Access are not looked at. */
  access: AccessSettings | null;
  /** The channel that is told what needs a person; null = none. */
  alertsTo: string | null;
}

/** A Worker without tokens works, since items need no HTTP: that nobody gets in is named beside its other problems. */
export const NO_TOKENS: Problem = {
  code: "no_tokens",
  setting: "DUEWORK_TOKENS",
  detail: "it is missing, and nobody gets in",
};

/**
 * Reads the runtime's own settings. A problem keeps the Worker from starting work and is named in `/healthz`; missing
 * tokens are none of these.
 *
 * @param given limits that the code fixes, before any setting
 */
export function readSettings(
  env: Bindings,
  modules: readonly Module[],
  given?: Limits,
): { settings: Settings; problems: Problem[] } {
  const problems: Problem[] = [];
  for (const name of Object.keys(env)) {
    if (name.startsWith("DUEWORK_") && !OWN.has(name)) {
      problems.push({ code: "unknown_setting", setting: name, detail: `there is no setting ${name}` });
    }
  }
  const limits = given ?? readLimits(env.SCHEDULED_LIMITS, problems);
  const reserve = { ...RUNTIME_RESERVE, queries: RUNTIME_RESERVE.queries + modules.length };
  const floors = checkFloors(limits, modules, reserve);
  if (!floors.ok) problems.push({ code: floors.code, setting: floors.field, detail: floors.message });
  const { access, problem } = readAccess(env);
  if (problem !== null) problems.push({ code: "bad_access", ...problem });
  const tokens = readTokens(env.DUEWORK_TOKENS, problems);
  return { settings: { limits, tokens, access, alertsTo: readAlertsTo(env.ALERTS_CHANNEL, problems) }, problems };
}

function readLimits(value: unknown, problems: Problem[]): Limits {
  if (value === "") return DEFAULT_LIMITS;
  const limits = parseLimits(value);
  if (limits.ok) return limits.limits;
  problems.push({ code: limits.code, setting: "SCHEDULED_LIMITS", detail: limits.message });
  return DEFAULT_LIMITS;
}

function readTokens(value: unknown, problems: Problem[]): readonly Token[] | null {
  if (value === undefined || value === "") return null;
  const parsed = parseTokens(typeof value === "string" ? value : JSON.stringify(value));
  if (parsed.ok) return parsed.tokens;
  problems.push({ code: "bad_tokens", setting: "DUEWORK_TOKENS", detail: parsed.problem });
  return null;
}

function readAlertsTo(value: unknown, problems: Problem[]): string | null {
  if (value === undefined || value === "") return null;
  if (typeof value === "string" && CHANNEL.test(value) && !value.startsWith("webhook:")) return value;
  const detail = "a channel that has threads: inbox:<name> or slack:<name>";
  problems.push({ code: "bad_setting", setting: "ALERTS_CHANNEL", detail });
  return null;
}
