import * as v from "valibot";
import { refuse } from "../core/errors.ts";
import { checkJson, parseJson } from "../core/payload.ts";
import { errorText, safeText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import { putStep, type StepOf } from "../jobs/steps.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { type Actor, grantsSchema } from "./actor.ts";
import { define, type Registered } from "./define.ts";
import type { Dispatcher } from "./dispatcher.ts";
import { execute } from "./execute.ts";
import {
  beginEffect,
  beginRun,
  endRun,
  forgetRuns,
  RESULT_CHARS,
  RUN_MS,
  RUN_WORKFLOW,
  type RunEnd,
  type RunRow,
} from "./runs.ts";
import { forgetThreads, say } from "./threads.ts";

/**
 * What the steps of a run's instance do. Each may run twice and finds its own effect: a command that may have had its
 * effect is not run again, and a run that was ended meanwhile stays ended.
 */

/** Kept of a run's time for writing its end, ms. */
const END_MARGIN_MS = 30 * SECOND;

/** A run as its steps pass it on: plain data. */
export interface BegunRun {
  id: string;
  startedAt: number;
}

/** The steps in their order, as a person reads them. */
const STEPS = ["begin", "execute", "finish"] as const;

function stepOf(instance: string, name: (typeof STEPS)[number]): StepOf {
  return { workflow: RUN_WORKFLOW, instance, position: STEPS.indexOf(name), name };
}

/** Step `begin`: the run is running from now on. Null: it had ended before, or was never admitted. */
export async function beginStep({ db, now }: Invocation, id: string): Promise<BegunRun | null> {
  const [begun] = await db.batch<RunRow>([beginRun(db, id, now), putStep(db, stepOf(id, "begin"), {}, now)]);
  const row = begun?.results[0];
  return row === undefined ? null : { id, startedAt: row.started_at ?? now };
}

/** Step `execute`: runs the command, once if it may write, and answers how it went. */
export async function executeStep(
  invocation: Invocation,
  { registry }: Dispatcher,
  { id, startedAt }: BegunRun,
): Promise<RunEnd> {
  const { db, now } = invocation;
  const row = await db.prepare("SELECT * FROM runs WHERE id = ?1").bind(id).first<RunRow>();
  if (row === null) return lost("the run's row is gone");
  const command = registry().get(row.command);
  if (command === undefined) return failed(`there is no command ${row.command} any more`);
  const grants = v.safeParse(v.pipe(v.string(), v.parseJson(), grantsSchema), row.grants);
  const input = parseJson(row.args);
  if (!grants.success || !input.ok) return failed("the run's row cannot be read");
  const step = putStep(db, stepOf(id, "execute"), { command: row.command, actor: row.actor }, now);
  const [mine] = await db.batch(command.effect === "read" ? [step] : [beginEffect(db, id), step]);
  if (command.effect !== "read" && mine?.results.length === 0) {
    return lost("it was interrupted, and its command may have had its effect");
  }
  const actor: Actor = { kind: row.actor_kind, id: row.actor, grants: grants.output };
  const left = startedAt + RUN_MS - END_MARGIN_MS - now;
  if (left <= 0) return failed("its time was over before its command began");
  try {
    const answer = await withDeadline(execute(command, input.value, invocation, actor, row.scope), left, row.command);
    if (!answer.ok) return failed(`${answer.code}: ${answer.message}`);
    return { status: "succeeded", result: resultText(answer.result), error: null };
  } catch (error) {
    return failed(errorText(error));
  }
}

/** Step `finish`: ends the run and says its result in its thread. A run that was ended by others stays as it is. */
export async function finishStep(
  invocation: Invocation,
  { channels }: Dispatcher,
  { id }: BegunRun,
  end: RunEnd,
): Promise<"ended" | "stale"> {
  const { db, now } = invocation;
  const tidy = [forgetRuns(db, now), ...forgetThreads(db, now)];
  return (await endAndTell(invocation, channels, id, end, tidy)) === null ? "stale" : "ended";
}

/** Ends a live run, and says so where it was asked for. Null: it was ended already, or is not there. */
export async function endAndTell(
  invocation: Invocation,
  channels: Dispatcher["channels"],
  id: string,
  end: RunEnd,
  tidy: readonly D1PreparedStatement[] = [],
): Promise<RunRow | null> {
  const { db, now, runtime } = invocation;
  const row = await db.prepare("SELECT * FROM runs WHERE id = ?1").bind(id).first<RunRow>();
  if (row === null || row.ended_at !== null) return null;
  const { thread, channel } = row;
  const message = {
    id: `${id}-result`,
    // Behind its receipt, whatever the two clocks say.
    at: Math.max(now, row.admitted_at + 2),
    author: "duework",
    kind: "result" as const,
    text: resultMessage(row, end),
    data: { run: id, command: row.command, status: end.status },
  };
  // A channel without threads gets its results from a thread of its own that nobody opens.
  const said = { ...message, thread: thread ?? channel };
  const [ended] = await channels.commit(
    invocation,
    [
      endRun(db, id, end, now),
      ...say(db, [said]),
      putStep(db, stepOf(id, "finish"), { status: end.status }, now),
      ...tidy,
    ],
    [{ channel, message: said.id }],
  );
  const [done] = (ended as D1Result<RunRow>).results;
  if (done === undefined) return null;
  const { log } = runtime.ports;
  log({
    event: "run_ended",
    level: end.status === "succeeded" ? "info" : "warn",
    run: id,
    command: row.command,
    actor: row.actor,
    status: end.status,
  });
  return done;
}

const failed = (error: string): RunEnd => ({ status: "failed", result: null, error: errorText(error) });
const lost = (error: string): RunEnd => ({ status: "lost", result: null, error });

/**
 * A result as JSON that any store takes. One that is too long, or no JSON, is kept as far as it goes. Never throws: what
 * the command did is done, whatever it says of it.
 */
function resultText(result: unknown): string {
  const json = checkJson(result ?? null, { maxBytes: RESULT_CHARS });
  if (json.ok) return json.json;
  return JSON.stringify({ truncated: safeText(jsonLike(result), RESULT_CHARS / 4), why: json.problem });
}

function jsonLike(value: unknown): unknown {
  try {
    return JSON.stringify(value, (_, one: unknown) => (typeof one === "bigint" ? String(one) : one));
  } catch {
    return value;
  }
}

function resultMessage({ command }: RunRow, { status, result, error }: RunEnd): string {
  const head = `${command.replaceAll(".", " ")}: ${status}`;
  if (error !== null) return `${head}\n${error}`;
  const value = result === null ? { ok: false as const } : parseJson(result);
  return value.ok ? `${head}\n${JSON.stringify(value.value, null, 2)}` : head;
}

/** `run cancel`. */
export function runCommands(dispatcher: Dispatcher): readonly Registered[] {
  return [
    define(
      {
        name: "run.cancel",
        effect: "write",
        grant: "run:write",
        help: "Ends a live run; what its command has done by then stays done.",
        positional: ["id"],
      },
      v.strictObject({ id: v.pipe(v.string(), v.minLength(1), v.maxLength(100)) }),
      async ({ id }, invocation, actor) => {
        const end = { status: "cancelled" as const, result: null, error: `cancelled by ${actor.id}` };
        const row = await endAndTell(invocation, dispatcher.channels, id, end);
        if (row === null) return refuse("no_live_run", "id", `there is no live run ${id}`);
        if (row.started_at !== null) await terminate(dispatcher.runs, id, invocation);
        return { ok: true, result: { id, status: "cancelled" } };
      },
    ),
  ];
}

/** Best effort: the row has ended, so whatever the instance still does changes nothing of the run. */
async function terminate(workflow: Workflow | null, id: string, { runtime }: Invocation): Promise<void> {
  try {
    const instance = await workflow?.get(id);
    await instance?.terminate();
  } catch (error) {
    runtime.ports.log({ event: "run_not_terminated", level: "warn", run: id, error: errorText(error) });
  }
}
