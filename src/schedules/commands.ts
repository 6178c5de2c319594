import * as v from "valibot";
import { type Actor, holds, lacking, scheduleActor } from "../commands/actor.ts";
import { decide, heedPlans } from "../commands/decide.ts";
import { define, type Registered } from "../commands/define.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { openThreads, say } from "../commands/threads.ts";
import { nextFire } from "../core/calendar.ts";
import { refuse } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { errorText } from "../core/text.ts";
import { isoInstant } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { JobsAtWork } from "../jobs/selection.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import { fireByHand } from "./by-hand.ts";
import { leadOf } from "./fire.ts";
import {
  addSchema,
  deleteSchedule,
  findSchedule,
  insertSchedule,
  type NewSchedule,
  readWhen,
  SCHEDULES_MAX,
  setEnabled,
} from "./rows.ts";
import { localTime, readScheduleViews } from "./views.ts";

/** Fires that a preview shows, by default and at most. */
const PREVIEW = { normal: 5, most: 50 } as const;

const name = v.pipe(v.string(), v.regex(NAME, "a name is 1 to 63 of a-z, 0-9 and -"));
const unknown = (which: string) => refuse("not_found", "name", `there is no stored schedule ${which}`);

type Add = v.InferOutput<typeof addSchema>;

/** Adds a schedule: whatever is wrong with it is refused before anything is stored. */
async function add(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  asked: Add,
  reserved: ReadonlySet<string>,
): Promise<CommandAnswer> {
  const { db, now, runtime } = invocation;
  const when = readWhen(asked.cron, asked.timeZone, now);
  if (!when.ok) return when;
  const lacks = lacking(actor, asked.grants);
  if (lacks !== null) {
    return refuse("not_granted", `grants.${lacks.axis}`, `you cannot give ${lacks.entry}: you do not hold it`);
  }
  if (!holds(actor, "channels", asked.channel)) {
    return refuse("not_granted", "channel", `this needs the channel ${asked.channel}`);
  }
  const taken = () =>
    refuse("name_taken", "name", `there is a schedule ${asked.name}: remove it first, a schedule is not edited`);
  if (reserved.has(asked.name)) return refuse("name_taken", "name", `a job of the catalog is called ${asked.name}`);
  if ((await findSchedule(db, asked.name).first()) !== null) return taken();
  const open = await dispatcher.channels.canOpen(invocation, asked.channel);
  if (!open.ok) return open;

  const id = `schedule-${createSeqs(runtime.ports.bytes)(now)}`;
  const standing = asked.thread === "standing" ? `thread-${id}` : null;
  const row: NewSchedule = {
    id,
    name: asked.name,
    cron: asked.cron,
    time_zone: when.zone,
    text: asked.text,
    channel: asked.channel,
    thread: asked.thread,
    standing_thread: standing,
    grants: JSON.stringify(asked.grants),
    created_at: now,
    created_by: actor.id,
  };
  const only = { schedule: id };
  const lead = {
    ...leadOf(row, standing ?? "", now),
    text: `${row.name}: ${row.cron} (${row.time_zone}), added by ${actor.id}\n${row.text}`,
    only,
  };
  const thread = { id: standing ?? "", channel: row.channel, title: row.name, openedBy: actor.id, only };
  const [inserted] = await dispatcher.channels.commit(
    invocation,
    [insertSchedule(db, row), ...(standing === null ? [] : [openThreads(db, [thread], now), ...say(db, [lead])])],
    standing === null ? [] : [{ channel: row.channel, message: lead.id }],
  );
  if (inserted?.results.length === 0) {
    if ((await findSchedule(db, asked.name).first()) !== null) return taken();
    return refuse("schedules_full", "name", `there are ${SCHEDULES_MAX} schedules, as many as there may be`);
  }
  const next = nextFire(when.cron, now, when.zone);
  return {
    ok: true,
    result: {
      id,
      name: row.name,
      timeZone: row.time_zone,
      thread: standing,
      nextAt: next === null ? null : isoInstant(next),
      nextLocal: next === null ? null : localTime(next, when.zone),
      wouldBe: await foretell(invocation, dispatcher, row, asked.grants),
    },
  };
}

