import type { Completed } from "../../src/checkout/complete.ts";
import type { Progress } from "../../src/checkout/progress.ts";
import { runSweep } from "../../src/checkout/run.ts";
import type { Expiry, Sweep } from "../../src/checkout/sweep.ts";
import { KEPT_IDS } from "../../src/jobs/obligations.ts";
import type { Slot } from "../../src/jobs/slots.ts";
import { CHECKOUTS } from "../../src/checkout/d1.ts";
import { confirmAll, DB, doored, type Stage, Steps } from "./stage.ts";

/** At which effect a process dies, counted from 1, and whether the effect still lands. */
export interface Fuse {
  at: number;
  lands: boolean;
}

class Died extends Error {}

/** The order in which checkouts expired and workspaces were confirmed, kept by the database itself. */
export async function keepAudit(): Promise<void> {
  await DB.batch([
    DB.prepare(
      "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, id TEXT, workspace TEXT)",
    ),
    DB.prepare("DELETE FROM audit"),
    DB.prepare(
      `CREATE TRIGGER IF NOT EXISTS audit_expiry AFTER UPDATE OF status ON checkouts WHEN new.status = 'expired'
       BEGIN INSERT INTO audit (what, id, workspace) VALUES ('expired', new.id, new.workspace); END`,
    ),
  ]);
}

async function note(what: "expired" | "confirmed", rows: readonly { id: string; workspace: string }[]): Promise<void> {
  await DB.prepare(
    "INSERT INTO audit (what, id, workspace) SELECT ?1, value ->> 'id', value ->> 'workspace' FROM json_each(?2)",
  )
    .bind(what, JSON.stringify(rows))
    .run();
}

/** Workspaces that were expired after they were last confirmed, and that the ledger does not hold. Must be empty. */
export async function forgotten(stage: Stage): Promise<string[]> {
  // Under an open key the ledger knows that something may have happened: the next claim asks again.
  if ((await stage.openKeys()).length > 0) return [];
  const { results } = await DB.prepare(
    `SELECT workspace FROM (
       SELECT workspace, max(iif(what = 'expired', seq, 0)) AS expired, max(iif(what = 'confirmed', seq, 0)) AS confirmed
       FROM audit GROUP BY workspace)
     WHERE expired > confirmed AND workspace NOT IN (SELECT workspace FROM obligations WHERE job = ?1)`,
  )
    .bind(stage.job)
    .all<{ workspace: string }>();
  return results.map(({ workspace }) => workspace);
}

/** Checkouts that were expired more than once. Must be empty. */
export async function twice(): Promise<string[]> {
  const { results } = await DB.prepare(
    "SELECT id FROM audit WHERE what = 'expired' GROUP BY id HAVING count(*) > 1",
  ).all<{ id: string }>();
  return results.map(({ id }) => id);
}

/** A process that runs sweeps of a stage, and dies at a fuse: from then on nothing it does has an effect. */
export class Mortal {
  effects = 0;
  dead = false;
  private readonly stage: Stage;
  private readonly fuse: Fuse | null;

  constructor(stage: Stage, fuse: Fuse | null) {
    this.stage = stage;
    this.fuse = fuse;
  }

  /** Runs what is left of a slot. Answers false when it died. */
  async run(slot: Slot, steps: Steps): Promise<boolean> {
    const run = async <T extends Progress | Completed>(name: string, work: () => Promise<T>): Promise<T> =>
      steps.run(name, async () => {
        const answer = await work();
        if (this.dead) throw new Died();
        return answer;
      });
    try {
      await runSweep(this.sweep(slot), run);
      return true;
    } catch (error) {
      if (this.dead) return false;
      throw error;
    }
  }

  private sweep(slot: Slot): Sweep {
    const sweep = this.stage.sweep(slot);
    return {
      ...sweep,
      db: doored(this.stage.db, () => this.die()),
      expiry: this.expiry(sweep.expiry),
      storefront: async (workspaces, ms) => {
        const fate = this.die();
        const asked = await sweep.storefront(workspaces, ms);
        if (asked.ok)
          await note(
            "confirmed",
            asked.confirmed.map((id) => ({ id, workspace: id })),
          );
        if (fate === "lose") throw new Died();
        return asked;
      },
    };
  }

  private expiry(expiry: Expiry): Expiry {
    if (expiry.kind === "d1")
      return { ...expiry, expire: (db, { key, now }) => db.prepare(CHECKOUTS.expire(KEPT_IDS)).bind(key, now) };
    return {
      kind: "supabase",
      ask: async (ask, ms) => {
        const fate = this.die();
        const fresh = !this.stage.other.kept.has(ask.key);
        const answer = await expiry.ask(ask, ms);
        if (answer.ok && fresh) {
          await note(
            "expired",
            answer.rows.map(({ checkoutId, workspaceId }) => ({ id: checkoutId, workspace: workspaceId })),
          );
        }
        if (fate === "lose") throw new Died();
        return answer;
      },
    };
  }

  /** @throws when dead: nothing has an effect any more */
  private die(): "pass" | "lose" {
    if (this.dead) throw new Died();
    this.effects += 1;
    if (this.effects !== this.fuse?.at) return "pass";
    this.dead = true;
    if (!this.fuse.lands) throw new Died();
    return "lose";
  }
}

/** Goes on, slot by slot, until nothing is owed and nothing is left to expire. @throws when that takes too long */
export async function settleAll(stage: Stage): Promise<void> {
  stage.storefront = confirmAll;
  for (let n = 0; n < 12; n += 1) {
    const slot = await stage.claim();
    await new Mortal(stage, null).run(slot, new Steps());
    const { result, detail } = await stage.slot(slot);
    if (result === "succeeded" || (detail.owed === 0 && detail.stoppedBy === null)) return;
  }
  throw new Error("work remains after twelve slots");
}
