import type { Refusal } from "../core/errors.ts";
import type { Actor } from "./actor.ts";
import type { Registered } from "./define.ts";

export type PolicyCode = "schedule_write" | "schedule_fire" | "not_granted" | "bad_arguments";

/** Whether an actor may do a command at a place. */
export function may(
  _actor: Actor,
  _command: Pick<Registered, "name" | "effect" | "grant" | "personOnly" | "scoped">,
  _at: { channel?: string | null; scope?: string | null },
): { ok: true } | Refusal<PolicyCode> {
  throw new Error("not built yet");
}

/** Whether an actor may fire a tick from outside. */
export function mayTick(_actor: Actor): { ok: true } | Refusal<"not_granted"> {
  throw new Error("not built yet");
}
