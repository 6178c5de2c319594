import type { Refusal } from "../core/errors.ts";
import { DAY } from "../core/time.ts";
import type { Actor, Token } from "./actor.ts";
import type { Registered } from "./define.ts";

/** How long an approval holds, ms. */
export const PLAN_MS = 30 * DAY;

/** A row of `plans`. */
export interface PlanRow {
  name: string;
  /** JSON: `[{command, args, scope}]`. */
  commands: string;
  digest: string;
  approved_by: string;
  approved_at: number;
  expires_at: number;
}

/** Those of the plans that there are: rows of {@link PlanRow}. */
export function readPlans(_db: D1Database, _names: readonly string[]): D1PreparedStatement {
  throw new Error("not built yet");
}

/** Why a plan may not run now under this actor; null = it may. A plan that is not there is `null` as a row. */
export async function checkPlan(
  _row: PlanRow | null,
  _at: { tokens: readonly Token[]; registry: ReadonlyMap<string, Registered>; actor: Actor; now: number },
): Promise<null | Refusal<"plan_not_approved" | "not_granted">> {
  throw new Error("not built yet");
}

/** The commands about plans. */
export function planCommands(_deps: {
  /** Asked late: the registry holds these commands too. */
  registry: () => ReadonlyMap<string, Registered>;
  tokens: readonly Token[];
}): readonly Registered[] {
  return [];
}
