import type { DatabaseSync } from "node:sqlite";
import { type Client, fireTick } from "../client.ts";
import { openDatabase } from "../database.ts";
import { instanceStatus, type KnownInstance } from "./instances.ts";
import { type CheckoutPlan, POISON, type Storefront, type StorefrontSeen, workspaceId } from "./storefront.ts";
import { within } from "./within.ts";

/** The job of a demo, and its Workflow. */
export const JOB = "inventory-checkout-expiry";
const WORKFLOW = "checkout-expiry";

/** Between the job's slots, ms. */
const SLOT_MS = 300_000;
/** Sweeps until the poison workspace is quarantined, and some to spare. */
const SWEEPS_BASE = 6;
/** Of what a sweep expires at most, half. */
const CHECKOUTS_A_SWEEP = 5_000;

/** Puts the checkouts into the database of a runtime that does not run. All of them are over. */
export async function putCheckouts(dir: string, { checkouts, workspaces }: CheckoutPlan): Promise<void> {
  const database = await openDatabase(dir, { readOnly: false });
  try {
    const put = database.prepare(
      "INSERT INTO checkouts (id, workspace, status, expires_at) VALUES (?, ?, 'reserved', ?)",
    );
    const over = Date.now() - 3_600_000;
    database.exec("BEGIN");
    for (let index = 0; index < checkouts; index += 1) {
      put.run(`checkout-${index}`, workspaceId(index % workspaces), over + (index % 60_000));
    }
    database.exec("COMMIT");
  } finally {
    database.close();
  }
}

/** What is stored of the checkouts, and of what followed from them. */
export interface StoredCheckouts {
  expired: number;
  /** Checkouts that the closed batches have expired, by their own count. */
  batched: number;
  owed: number;
  /** The workspaces in quarantine. */
  quarantined: string[];
  /** The job's slots, oldest first. */
  slots: { processor: string; result: string | null; instanceId: string | null }[];
}

export function readCheckouts(database: DatabaseSync): StoredCheckouts {
  const number = (query: string) => Number(database.prepare(query).get()?.n);
  return {
    expired: number("SELECT count(*) AS n FROM checkouts WHERE status = 'expired'"),
    batched: number("SELECT coalesce(sum(expired), 0) AS n FROM expiry_batches WHERE closed_at IS NOT NULL"),
    owed: number("SELECT count(*) AS n FROM obligations WHERE state = 'owed'"),
    quarantined: database
      .prepare("SELECT workspace FROM obligations WHERE state = 'quarantined'")
      .all()
      .map(({ workspace }) => String(workspace)),
    slots: database
      .prepare("SELECT processor, result, instance_id AS instanceId FROM slots WHERE job = ? ORDER BY slot")
      .all(JOB) as unknown as StoredCheckouts["slots"],
  };
}

/** What is known of the checkouts when a demo ends. `stored` is null where it did not come that far. */
export interface CheckoutEvidence {
  plan: CheckoutPlan;
  seen: StorefrontSeen;
  stored: StoredCheckouts | null;
  /** The Workflow's instances, as the local platform shows them. */
  instances: KnownInstance[];
}

/** What the checkouts' part needs. */
interface CheckoutStage {
  plan: CheckoutPlan;
  url: string;
  client: Client;
  database: DatabaseSync;
  storefront: Storefront;
  signal: AbortSignal;
  phase(name: string): void;
  /** Starts the runtime anew, with the job worked by its Workflow, or by its route. */
  restart(by: "workflow" | "route"): Promise<void>;
}

/**
 * Has the job's route work a slot, moves the job to its Workflow, sweeps until nothing is left, and moves it back. Time
 * is driven forward by a slot at a time, and only when the one before has ended: a jump would lapse its lease.
 * @param from how far time was driven before, ms
 * @returns the Workflow's instances
 */
