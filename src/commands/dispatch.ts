import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { safeText } from "../core/text.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import { type Actor, CHANNEL, holds } from "./actor.ts";
import { carryOut, decide, heedPlans, type RefusalCode } from "./decide.ts";
import { define, type Registered } from "./define.ts";
import type { Dispatcher } from "./dispatcher.ts";
import { admit, startInstances } from "./runs.ts";
import { findThread, forgetThreads, type NewMessage, openThreads, say, type ThreadRow } from "./threads.ts";

/** Longest title of a thread, UTF-16 units: a line on a page. */
const TITLE_CHARS = 120;

export interface Dispatch {
  text: string;
  channel: string;
  /** An open thread of that channel; null = a new one. */
  thread: string | null;
  /** The message's id, when it has one outside: the same text that comes twice is dispatched once. */
  messageId?: string;
  /** Where the thread is outside, when it began there. */
  external?: string;
}

export type DispatchAnswer =
  | { ok: true; thread: string | null; outcome: "admitted"; runId: string }
  | { ok: true; thread: string; outcome: "offered"; message: string }
  | (Refusal<RefusalCode | "not_found"> & { thread?: string | null });

/**
 * Dispatches what a person wrote: his text, what it comes to and the run it becomes commit together; then the run's
 * instance is made. It does not wait for the run.
 */
export async function dispatchText(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  asked: Dispatch,
): Promise<DispatchAnswer> {
  const { db, now, runtime } = invocation;
  const { text, channel } = asked;
  if (actor.kind !== "user") return refuse("schedule_fire", "actor", "only a person dispatches");
  if (dispatcher.runs === null) return refuse("not_configured", "RUN", "dispatch needs the Workflow bound as RUN");
  if (!holds(actor, "channels", channel)) {
    return refuse("not_granted", "channel", `this needs the channel ${channel}`);
  }
  const threaded = !channel.startsWith("webhook:");
  if (!threaded && asked.thread !== null) return refuse("not_found", "thread", `${channel} has no threads`);
  if (asked.thread !== null) {
    const found = await findThread(db, { id: asked.thread }).first<ThreadRow>();
    if (found?.channel !== channel) return refuse("not_found", "thread", `${channel} has no thread ${asked.thread}`);
  }

  const decided = { actor, decision: await decide(dispatcher, actor, text, channel) };
  const [{ decision } = decided] = await heedPlans(db, dispatcher, [decided], now);
  const id = asked.messageId ?? createSeqs(runtime.ports.bytes)(now);
  const thread = threaded ? (asked.thread ?? `thread-${id}`) : null;
  const place = { actor, channel, thread, runId: `run-${id}`, at: now + 1, firing: null };
  const { run, reply } = carryOut(decision, place);

  const messages: NewMessage[] = [];
  const outside = asked.messageId === undefined ? {} : { postedAt: now };
  if (thread !== null)
    messages.push({ id: `text-${id}`, thread, at: now, author: actor.id, kind: "text", text, ...outside });
  if (reply !== null) messages.push(reply);
  const opened = { id: thread ?? "", channel, title: titleOf(text), openedBy: actor.id };
  const statements = [
    ...(run === null ? [] : [admit(db, [run], now)]),
    ...(thread === null || asked.thread !== null
      ? []
      : [openThreads(db, [asked.external === undefined ? opened : { ...opened, external: asked.external }], now)]),
    ...(messages.length === 0 ? [] : say(db, messages)),
    ...forgetThreads(db, now),
  ];
  // What a person wrote outside is there already: only the answer goes out.
  const leaving = messages.filter(({ kind }) => kind !== "text" || asked.messageId === undefined);
  const results = await dispatcher.channels.commit(
    invocation,
    statements,
    leaving.map((message) => ({ channel, message: message.id })),
  );
  if (decision.kind === "offer")
    return { ok: true, thread: thread ?? "", outcome: "offered", message: reply?.id ?? "" };
  if (decision.kind === "refused") return { ...refuse(decision.code, decision.field, decision.message), thread };
  if (run === null || results[0]?.results.length === 0) {
    return {
      ...refuse("thread_busy", "thread", "the thread has a live run: wait for its result, or cancel it"),
      thread,
    };
  }
  await launch(invocation, dispatcher, [run.id]);
  return { ok: true, thread, outcome: "admitted", runId: run.id };
}

/** Makes the instances of runs that were just admitted. One that cannot be made is made good by the tick. */
export async function launch(
  { runtime, meter }: Invocation,
  { runs }: Dispatcher,
  ids: readonly string[],
): Promise<number> {
  const { failed, calls } = await startInstances(runs, ids);
  meter.subrequests += calls;
  for (const { id, error } of failed) runtime.ports.log({ event: "run_not_started", level: "error", run: id, error });
  return failed.length;
}

function titleOf(text: string): string {
  return safeText(text.trim().split("\n")[0], TITLE_CHARS) || "a text";
}

/** The command that dispatches a text. */
export function dispatchCommand(dispatcher: Dispatcher): Registered {
  return define(
    {
      name: "dispatch",
      effect: "exec",
      grant: "dispatch:run",
      help: "Runs what a text says, in a thread of a channel, with your grants.",
      positional: ["text"],
      personOnly: true,
    },
    v.strictObject({
      text: v.string(),
      channel: v.pipe(v.string(), v.regex(CHANNEL, "a channel is inbox:<name>, slack:<name> or webhook:<name>")),
      thread: v.optional(v.nullable(v.pipe(v.string(), v.nonEmpty())), null),
    }),
    async (args, invocation, actor) => {
      const answer = await dispatchText(invocation, dispatcher, actor, args);
      if (!answer.ok) return answer;
      const { ok: _, ...result } = answer;
      return { ok: true, result };
    },
  );
}
