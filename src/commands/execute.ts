import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import type { Actor } from "./actor.ts";
import type { Registered } from "./define.ts";

/** The one way any surface runs a command. Whether the actor may is asked before, by `may`. */
export async function execute(
  _command: Registered,
  _input: unknown,
  _invocation: Invocation,
  _actor: Actor,
  _scope: string | null,
): Promise<CommandAnswer> {
  throw new Error("not built yet");
}
