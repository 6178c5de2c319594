import type { Actor } from "../commands/actor.ts";
import { carryOut, heedPlans } from "../commands/decide.ts";
import { launch } from "../commands/dispatch.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { admit, closeNotStarted, START_WITHIN_MS } from "../commands/runs.ts";
import { openThreads, say } from "../commands/threads.ts";
import { refuse } from "../core/errors.ts";
import { isoInstant, MINUTE } from "../core/time.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import { dueOf } from "./due.ts";
import { fire, judge, leadOf } from "./fire.ts";
import { type FiringRow, findLastOf, type LastFiring, markClaimed, refire } from "./firings.ts";
import { findSchedule, type ReadRow, readRow, type ScheduleRow } from "./rows.ts";

/** Times that a press looks anew when another was faster: each time somebody else has won, so it ends. */
const LOOKS = 4;

/**
 * Fires a schedule by a person's hand, as its own actor: dispatches a firing that was claimed and never started, or was
 * refused in this minute; or else claims this minute anew. Once however often it is pressed, and whatever the tick does
 * meanwhile: a press that comes second answers what the first has begun.
 */
export async function fireByHand(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  name: string,
): Promise<CommandAnswer> {
  const { db, now } = invocation;
  if (dispatcher.runs === null) return refuse("not_configured", "RUN", "a run needs the Workflow bound as RUN");
  for (let look = 0; look < LOOKS; look += 1) {
    // In one call: a firing and its run as they were at different instants would be taken for something else.
    const [rows, firings] = await db.batch([findSchedule(db, name), findLastOf(db, name)]);
    const [row] = (rows?.results ?? []) as unknown as ScheduleRow[];
    const [last] = (firings?.results ?? []) as unknown as LastFiring[];
    if (row === undefined) return refuse("not_found", "name", `there is no stored schedule ${name}`);
    const read = readRow(row, now);
    const answer =
      last === undefined
        ? await fireAnew(invocation, dispatcher, actor, read)
        : await fireOn(invocation, dispatcher, actor, read, last);
    if (answer !== null) return answer;
  }
  return refuse("unavailable", "name", `${name} is being fired by others: look again`);
}

/** What a press does about the latest firing. Null: another was faster, look anew. */
async function fireOn(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  read: ReadRow,
  firing: LastFiring,
): Promise<CommandAnswer | null> {
  const { db, now } = invocation;
  const { run } = firing;
  if (run !== null && firing.run_status === "admitted") {
    if ((firing.run_admitted_at ?? 0) > now - START_WITHIN_MS) {
      await launch(invocation, dispatcher, [run]);
      return answerOf(firing, run);
    }
    // Nobody began it, and no tick has said so yet.
    await db.batch([markClaimed(db, now), closeNotStarted(db, now)]);
    return null;
  }
  if (firing.run_status === "running") return answerOf(firing, run);
  const thisMinute = firing.slot >= minuteOf(now);
  if (firing.outcome === "claimed" || (thisMinute && firing.outcome !== "admitted")) {
    return dispatchAgain(invocation, dispatcher, actor, read, firing);
  }
  return thisMinute ? answerOf(firing, firing.run) : fireAnew(invocation, dispatcher, actor, read);
}

async function fireAnew(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  read: ReadRow,
): Promise<CommandAnswer | null> {
  const slot = minuteOf(invocation.now);
  const due = dueOf(read, invocation.now);
  // What was due and not fired yet is coalesced into this one.
  const missed = due === null ? 0 : due.missed + (due.slot < slot ? 1 : 0);
  const judged = await judge(
    dispatcher,
    read,
    { slot, missed, missedCapped: due?.missedCapped ?? false },
    invocation.now,
  );
  const { outcomes } = await fire(invocation, dispatcher, [judged], { by: actor.id, byHand: true });
  const [recorded] = [...outcomes];
  if (recorded === undefined) return null;
  const [id, { outcome, run }] = recorded;
  if (outcome === "admitted") return { ok: true, result: { firing: id, slot: isoInstant(slot), outcome, runId: run } };
  const { decision } = judged;
  if (decision.kind === "refused") return refuse(decision.code, decision.field, decision.message);
  return refuse("thread_busy", "thread", "the thread has a live run");
}

/** Gives a firing that never started, or was refused, its run. */
async function dispatchAgain(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  read: ReadRow,
  firing: FiringRow,
): Promise<CommandAnswer | null> {
  const { db, now, runtime } = invocation;
  const { row } = read;
  const judged = await judge(dispatcher, read, { slot: firing.slot, missed: firing.missed, missedCapped: false }, now);
  const [{ decision, actor: schedule } = judged] = await heedPlans(db, dispatcher, [judged], now);
  if (decision.kind === "refused") return refuse(decision.code, decision.field, decision.message);
  const seq = createSeqs(runtime.ports.bytes)(now);
  const thread = row.standing_thread ?? firing.thread ?? `thread-${seq}`;
  const { run, reply } = carryOut(decision, {
    actor: schedule,
    channel: row.channel,
    thread,
    runId: `run-${seq}`,
    at: now + 1,
    firing: { id: firing.id, slot: firing.slot },
    admitIf: { refire: { firing: firing.id, run: firing.run } },
  });
  if (run === null || reply === null) throw new Error("a schedule's decision was neither a run nor a refusal");
  const only = { run: run.id };
  const fresh = thread !== row.standing_thread && thread !== firing.thread;
  const lead = {
    ...leadOf(row, thread, now),
    text: `${row.name}, again for ${isoInstant(firing.slot)}\n${row.text}`,
    only,
  };
  const opened = { id: thread, channel: row.channel, title: row.name, openedBy: schedule.id, only };
  const messages = fresh ? [lead, reply] : [reply];
  const [admitted] = await dispatcher.channels.commit(
    invocation,
    [
      admit(db, [run], now),
      refire(db, firing, { run: run.id, thread, by: actor.id }),
      ...(fresh ? [openThreads(db, [opened], now)] : []),
      ...say(db, messages),
    ],
    messages.map(({ id }) => ({ channel: row.channel, message: id })),
  );
  if (admitted?.results.length === 0) {
    const last = await findLastOf(db, row.name).first<LastFiring>();
    // Its schedule was removed, or another minute was claimed.
    if (last?.id !== firing.id) return null;
    if (last.outcome === "admitted") return answerOf(last, last.run);
    return refuse("thread_busy", "thread", "the thread has a live run: wait for its result, or cancel it");
  }
  await launch(invocation, dispatcher, [run.id]);
  return answerOf({ ...firing, outcome: "admitted" }, run.id);
}

const minuteOf = (now: number) => Math.floor(now / MINUTE) * MINUTE;

function answerOf({ id, slot, outcome }: FiringRow, runId: string | null): CommandAnswer {
  return { ok: true, result: { firing: id, slot: isoInstant(slot), outcome, runId } };
}
