import { type Actor, lacking, personById, scheduleActor } from "../commands/actor.ts";
import { carryOut, type Decision, decide, heedPlans, type RefusalCode } from "../commands/decide.ts";
import { launch } from "../commands/dispatch.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { admit, type NewRun } from "../commands/runs.ts";
import { forgetThreads, type NewMessage, type NewThread, openThreads, say } from "../commands/threads.ts";
import type { Due } from "../core/calendar.ts";
import { errorText } from "../core/text.ts";
import { HOUR, isoInstant } from "../core/time.ts";
import { inParts } from "../outbox/items.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import { dueOf, sinceOf } from "./due.ts";
import { forgetFirings, type NewFiring, recordFirings } from "./firings.ts";
import { type Claim, claimSlots, type ReadRow, readRow, type ScheduleRow } from "./rows.ts";

/** How long a channel that was found to be gone is not tried again, ms. A post that gets through says that it is back. */
export const GONE_MS = HOUR;

/** What a tick, or a hand, has fired. */
export interface Fired {
  /** Due minutes that this claimed; others may have claimed what it found due besides. */
  claimed: number;
  admitted: number;
  refused: number;
  /** Runs whose instance could not be made yet. */
  failed: number;
  /** The firings that were recorded, by their ids. */
  outcomes: ReadonlyMap<string, { outcome: string; run: string | null }>;
}

/** One due minute of a row, and what its text comes to. */
interface Case {
  read: ReadRow;
  due: Due;
  actor: Actor;
  decision: Decision;
}

/**
 * Fires the rows that are due: what each text comes to is decided first; then the claims, their firings, the admission
 * of their threads and their runs commit in one batch, and the instances are made. At most once per due minute, whoever
 * else looks at the same rows. One bad row keeps no other from firing.
 */
export async function fireDue(
  invocation: Invocation,
  dispatcher: Dispatcher,
  rows: readonly ScheduleRow[],
): Promise<Fired> {
  const { now, runtime } = invocation;
  const due = rows.flatMap((row) => {
    const read = readRow(row, now);
    const found = dueOf(read, now);
    return found === null ? [] : [{ read, due: found }];
  });
  // Whoever has waited longest comes first, should not all fit in one call.
  due.sort((a, b) => sinceOf(a.read.row) - sinceOf(b.read.row));
  if (due.length > 0 && dispatcher.runs === null) {
    runtime.ports.log({
      event: "schedules_idle",
      level: "error",
      due: due.length,
      error: "no Workflow is bound as RUN",
    });
    return nothing();
  }
  const cases = await Promise.all(due.map((one) => judge(dispatcher, one.read, one.due, now)));
  return fire(invocation, dispatcher, cases, { by: "service:tick", byHand: false });
}

export const nothing = (): Fired => ({ claimed: 0, admitted: 0, refused: 0, failed: 0, outcomes: new Map() });

/** What a row's text comes to now, under its own grants, as its author is now. */
export async function judge(dispatcher: Dispatcher, read: ReadRow, due: Due, now: number): Promise<Case> {
  const { row, grants, problem } = read;
  const actor = scheduleActor(row.name, grants ?? { actions: [], channels: [], scopes: [] });
  const refused = (code: RefusalCode, field: string, message: string): Case => ({
    read,
    due,
    actor,
    decision: { kind: "refused", code, field, message, said: null },
  });
  if (problem !== null || grants === null) return refused("invalid_row", "schedule", problem ?? "it cannot be read");
  if (row.channel.startsWith("webhook:")) return refused("invalid_row", "channel", `${row.channel} has no threads`);
  const author = personById(row.created_by, dispatcher.tokens);
  if (author === null) return refused("author_lost_grant", "author", `${row.created_by} is gone`);
  const lost = lacking(author, { ...grants, channels: [...grants.channels, row.channel] });
  if (lost !== null) {
    return refused("author_lost_grant", `grants.${lost.axis}`, `${author.id} no longer holds ${lost.entry}`);
  }
  if (row.channel_gone_at !== null && row.channel_gone_at > now - GONE_MS)
    return refused("channel_gone", "channel", `${row.channel} is gone`);
  try {
    return { read, due, actor, decision: await decide(dispatcher, actor, row.text, row.channel) };
  } catch (error) {
    return refused("invalid_row", "text", errorText(error));
  }
}

/** Refusals of the row itself rather than of what it says: they open no thread. */
const SILENT: readonly RefusalCode[] = ["invalid_row", "author_lost_grant", "channel_gone"];

/** Claims, records, admits, says and launches. See {@link fireDue}. */
export async function fire(
  invocation: Invocation,
  dispatcher: Dispatcher,
  judged: readonly Case[],
  who: { by: string; byHand: boolean },
): Promise<Fired> {
  const { db, now, runtime } = invocation;
  if (judged.length === 0) return nothing();
  const cases = await heedPlans(db, dispatcher, judged, now);
  const seqOf = createSeqs(runtime.ports.bytes);
  const plans = cases.map((one) => planOf(one, seqOf(now), now, who.by));
  const outcomes = new Map<string, { outcome: string; run: string | null }>();
  // What does not fit in one call is due still at the next tick, so that long texts leave a tick its statements.
  const [part = []] = inParts(plans, sizeOf);
  for (const { id, outcome, run } of await commit(invocation, dispatcher, part, who.byHand)) {
    outcomes.set(id, { outcome, run });
  }
  const admitted = [...outcomes.values()].flatMap(({ run }) => run ?? []);
  for (const { firing } of plans) {
    const ended = outcomes.get(firing.id);
    // Only who won the claim says so.
    if (ended !== undefined) tell(invocation, firing, ended.outcome);
  }
  const failed = await launch(invocation, dispatcher, admitted);
  const claimed = outcomes.size;
  return { claimed, admitted: admitted.length, refused: claimed - admitted.length, failed, outcomes };
}

