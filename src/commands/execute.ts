import type { DueworkError } from "../core/errors.ts";
import { refuse } from "../core/errors.ts";
import { issueField, issueMessage } from "../core/payload.ts";
import { readOnlyDb, WRITES } from "../db/read-only.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import type { Actor } from "./actor.ts";
import type { Registered } from "./define.ts";

/**
 * Runs a command: the one way of every surface. Whether the actor may is asked before, by `may`.
 *
 * The arguments are held to the command's schema (`bad_arguments`). A `read` command gets a database that refuses
 * writes, and with it an outbox that enqueues and settles nothing: one that writes all the same answers
 * `read_command_writes`, also where it swallowed what was thrown.
 *
 * @param input what its schema takes
 * @throws what the command throws
 */
export async function execute(
  command: Registered,
  input: unknown,
  invocation: Invocation,
  actor: Actor,
  scope: string | null,
): Promise<CommandAnswer> {
  const checked = await checkArguments(command, input);
  if (!checked.ok) return checked;
  if (command.effect !== "read") return command.run(checked.args, invocation, actor, scope);

  let refusal: DueworkError | null = null;
  const reading = readingOnly(invocation, (first) => {
    refusal ??= first;
  });
  // Async, so that a command that throws at once is one that rejects.
  const run = async () => command.run(checked.args, reading, actor, scope);
  const answer = await run().catch((error: unknown) => {
    if (refusal === null) throw error;
    return null;
  });
  return mislabelled(command, refusal) ?? (answer as CommandAnswer);
}

/** Holds arguments to a command's schema. `args` is what the schema answers. */
export async function checkArguments(
  command: Pick<Registered, "args">,
  input: unknown,
): Promise<{ ok: true; args: unknown } | ReturnType<typeof refuse<"bad_arguments">>> {
  // To some schemas a list is an object without properties.
  if (typeof input !== "object" || input === null || Array.isArray(input)) {
    return refuse("bad_arguments", "", "the arguments are an object");
  }
  const checked = await command.args["~standard"].validate(input);
  if (!checked.issues) return { ok: true, args: checked.value };
  const [issue] = checked.issues;
  const field = issueField(issue?.path);
  return refuse("bad_arguments", field, `${field === "" ? "" : `${field}: `}${issueMessage(issue)}`);
}

/** The same invocation over a database that only reads, wherever it is asked for. */
function readingOnly(invocation: Invocation, onRefused: (refusal: DueworkError) => void): Invocation {
  const { runtime, db } = invocation;
  return {
    ...invocation,
    db: readOnlyDb(db, onRefused),
    runtime: { ...runtime, db: readOnlyDb(runtime.db, onRefused) },
  };
}

function mislabelled({ name }: Registered, refusal: DueworkError | null) {
  if (refusal === null) return null;
  return refuse(WRITES, refusal.field, `${name} says that it only reads: ${refusal.message}`);
}
