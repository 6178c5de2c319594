import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { dueSlot } from "./due.ts";
import { slotMessage } from "./message.ts";
import type { ActiveJob } from "./selection.ts";
import { claimOf, claimSlot, instanceIdOf, type JobRow, type Slot, SLOT_DEADLINE_MS } from "./slots.ts";

/** Jobs that one tick claims: three statements each. The others are due still at the next tick. */
export const JOBS_A_TICK = 4;
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
 * Claims the due slots, in one call, and hands each over: a Workflow slot becomes an instance, the others a message to
 * the Queue consumer. A tick never works a slot that it can hand over.
 */
export async function claimDueSlots(
  invocation: Invocation,
  queue: Queue | null,
  active: readonly ActiveJob[],
  rows: readonly JobRow[],
): Promise<Slots> {
  const { db, now, runtime } = invocation;
  const due = active
    .map((one) => ({
      active: one,
      due: dueSlot(
        one,
        rows.find(({ id }) => id === one.job.id),
        now,
      ),
    }))
    .flatMap(({ due, active }) => (due === null ? [] : [{ due, active }]))
    .sort((a, b) => a.due.slot - b.due.slot)
    .slice(0, JOBS_A_TICK);
  if (due.length === 0) return { claimed: 0, failed: 0, refused: [] };

  const claims = due.map((one) => claimSlot(db, one.due, now));
  let results: D1Result[];
  try {
    results = await db.batch(claims.flat());
  } catch (error) {
    runtime.ports.log({ event: "claim_failed", level: "error", error: errorText(error) });
    return { claimed: 0, failed: 1, refused: [] };
  }
  const claimed = due.flatMap(({ due, active }, index): ClaimedSlot[] => {
    const claim = claimOf(results[index * 3 + 1]);
    if (claim === null) return [];
    if (claim.stopped) {
      runtime.ports.log({
        event: "job_stopped",
        level: "error",
        job: due.job,
        reason: "too many slots failed or ended unknown",
      });
      return [];
    }
    const { job, slot, missed } = due;
    const { generation } = claim;
    return [{ active, slot: { job, slot, generation, missed, claimedAt: now, deadline: now + SLOT_DEADLINE_MS } }];
  });
  return handOver(invocation, queue, claimed);
}

/** Hands claimed slots over. One that cannot be is left: the next claim charges it `unknown`. */
export async function handOver(
  invocation: Invocation,
  queue: Queue | null,
  claimed: readonly ClaimedSlot[],
): Promise<Slots> {
  const slots: Slots = { claimed: claimed.length, failed: 0, refused: [] };
  for (const one of claimed) {
    const error = await tryHandOver(invocation, queue, one);
    if (error === null) continue;
    slots.failed += 1;
    if (one.active.kind === "module") slots.refused.push(one);
    const { job, slot } = one.slot;
    invocation.runtime.ports.log({
      event: "slot_refused",
      level: "warn",
      job,
      slot,
      processor: one.active.kind,
      error,
    });
  }
  return slots;
}

async function tryHandOver(
  { meter }: Invocation,
  queue: Queue | null,
  { slot, active }: ClaimedSlot,
): Promise<string | null> {
  meter.subrequests += 1;
  try {
    if (active.work.kind === "workflow") {
      const made = active.work.workflow.createBatch({ instances: [{ id: instanceIdOf(slot), params: slot }] });
      const { errors } = await withDeadline(made, HAND_OVER_MS, "the Workflow");
      const [refused] = errors.filter(({ code }) => code !== INSTANCE_EXISTS);
      return refused === undefined ? null : `the Workflow refused the instance: ${refused.code}`;
    }
    if (queue === null) return "no queue is bound";
    await withDeadline(queue.send(slotMessage(slot)), HAND_OVER_MS, "the queue");
    return null;
  } catch (error) {
    return errorText(error);
  }
}