export async function expireCheckouts(stage: CheckoutStage, from: number): Promise<CheckoutEvidence["instances"]> {
  const { plan, url, database, signal, phase, restart } = stage;
  let time = from;
  const slot = async () => {
    time = (Math.floor(Math.max(time, Date.now()) / SLOT_MS) + 1) * SLOT_MS;
    return workSlot(stage, time);
  };
  phase("a slot by the route");
  await slot();
  phase("move the job to its Workflow");
  await restart("workflow");

  const instances: CheckoutEvidence["instances"] = [];
  const most = SWEEPS_BASE + Math.ceil(plan.checkouts / CHECKOUTS_A_SWEEP);
  for (let left = plan.checkouts; left > 0; ) {
    if (instances.length >= most) throw new Error(`${left} checkouts and workspaces are left after ${most} sweeps`);
    phase(`sweep ${instances.length + 1}`);
    const id = await slot();
    if (id === null) throw new Error("a slot became no Workflow instance");
    instances.push(await instanceStatus(url, WORKFLOW, id, signal));
    const { expired, owed } = readCheckouts(database);
    left = plan.checkouts - expired + owed;
  }

  phase("move the job back");
  await restart("route");
  phase("a slot by the route");
  await slot();
  return instances;
}

/** Fires the tick of a slot's minute and waits until the slot has ended. Answers its Workflow instance. */
async function workSlot({ url, client, signal }: CheckoutStage, time: number): Promise<string | null> {
  await fireTick(url, time, signal);
  type Page = { items: { slot: string; result: string | null; instanceId: string | null }[] };
  const minute = new Date(time).toISOString();
  return within(`the slot ${minute} has not ended`, signal, async () => {
    const [latest] = (await client.read<Page>(`/api/jobs/${JOB}/slots?limit=1`)).items;
    return latest?.slot === minute && latest.result !== null ? { value: latest.instanceId } : null;
  });
}

/** Everything about the checkouts that is not as it must be, one sentence each. Pure. */
export function checkoutComplaints({ plan, seen, stored, instances }: CheckoutEvidence): string[] {
  if (stored === null) return ["the checkouts did not come to an end"];
  const found: string[] = [];
  const hold = (fine: boolean, complaint: string) => fine || found.push(complaint);
  const { checkouts, workspaces } = plan;
  hold(stored.expired === checkouts, `${stored.expired} of ${checkouts} checkouts are expired`);
  hold(
    stored.batched === checkouts,
    `the batches have expired ${stored.batched} checkouts, where there are ${checkouts}`,
  );
  hold(stored.owed === 0, `${stored.owed} workspaces are owed`);
  const { quarantined } = stored;
  hold(
    quarantined.length === 1 && quarantined[0] === POISON,
    `${quarantined.length} workspaces are in quarantine, where one is meant to be: ${quarantined[0]}`,
  );
  const done = seen.revalidated.size;
  hold(done === workspaces - 1, `the storefront has revalidated ${done} of ${workspaces - 1} workspaces`);
  const asked = seen.asked.get(POISON);
  hold(asked === 3, `the storefront was asked ${asked} times about the workspace that always fails, not 3 times`);
  hold(seen.complaints.length === 0, `the storefront complains: ${seen.complaints[0]}`);

  const moves = stored.slots.map(({ processor }) => processor).filter((one, at, all) => one !== all[at - 1]);
  hold(moves.join() === "route,workflow,route", `the job went by ${moves.join(", then by ")}`);
  const routed = stored.slots.filter(({ processor }) => processor === "route");
  hold(
    routed.length === seen.routed && routed.every(({ result }) => result === "succeeded"),
    `the route was called ${seen.routed} times for ${routed.length} slots, or one did not succeed`,
  );
  const ids = stored.slots.flatMap(({ instanceId }) => instanceId ?? []);
  hold(
    ids.join() === instances.map(({ id }) => id).join(),
    `${ids.length} slots became instances, and ${instances.length} are known`,
  );
  for (const { id, status } of instances) hold(status === "complete", `the instance ${id} is ${status}`);
  return found;
}
