import type { Refusal } from "../core/errors.ts";
import type { Registered } from "./define.ts";

/** Longest text, bytes of UTF-8. */
export const TEXT_MAX_BYTES = 8 * 1024;

/** A command as a text said it. `input` is what its schema takes, not what the schema answers. */
export interface Read {
  ok: true;
  command: Registered;
  input: Record<string, unknown>;
  scope: string | null;
}

/** Reads a text as one of the commands. */
export async function readChat(
  _text: string,
  _registry: ReadonlyMap<string, Registered>,
): Promise<Read | Refusal<"no_route" | "bad_arguments">> {
  throw new Error("not built yet");
}

/** The text that {@link readChat} reads back as the same. */
export function chatForm(
  _command: Pick<Registered, "name" | "positional">,
  _input: Record<string, unknown>,
  _scope: string | null,
): string {
  throw new Error("not built yet");
}
