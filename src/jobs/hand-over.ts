import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { dueSlot } from "./due.ts";
import { slotMessage } from "./message.ts";
import type { ActiveJob } from "./selection.ts";
import { claimSlots, type DueSlot, instanceIdOf, type JobRow, STOP_AFTER, type Slot, type SlotClaim } from "./slots.ts";

/** Jobs that one tick claims: one list for three statements. The others are due still at the next tick. */
export const JOBS_A_TICK = 50;
/** Calls that one tick hands slots over by: one for the queue, and one for each Workflow. */
export const HAND_OVERS_A_TICK = 4;
/** A queue or a Workflow that takes longer counts as refusing. What was asked may still land: its id is the slot's. */
const HAND_OVER_MS = 5 * SECOND;
/** The platform's code for an instance that exists already. */
const INSTANCE_EXISTS = 10_405;

/** A slot that was claimed, and by whom it is worked. */
export interface ClaimedSlot {
  slot: Slot;
  active: ActiveJob;
}

export interface Slots {
  claimed: number;
  failed: number;
  /** Slots of `module` jobs that the queue refused: the tick works them itself, within a share. */
  refused: ClaimedSlot[];
}

/**
 * Claims the due slots, in one call, and hands each over: Workflow slots become instances, the others messages to the
 * Queue consumer. A tick never works a slot that it can hand over.
 */
export async function claimDueSlots(
  invocation: Invocation,
  queue: Queue | null,
  active: readonly ActiveJob[],
  rows: readonly JobRow[],
): Promise<Slots> {
  const { db, now, runtime } = invocation;
  const chosen = choose(active, rows, now);
  let claims: SlotClaim[];
  try {
    claims = await claimSlots(
      db,
      chosen.map(({ due }) => due),
      now,
    );
  } catch (error) {
    runtime.ports.log({ event: "claim_failed", level: "error", error: errorText(error) });
    return { claimed: 0, failed: 1, refused: [] };
  }
  const claimed = chosen.flatMap(({ active }, index): ClaimedSlot[] => {
    const claim = claims[index];
    if (claim?.kind === "claimed") return [{ active, slot: claim.slot }];
    if (claim?.kind === "stopped") {
      const reason = "too many slots failed or ended unknown";
      runtime.ports.log({ event: "job_stopped", level: "error", job: active.job.id, reason });
    }
    return [];
  });
  return handOver(invocation, queue, claimed);
}

interface Chosen {
  active: ActiveJob;
  due: DueSlot;
}

/**
 * The jobs of this tick, those that have waited longest first. Of the same minute first those that were never claimed,
 * since the next tick would not make up for them; then those nearest to their stop: should the queue refuse, and the tick
 * have no room to work them all, it is not the same ones that lose each time.
 */
function choose(active: readonly ActiveJob[], rows: readonly JobRow[], now: number): Chosen[] {
  const known = new Map(rows.map((row) => [row.id, row]));
  const urgency = ({ due }: Chosen) => {
    const row = known.get(due.job);
    return row === undefined || row.last_slot === null ? STOP_AFTER : row.failures + row.claimed;
  };
  const carriers = new Set<Workflow | null>();
  return active
    .flatMap((one): Chosen[] => {
      const due = dueSlot(one, known.get(one.job.id), now);
      return due === null ? [] : [{ active: one, due }];
    })
    .sort((a, b) => a.due.slot - b.due.slot || urgency(b) - urgency(a))
    .filter((one) => {
      const carrier = carrierOf(one);
      if (carriers.size >= HAND_OVERS_A_TICK && !carriers.has(carrier)) return false;
      carriers.add(carrier);
      return true;
    })
    .slice(0, JOBS_A_TICK);
}

/** What takes a job's slots: its Workflow, or the queue, which is null. */
function carrierOf({ active: { work } }: Pick<ClaimedSlot, "active">): Workflow | null {
  return work.kind === "workflow" ? work.workflow : null;
}

/**
 * Hands claimed slots over: one call for the queue and one for each Workflow, side by side. One that cannot be is left:
 * the next claim charges it `unknown`.
 */
export async function handOver(
  invocation: Invocation,
  queue: Queue | null,
  claimed: readonly ClaimedSlot[],
): Promise<Slots> {
  const answers = await Promise.all(
    [...Map.groupBy(claimed, carrierOf)].map(([workflow, group]) => tryHandOver(invocation, workflow, queue, group)),
  );
  const refusals = answers.flat();
  for (const { one, error } of refusals) {
    invocation.runtime.ports.log({
      event: "slot_refused",
      level: "warn",
      job: one.slot.job,
      slot: one.slot.slot,
      processor: one.active.kind,
      error,
    });
  }
  const refused = refusals.map(({ one }) => one).filter(({ active }) => active.kind === "module");
  return { claimed: claimed.length, failed: refusals.length, refused };
}

/** A slot that was not handed over, and why. */
interface Refused {
  one: ClaimedSlot;
  error: string;
}

/** Hands the slots of one carrier over, in one call. Answers those that it refused. Never throws. */
async function tryHandOver(
  { meter }: Invocation,
  workflow: Workflow | null,
  queue: Queue | null,
  group: readonly ClaimedSlot[],
): Promise<Refused[]> {
  const all = (error: string) => group.map((one): Refused => ({ one, error }));
  try {
    if (workflow !== null) {
      meter.subrequests += 1;
      return await createInstances(workflow, group);
    }
    if (queue === null) return all("no queue is bound");
    meter.subrequests += 1;
    await withDeadline(
      queue.sendBatch(group.map(({ slot }) => ({ body: slotMessage(slot) }))),
      HAND_OVER_MS,
      "the queue",
    );
    return [];
  } catch (error) {
    return all(errorText(error));
  }
}

/** One instance that is refused keeps none of the others from being created; one that exists already is no refusal. */
async function createInstances(workflow: Workflow, group: readonly ClaimedSlot[]): Promise<Refused[]> {
  const instances = group.map(({ slot }) => ({ id: instanceIdOf(slot), params: slot }));
  const { errors } = await withDeadline(workflow.createBatch({ instances }), HAND_OVER_MS, "the Workflow");
  const codes = new Map(errors.map(({ index, code }) => [index, code]));
  return group.flatMap((one, index): Refused[] => {
    const code = codes.get(index) ?? INSTANCE_EXISTS;
    return code === INSTANCE_EXISTS ? [] : [{ one, error: `the Workflow refused the instance: ${code}` }];
  });
}