interface FirePlan {
  claim: Claim;
  firing: NewFiring;
  channel: string;
  thread: NewThread | null;
  run: NewRun | null;
  messages: NewMessage[];
}

function planOf({ read, due, actor, decision }: Case, seq: string, now: number, by: string): FirePlan {
  const { row } = read;
  const firing = `firing-${seq}`;
  const silent = decision.kind === "refused" && SILENT.includes(decision.code);
  const opened = row.thread === "new" && !silent ? `thread-${seq}` : null;
  const thread = row.standing_thread ?? opened;
  const { channel } = row;
  const { run, reply } = carryOut(decision, {
    actor,
    channel,
    thread,
    runId: `run-${seq}`,
    at: now + 1,
    firing: { id: firing, slot: due.slot },
    admitIf: { claim: { schedule: row.id, firing } },
  });
  const only = { firing };
  return {
    claim: {
      schedule: row.id,
      firing,
      slot: due.slot,
      lastSlot: row.last_slot,
      anchoredAt: row.anchored_at,
    },
    firing: {
      id: firing,
      schedule: row.id,
      name: row.name,
      slot: due.slot,
      missed: due.missed,
      cron: row.cron,
      timeZone: row.time_zone,
      firedBy: by,
      refusal: decision.kind === "refused" ? `refused:${decision.code}` : null,
      detail: decision.kind === "refused" ? decision.message : "",
      thread,
      run: run?.id ?? null,
    },
    channel,
    thread: opened === null ? null : { id: opened, channel, title: row.name, openedBy: actor.id, only },
    run,
    messages: [
      ...(opened === null ? [] : [{ ...leadOf(row, opened, now), text: leadText(row, due.slot), only }]),
      ...(reply === null ? [] : [reply]),
    ],
  };
}

/** A thread's first message, by its schedule. */
export function leadOf(row: Pick<ScheduleRow, "name">, thread: string, now: number) {
  return { id: `${thread}-lead`, thread, at: now, author: `schedule:${row.name}`, kind: "lead" as const };
}

function leadText({ name, cron, time_zone, text }: ScheduleRow, slot: number): string {
  return `${name}: ${cron} (${time_zone}), for ${isoInstant(slot)}\n${text}`;
}

/** Bytes that the conditions of a row take in a parameter besides what the row says, at most. */
const CONDITION_BYTES = 500;

/** How much of a statement's parameter a plan takes at most, as {@link inParts} counts: a character is three bytes. */
function sizeOf({ run, firing, messages }: FirePlan): number {
  const bytes = (row: unknown) => new TextEncoder().encode(JSON.stringify(row)).length;
  // Written as text within the JSON, as the statements have it.
  const ofRun = run === null ? 0 : bytes({ ...run, args: JSON.stringify(run.args) });
  const ofMessages = bytes(messages.map(({ data, ...rest }) => ({ ...rest, data: JSON.stringify(data ?? {}) })));
  return Math.ceil((Math.max(ofRun, ofMessages, bytes(firing)) + CONDITION_BYTES) / 3);
}

interface Recorded {
  id: string;
  outcome: string;
  run: string | null;
}

async function commit(
  invocation: Invocation,
  dispatcher: Dispatcher,
  plans: readonly FirePlan[],
  byHand: boolean,
): Promise<Recorded[]> {
  const { db, now } = invocation;
  const runs = plans.flatMap(({ run }) => run ?? []);
  const threads = plans.flatMap(({ thread }) => thread ?? []);
  const messages = plans.flatMap(({ messages }) => messages);
  const before = [
    claimSlots(
      db,
      plans.map(({ claim }) => claim),
      byHand,
    ),
    ...(runs.length > 0 ? [admit(db, runs, now)] : []),
  ];
  const results = await dispatcher.channels.commit(
    invocation,
    [
      ...before,
      recordFirings(
        db,
        plans.map(({ firing }) => firing),
        now,
      ),
      ...(threads.length > 0 ? [openThreads(db, threads, now)] : []),
      ...(messages.length > 0 ? say(db, messages) : []),
      // What is admitted tidies when its run ends; a refusal has no end but this.
      ...(messages.some(({ kind }) => kind === "refusal") ? forgetThreads(db, now) : []),
      forgetFirings(
        db,
        plans.map(({ claim }) => claim.schedule),
        now,
      ),
    ],
    plans.flatMap(({ channel, messages }) => messages.map(({ id }) => ({ channel, message: id }))),
  );
  return (results[before.length]?.results ?? []) as unknown as Recorded[];
}

function tell({ runtime, now }: Invocation, firing: NewFiring, outcome: string): void {
  const { name, slot, missed, detail } = firing;
  const level = outcome === "admitted" ? "info" : "warn";
  const lateMs = now - slot;
  runtime.ports.log({ event: "schedule_fired", level, schedule: name, slot, missed, lateMs, outcome, detail });
}
