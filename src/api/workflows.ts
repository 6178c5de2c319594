import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { errorText } from "../core/text.ts";
import { isoInstant, MINUTE, SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { Job } from "../jobs/catalog.ts";
import type { Selection } from "../jobs/selection.ts";
import { listSteps, type StepRow } from "../jobs/steps.ts";
import { listSchema } from "./request.ts";

/**
 * Workflow instances, as our own tables know them: the platform has no list, and asking it for an id that was never
 * made leaves a phantom there.
 */

/** Slots of one job that a page reads at most: those that a route worked are no instances. */
const SLOTS_READ = 500;
/** The platform's word on an instance is waited for this long, ms. */
const STATUS_MS = 5 * SECOND;

/** An instance in the order of a list: when it started, then its id. */
export interface Position {
  /** ms */
  at: number;
  id: string;
}

export interface Instance {
  workflow: string;
  id: string;
  /** As our own rows say. */
  status: string;
  /** ms */
  startedAt: number;
  endedAt: number | null;
  /** What it works: `{job, slot}`, `{runId}`. */
  works: Record<string, string>;
}

/** Where instances are known from: the slots of jobs, or something else that starts them. */
export interface InstanceSource {
  /**
   * Instances before a position, the newest first, at most `limit`. `readTo`: nothing older than that was read; null =
   * it has read as many as asked for, or all.
   */
  list(
    db: D1Database,
    before: Position | null,
    limit: number,
  ): Promise<{ instances: Instance[]; readTo: Position | null }>;
  /** Null: none of this source's. */
  find(db: D1Database, workflow: string, id: string): Promise<Instance | null>;
  /** The binding that an instance of that Workflow can be asked of; null = it is not bound, or none of this source's. */
  binding(workflow: string): Workflow | null;
}

/** The query of the list; a cursor is `<startedAt>.<id>`. */
export const workflowsQuery = v.strictObject({
  ...listSchema.entries,
  cursor: v.optional(
    v.pipe(
      v.string(),
      v.regex(/^\d{1,16}\.[\w:-]{0,200}$/, "not a cursor of this list"),
      v.transform((text): Position => {
        const dot = text.indexOf(".");
        return { at: Number(text.slice(0, dot)), id: text.slice(dot + 1) };
      }),
    ),
  ),
});

/** Above 0: `a` comes later in a list that has the newest first. */
const order = (a: Position, b: Position) => b.at - a.at || (a.id < b.id ? 1 : a.id > b.id ? -1 : 0);
const positionOf = ({ startedAt, id }: Instance): Position => ({ at: startedAt, id });

/** A page of the instances of all sources, the newest first. */
export async function listWorkflows(
  db: D1Database,
  sources: readonly InstanceSource[],
  { limit, cursor }: v.InferOutput<typeof workflowsQuery>,
) {
  const pages = await Promise.all(sources.map((source) => source.list(db, cursor ?? null, limit + 1)));
  const [stop] = pages.flatMap(({ readTo }) => readTo ?? []).sort(order);
  const all = pages
    .flatMap(({ instances }) => instances)
    .sort((a, b) => order(positionOf(a), positionOf(b)))
    .filter((one) => stop === undefined || order(positionOf(one), stop) <= 0);
  const shown = all.slice(0, limit);
  const last = shown.at(-1);
  const next = all.length > limit && last !== undefined ? positionOf(last) : (stop ?? null);
  return { items: shown.map(viewOf), nextCursor: next === null ? null : `${next.at}.${next.id}` };
}

function viewOf({ workflow, id, status, startedAt, works }: Instance) {
  return { workflow, id, status, startedAt: isoInstant(startedAt), ...works };
}

/**
 * One instance with its steps: `status` is what our rows say, `platformStatus` what the platform says of it (null: it
 * could not be asked, and `platformError` says why). Where they differ, somebody died before he wrote his end.
 */
export async function showWorkflow(
  db: D1Database,
  sources: readonly InstanceSource[],
  workflow: string,
  id: string,
): Promise<object | Refusal> {
  for (const source of sources) {
    const instance = await source.find(db, workflow, id);
    if (instance === null) continue;
    const [{ results }, platform] = await Promise.all([
      listSteps(db, workflow, id).all<StepRow>(),
      askPlatform(source.binding(workflow), id),
    ]);
    return {
      ...viewOf(instance),
      endedAt: instance.endedAt === null ? null : isoInstant(instance.endedAt),
      ...platform,
      steps: results.map(({ position, name, started_at, updated_at, progress }) => ({
        position,
        name,
        startedAt: isoInstant(started_at),
        updatedAt: isoInstant(updated_at),
        progress: JSON.parse(progress) as unknown,
      })),
    };
  }
  return refuse("not_found", "id", "there is no such instance");
}

async function askPlatform(binding: Workflow | null, id: string) {
  if (binding === null) return { platformStatus: null, platformError: "its Workflow is not bound, or its job is off" };
  try {
    const asked = binding.get(id).then((instance) => instance.status());
    const { status, error } = await withDeadline(asked, STATUS_MS, "the Workflow");
    return { platformStatus: status, platformError: error === undefined || error === null ? null : errorText(error) };
  } catch (error) {
    return { platformStatus: null, platformError: errorText(error) };
  }
}

interface SlotRow {
  job: string;
  slot: number;
  result: string | null;
  claimed_at: number;
  completed_at: number | null;
  instance_id: string | null;
}

/** The instances that the slots of jobs become. A Workflow is called as its binding, in small letters. */
export function jobInstances(catalog: readonly Job[], { active }: Selection): InstanceSource {
  const workflows = new Map(
    catalog.flatMap(({ id, processor }): [string, string][] =>
      processor?.kind === "workflow" ? [[id, processor.binding.toLowerCase().replaceAll("_", "-")]] : [],
    ),
  );
  const instanceOf = ({ job, slot, result, claimed_at, completed_at, instance_id }: SlotRow): Instance[] =>
    instance_id === null
      ? []
      : [
          {
            workflow: workflows.get(job) ?? "",
            id: instance_id,
            status: result ?? "running",
            startedAt: claimed_at,
            endedAt: completed_at,
            works: { job, slot: isoInstant(slot) },
          },
        ];
  return {
    async list(db, before, limit) {
      if (workflows.size === 0) return { instances: [], readTo: null };
      // A slot is never claimed before its minute, and a job's slots are claimed in their order.
      const statements = [...workflows.keys()].map((job) =>
        db
          .prepare(
            `SELECT job, slot, result, claimed_at, completed_at, instance_id FROM slots
             WHERE job = ?1 AND slot <= ?2 ORDER BY slot DESC LIMIT ?3`,
          )
          .bind(job, before?.at ?? Number.MAX_SAFE_INTEGER, SLOTS_READ),
      );
      const results = await db.batch<SlotRow>(statements);
      const ends = results.flatMap(({ results }) => (results.length < SLOTS_READ ? [] : (results.at(-1) ?? [])));
      const [readTo = null] = ends.map(({ claimed_at }): Position => ({ at: claimed_at, id: "" })).sort(order);
      const instances = results
        .flatMap(({ results }) => results.flatMap(instanceOf))
        .filter((one) => before === null || order(positionOf(one), before) > 0)
        .sort((a, b) => order(positionOf(a), positionOf(b)))
        .slice(0, limit);
      return { instances, readTo };
    },
    async find(db, workflow, id) {
      const [, job = "", minute] = /^([a-z0-9-]{1,63})-(\d{1,10})-\d{1,15}$/.exec(id) ?? [];
      if (workflows.get(job) !== workflow) return null;
      const row = await db
        .prepare(
          `SELECT job, slot, result, claimed_at, completed_at, instance_id FROM slots
           WHERE job = ?1 AND slot = ?2 AND instance_id = ?3`,
        )
        .bind(job, Number(minute) * MINUTE, id)
        .first<SlotRow>();
      return row === null ? null : (instanceOf(row)[0] ?? null);
    },
    binding(workflow) {
      const on = active.find(({ job, work }) => work.kind === "workflow" && workflows.get(job.id) === workflow);
      return on?.work.kind === "workflow" ? on.work.workflow : null;
    },
  };
}
