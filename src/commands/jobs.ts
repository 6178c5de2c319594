import * as v from "valibot";
import { refuse } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { presentSlot } from "../jobs/due.ts";
import { handOver } from "../jobs/hand-over.ts";
import type { Job } from "../jobs/catalog.ts";
import type { JobsAtWork } from "../jobs/selection.ts";
import { claimSlots, type JobRow, readJobs, resumeJob, stopJob } from "../jobs/slots.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { define, type Registered } from "./define.ts";

/** The commands about jobs. One that is off can be stopped before it is turned on; only one that is on can be fired. */

const id = v.pipe(v.string(), v.regex(NAME, "a job is named in a-z, 0-9 and -"));
const reason = v.pipe(v.string(), v.trim(), v.minLength(1), v.maxLength(500));

export function jobCommands(catalog: readonly Job[], jobs: JobsAtWork): readonly Registered[] {
  const known = (name: string) => catalog.some(({ id }) => id === name);
  const unknown = (name: string) => refuse("unknown_job", "id", `there is no job ${name}`);
  return [
    define(
      {
        name: "job.fire",
        effect: "write",
        grant: "job:fire",
        help: "Claim a job's present minute and hand it over, now.",
        positional: ["id"],
      },
      v.strictObject({ id }),
      (args, invocation) => fire(args.id, jobs, invocation),
    ),
    define(
      {
        name: "job.stop",
        effect: "write",
        grant: "job:write",
        help: "Stop a job, durably: nothing more begins.",
        positional: ["id", "reason"],
      },
      v.strictObject({ id, reason }),
      async (args, { db, now }, actor) => {
        if (!known(args.id)) return unknown(args.id);
        const { meta } = await stopJob(db, args.id, args.reason, actor.id, now).run();
        return { ok: true, result: { id: args.id, stopped: true, changed: meta.changes > 0 } };
      },
    ),
    define(
      {
        name: "job.resume",
        effect: "write",
        grant: "job:write",
        help: "Let a stopped job go on; its counts begin anew.",
        positional: ["id"],
      },
      v.strictObject({ id }),
      async (args, { db }) => {
        if (!known(args.id)) return unknown(args.id);
        const { meta } = await resumeJob(db, args.id).run();
        return { ok: true, result: { id: args.id, stopped: false, changed: meta.changes > 0 } };
      },
    ),
  ];
}

async function fire(name: string, jobs: JobsAtWork, invocation: Invocation): Promise<CommandAnswer> {
  const { db, now } = invocation;
  const active = jobs.active.find(({ job }) => job.id === name);
  if (active === undefined) return refuse("unknown_job", "id", `no job ${name} is on`);
  const [row] = (await readJobs(db, [name]).all<JobRow>()).results;
  const due = presentSlot(active, row, now);
  const [claim] = await claimSlots(db, [due], now);
  if (claim?.kind !== "claimed") {
    return refuse("slot_not_claimed", "id", `${name} is stopped, is at work, or had this minute already`);
  }
  const { generation, slot } = claim.slot;
  const { failed } = await handOver(invocation, jobs.queue, [{ active, slot: claim.slot }]);
  return { ok: true, result: { id: name, slot: new Date(slot).toISOString(), generation, handedOver: failed === 0 } };
}
