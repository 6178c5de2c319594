import { safeText } from "../core/text.ts";
import { type OwedRow, readFence, readOwed, readStanding, settleAndCharge } from "../jobs/obligations.ts";
import { askWithin } from "../jobs/quarantine.ts";
import { CHUNK, CHUNKS, STOREFRONT_MS } from "./limits.ts";
import type { Progress } from "./progress.ts";
import { askLedger, beginPhase, Ended, heed, keepStep, mayGoOn, nowOf, type Sweep, timeLeft } from "./sweep.ts";

/** Longest cause kept on a charge. */
const CAUSE_CHARS = 200;

/** A part of the sweep that revalidates: which, in which step, until when. */
interface Part {
  which: "owed" | "fresh";
  name: string;
  until: number;
  /** The step has made no call yet. */
  begins: boolean;
}

/**
 * Asks the storefront about owed work, oldest first, a chunk at a time, each item once a sweep. Before each chunk the
 * stop and the claim are checked, in the call that reads it. A chunk that fails stops no later one.
 *
 * Who was asked and not confirmed is charged, but only once some chunk of the sweep was answered: a storefront that
 * nobody reaches is no item's fault.
 * @throws Ended when the job is stopped, the claim is lost, the time is up, or the ledger fails
 */
export async function revalidateOwed(sweep: Sweep, progress: Progress, part: Part): Promise<void> {
  const { db, slot } = sweep;
  let after: OwedRow | null = null;
  let unpaid: { workspace: string; error: string }[] = [];
  for (let begins = part.begins; progress.chunks[part.which] < CHUNKS[part.which]; begins = false) {
    const reads = [begins ? readStanding(db, slot) : readFence(db, slot), readOwed(db, slot, after, CHUNK + 1)];
    const [fence, page] = begins
      ? await beginPhase(sweep, progress, part.name, reads, part.until)
      : await askLedger(sweep, progress, reads, part.until);
    mayGoOn(fence);
    if (begins) heed(progress, fence);
    // An earlier run of this step may have asked for as many already.
    if (progress.chunks[part.which] >= CHUNKS[part.which]) break;
    const rows = (page?.results ?? []) as unknown as OwedRow[];
    const chunk = rows.slice(0, CHUNK);
    if (chunk.length === 0) return;
    after = chunk.at(-1) ?? null;

    const { confirmed, charged } = await askChunk(sweep, progress, chunk, part);
    unpaid.push(...charged);
    if (progress.reached) {
      progress.revalidated += confirmed.length;
      const results = await askLedger(sweep, progress, [
        ...settleAndCharge(db, slot, { confirmed, charged: unpaid }, nowOf(sweep)),
        keepStep(sweep, progress, part.name),
        readStanding(db, slot),
      ]);
      if (confirmed.length > 0) progress.revalidated -= confirmed.length - (results[0]?.meta.changes ?? 0);
      unpaid = [];
      heed(progress, results.at(-1));
    }
    if (rows.length <= CHUNK) return;
  }
  throw new Ended("chunks");
}

async function askChunk(sweep: Sweep, progress: Progress, chunk: readonly OwedRow[], { which, until }: Part) {
  const limit = timeLeft(sweep, until, STOREFRONT_MS);
  progress.calls.storefront += 1;
  progress.chunks[which] += 1;
  const workspaces = chunk.map(({ workspace }) => workspace);
  const asked = await askWithin(sweep.storefront, workspaces, limit);
  if (!asked.ok) {
    const { kind, detail } = asked;
    const { job, slot: minute } = sweep.slot;
    sweep.ports.log({ event: "chunk_failed", level: "warn", job, slot: minute, kind, error: detail });
    const error = safeText(`${kind}: ${detail}`, CAUSE_CHARS);
    progress.error = error;
    return { confirmed: [], charged: workspaces.map((workspace) => ({ workspace, error })) };
  }
  progress.reached = true;
  const named = new Set(asked.confirmed);
  const causes = new Map(asked.unconfirmed.map(({ wsId, error }) => [wsId, error]));
  return {
    confirmed: chunk.filter(({ workspace }) => named.has(workspace)),
    charged: workspaces
      .filter((workspace) => !named.has(workspace))
      .map((workspace) => ({ workspace, error: safeText(causes.get(workspace) || "not confirmed", CAUSE_CHARS) })),
  };
}