/** What the text would come to, were it due now. Said at `add`, held against nobody: the commands may be others then. */
async function foretell(
  { db, now }: Invocation,
  dispatcher: Dispatcher,
  { name, text, channel }: NewSchedule,
  grants: Add["grants"],
): Promise<{ outcome: string; detail: string }> {
  const actor = scheduleActor(name, grants);
  try {
    const first = { actor, decision: await decide(dispatcher, actor, text, channel) };
    const [{ decision } = first] = await heedPlans(db, dispatcher, [first], now);
    if (decision.kind === "refused") return { outcome: `refused:${decision.code}`, detail: decision.message };
    return { outcome: "admitted", detail: decision.said.form };
  } catch (error) {
    // It has been added, whatever a command's schema or the database says now.
    return { outcome: "unknown", detail: errorText(error) };
  }
}

/** The commands about stored schedules. */
export function scheduleCommands(
  dispatcher: Dispatcher,
  catalog: readonly Job[],
  jobs: JobsAtWork,
): readonly Registered[] {
  // Both kinds stand in one list, by their names.
  const reserved = new Set(catalog.map(({ id }) => id));
  const change = (verb: "enable" | "disable", help: string) =>
    define(
      { name: `schedule.${verb}`, effect: "write", grant: "schedule:write", help, positional: ["name"] },
      v.strictObject({ name }),
      async (args, { db, now }) => {
        const [changed, found] = await db.batch([
          setEnabled(db, args.name, verb === "enable", now),
          findSchedule(db, args.name),
        ]);
        if (found?.results.length === 0) return unknown(args.name);
        return {
          ok: true,
          result: { name: args.name, enabled: verb === "enable", changed: (changed?.meta.changes ?? 0) > 0 },
        };
      },
    );
  return [
    define(
      {
        name: "schedule.add",
        effect: "write",
        grant: "schedule:write",
        help: "Has a text dispatched at a cron's minutes, with the grants you give it; it fires from the next tick on.",
        positional: ["name", "cron"],
      },
      addSchema,
      (args, invocation, actor) => add(invocation, dispatcher, actor, args, reserved),
    ),
    define(
      {
        name: "schedule.remove",
        effect: "write",
        grant: "schedule:write",
        help: "Removes a schedule; its firings and threads stay.",
        positional: ["name"],
      },
      v.strictObject({ name }),
      async (args, { db }) => {
        const gone = await deleteSchedule(db, args.name).first();
        return gone === null ? unknown(args.name) : { ok: true, result: { name: args.name } };
      },
    ),
    change("enable", "Turns a schedule on again; it counts from now, so it does not fire at once."),
    change("disable", "Turns a schedule off, until it is enabled."),
    define(
      {
        name: "schedule.fire",
        effect: "exec",
        grant: "schedule:fire",
        help: "Dispatches a schedule now, as its own actor: what was claimed and never started, or a new firing.",
        positional: ["name"],
        personOnly: true,
      },
      v.strictObject({ name }),
      (args, invocation, actor) => fireByHand(invocation, dispatcher, actor, args.name),
    ),
    define(
      {
        name: "schedule.list",
        effect: "read",
        grant: "schedule:read",
        help: "Lists the schedules of both kinds, with their last firing and their next.",
      },
      v.strictObject({}),
      async (_, { db, now }) => ({ ok: true, result: { items: await readScheduleViews(db, catalog, jobs, now) } }),
    ),
    define(
      {
        name: "schedule.preview",
        effect: "read",
        grant: "schedule:read",
        help: "Shows when a cron fires next, in its zone and in UTC.",
        positional: ["cron"],
      },
      v.strictObject({
        cron: v.string(),
        timeZone: v.optional(v.string(), "UTC"),
        count: v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(1), v.maxValue(PREVIEW.most)), PREVIEW.normal),
      }),
      async ({ cron, timeZone, count }, { now }) => {
        const when = readWhen(cron, timeZone, now);
        if (!when.ok) return when;
        const fires: { at: string; local: string }[] = [];
        for (let at = nextFire(when.cron, now, when.zone); at !== null && fires.length < count; ) {
          fires.push({ at: isoInstant(at), local: localTime(at, when.zone) });
          at = nextFire(when.cron, at, when.zone);
        }
        return { ok: true, result: { cron, timeZone: when.zone, fires } };
      },
    ),
  ];
}
