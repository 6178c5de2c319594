import { type Actor, mayDo } from "../commands/actor.ts";
import { isoInstant } from "../core/time.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { type Need, type NeedKind, readNeeds } from "../tick/needs.ts";

/** What needs a person, as far as he who asks may look. */

/** The grant that reads what each kind is about. */
const GRANT_OF: Readonly<Record<NeedKind, string>> = {
  tick_late: "tick:read",
  tick_died: "tick:read",
  job_stopped: "job:read",
  quarantine: "job:read",
  ledger_filling: "job:read",
  schedule_invalid: "schedule:read",
  schedule_refused: "schedule:read",
  not_started: "schedule:read",
  run_lost: "run:read",
  dead_letters: "item:read",
};

/** @returns what the actor may see, and the grants that he lacks for the rest */
export async function needsFor(
  actor: Actor,
  { db, topics }: Runtime,
  catalog: readonly Job[],
  now: number,
): Promise<{ needs: Need[]; unseen: string[] }> {
  const unseen = [...new Set(Object.values(GRANT_OF))].filter((grant) => !mayDo(actor, grant));
  const needs = await readNeeds(db, { jobs: catalog.map(({ id }) => id), topics: [...topics.keys()], now });
  return { needs: needs.filter(({ kind }) => !unseen.includes(GRANT_OF[kind])), unseen };
}

/** `GET /api/needs`: one page, since each kind is bounded. */
export async function viewNeeds(actor: Actor, runtime: Runtime, catalog: readonly Job[], now: number) {
  const { needs, unseen } = await needsFor(actor, runtime, catalog, now);
  const items = needs.map(({ kind, what, subject, id, count, since, detail }) => {
    return { kind, what, subject, id, count, since: since === null ? null : isoInstant(since), detail };
  });
  return { items, nextCursor: null, unseen };
}
