import { env } from "cloudflare:workers";
import { d1Expiry } from "../../src/checkout/d1.ts";
import type { Completed } from "../../src/checkout/complete.ts";
import type { Progress } from "../../src/checkout/progress.ts";
import { runSweep } from "../../src/checkout/run.ts";
import type { Expiry, ExpiryAnswer, ExpiryAsk, Sweep } from "../../src/checkout/sweep.ts";
import type { LogEvent } from "../../src/core/ports.ts";
import { createMeter, type Meter } from "../../src/db/meter.ts";
import { meterDb } from "../../src/db/client.ts";
import type { ObligationRow } from "../../src/jobs/obligations.ts";
import type { Asked } from "../../src/jobs/quarantine.ts";
import { claimSlots, resumeJob, type Slot, stopJob } from "../../src/jobs/slots.ts";

export const DB = (env as unknown as { DB: D1Database }).DB;
const EVERY = 300_000;

/** The UUID of the n-th workspace, or checkout. */
export const workspace = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, "0")}`;
const checkout = (n: number): string => `c0000000-0000-4000-8000-${String(n).padStart(12, "0")}`;

export interface Checkout {
  id: string;
  workspace: string;
  status: "reserved" | "paid" | "expired";
  expiresAt: number;
}

/** A database elsewhere that expires checkouts by key, and can be made to misbehave. */
export class OtherDatabase {
  checkouts: Checkout[] = [];
  asks: ExpiryAsk[] = [];
  moves = new Map<string, number>();
  kept = new Map<string, Checkout[]>();
  misbehave: (ask: ExpiryAsk) => Promise<ExpiryAnswer> | null = () => null;

  async ask(ask: ExpiryAsk): Promise<ExpiryAnswer> {
    this.asks.push(ask);
    return this.misbehave(ask) ?? this.answer(ask);
  }

  answer(ask: ExpiryAsk): ExpiryAnswer {
    const rows = this.kept.get(ask.key) ?? this.expire(ask);
    this.kept.set(ask.key, rows);
    return { ok: true, rows: rows.map(({ id, workspace }) => ({ checkoutId: id, workspaceId: workspace })) };
  }

  expire({ now, limit }: Pick<ExpiryAsk, "now" | "limit">): Checkout[] {
    const rows = this.checkouts.filter((one) => one.status === "reserved" && one.expiresAt <= now).slice(0, limit);
    for (const row of rows) {
      row.status = "expired";
      this.moves.set(row.id, (this.moves.get(row.id) ?? 0) + 1);
    }
    return rows;
  }
}

export interface Detail {
  expired: number;
  batches: number;
  chunks: number;
  revalidated: number;
  owed: number;
  quarantined: number;
  stoppedBy: string | null;
  error?: string;
  calls: { ledger: number; expiry: number; storefront: number };
}

let stages = 0;

/** One job over the real D1, a clock, a storefront and a place of checkouts that the test holds. */
export class Stage {
  readonly job: string;
  readonly kind: Expiry["kind"];
  readonly other = new OtherDatabase();
  readonly logs: LogEvent[] = [];
  readonly meter: Meter = createMeter();
  clock = { now: Date.UTC(2026, 0, 1, 12) };
  /** Chunks as the storefront got them. */
  chunks: (readonly string[])[] = [];
  storefront: (workspaces: readonly string[], call: number) => Promise<Asked> | Asked = confirmAll;
  db: D1Database = meterDb(DB, this.meter, 60_000);
  private slotsClaimed = 0;

  private constructor(kind: Expiry["kind"]) {
    stages += 1;
    this.kind = kind;
    this.job = `expiry-${kind}-${stages}`;
  }

  static async create(kind: Expiry["kind"] = "d1"): Promise<Stage> {
    await DB.prepare("DELETE FROM checkouts").run();
    return new Stage(kind);
  }

  /** Claims the next due minute, as a tick does. @throws when it is not claimed */
  async claim(): Promise<Slot> {
    this.slotsClaimed += 1;
    const slot = Math.floor(this.clock.now / EVERY) * EVERY + (this.slotsClaimed === 1 ? 0 : EVERY);
    this.clock.now = slot;
    const due = { job: this.job, slot, missed: 0, processor: "workflow" as const };
    const [claim] = await claimSlots(DB, [due], slot);
    if (claim?.kind !== "claimed") throw new Error(`not claimed: ${JSON.stringify(claim)}`);
    return claim.slot;
  }

  sweep(slot: Slot): Sweep {
    return {
      slot,
      db: this.db,
      ports: { clock: () => this.clock.now, log: (event) => void this.logs.push(event) },
      expiry: this.kind === "d1" ? d1Expiry() : { kind: "supabase", ask: (ask) => this.other.ask(ask) },
      storefront: async (workspaces) => {
        this.chunks.push(workspaces);
        return this.storefront(workspaces, this.chunks.length);
      },
    };
  }

  /** Runs a slot to its end and answers what was kept of it. */
  async run(slot: Slot, steps: Steps = new Steps()): Promise<{ result: string | null; detail: Detail }> {
    await runSweep(this.sweep(slot), steps.run);
    return this.slot(slot);
  }

  async next(): Promise<{ result: string | null; detail: Detail }> {
    return this.run(await this.claim());
  }

  async slot({ job, slot }: Slot): Promise<{ result: string | null; detail: Detail }> {
    const row = await DB.prepare("SELECT result, detail FROM slots WHERE job = ?1 AND slot = ?2")
      .bind(job, slot)
      .first<{ result: string | null; detail: string }>();
    return { result: row?.result ?? null, detail: JSON.parse(row?.detail ?? "{}") as Detail };
  }

  /** Adds reservations that ended long ago, spread over workspaces `from…from + workspaces - 1`. */
  async reserve(count: number, workspaces = count, from = 0, ids = 0): Promise<void> {
    const rows: Checkout[] = Array.from({ length: count }, (_, n) => ({
      id: checkout(ids + n),
      workspace: workspace(from + (n % workspaces)),
      status: "reserved",
      expiresAt: 1_000 + ids + n,
    }));
    if (this.kind === "supabase") this.other.checkouts.push(...rows);
    else {
      await DB.prepare(
        `INSERT INTO checkouts (id, workspace, status, expires_at)
         SELECT value ->> 'id', value ->> 'workspace', 'reserved', value ->> 'expiresAt' FROM json_each(?1)`,
      )
        .bind(JSON.stringify(rows))
        .run();
    }
  }

  async checkouts(): Promise<Checkout[]> {
    if (this.kind === "supabase") return this.other.checkouts;
    const { results } = await DB.prepare(
      "SELECT id, workspace, status, expires_at AS expiresAt FROM checkouts ORDER BY id",
    ).all<Checkout>();
    return results;
  }

  async expiredCount(): Promise<number> {
    return (await this.checkouts()).filter(({ status }) => status === "expired").length;
  }

  /** Puts work in the ledger as if it had been there before, from workspace `from` on. */
  async hold(count: number, state: "owed" | "quarantined", from = 100_000): Promise<void> {
    await DB.prepare(
      `WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
       INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at)
       SELECT ?1, printf('00000000-0000-4000-8000-%012d', ?4 + i), ?3, 1, 5 + i, iif(?3 = 'owed', 0, 3), iif(?3 = 'owed', NULL, 9)
       FROM n WHERE ?2 > 0`,
    )
      .bind(this.job, count, state, from)
      .run();
  }

  async obligations(): Promise<ObligationRow[]> {
    const { results } = await DB.prepare("SELECT * FROM obligations WHERE job = ?1 ORDER BY workspace")
      .bind(this.job)
      .all<ObligationRow>();
    return results;
  }

  async held(): Promise<{ owed: number; quarantined: number }> {
    const rows = await this.obligations();
    const owed = rows.filter(({ state }) => state === "owed").length;
    return { owed, quarantined: rows.length - owed };
  }

  async charges(): Promise<number> {
    const row = await DB.prepare("SELECT count(*) AS n FROM charges WHERE job = ?1")
      .bind(this.job)
      .first<{ n: number }>();
    return row?.n ?? 0;
  }

  async openKeys(): Promise<string[]> {
    const { results } = await DB.prepare("SELECT key FROM expiry_batches WHERE job = ?1 AND closed_at IS NULL")
      .bind(this.job)
      .all<{ key: string }>();
    return results.map(({ key }) => key);
  }

  async stop(): Promise<void> {
    await stopJob(DB, this.job, "by hand", "http:ann", this.clock.now).run();
  }

  async resume(): Promise<void> {
    await resumeJob(DB, this.job).run();
  }

  async jobRow(): Promise<{ failures: number; stalled: number; stopped_at: number | null; generation: number }> {
    const row = await DB.prepare("SELECT * FROM jobs WHERE id = ?1").bind(this.job).first();
    return row as Awaited<ReturnType<Stage["jobRow"]>>;
  }
}

/** Runs steps as a Workflow does: what a step answered is kept as JSON, and a finished step is not run again. */
export class Steps {
  readonly kept = new Map<string, string>();
  readonly run = async <T extends Progress | Completed>(name: string, work: () => Promise<T>): Promise<T> => {
    const known = this.kept.get(name);
    if (known !== undefined) return JSON.parse(known) as T;
    const answer = JSON.stringify(await work());
    this.kept.set(name, answer);
    return JSON.parse(answer) as T;
  };
}

export function confirmAll(workspaces: readonly string[]): Asked {
  return { ok: true, confirmed: workspaces, unconfirmed: [] };
}

/** Confirms all but these. */
export function confirmBut(...poison: readonly string[]): (workspaces: readonly string[]) => Asked {
  return (workspaces) => ({
    ok: true,
    confirmed: workspaces.filter((one) => !poison.includes(one)),
    unconfirmed: workspaces.filter((one) => poison.includes(one)).map((wsId) => ({ wsId, error: "it always fails" })),
  });
}

export const refuse = (kind = "status", detail = "it answered 500"): Asked => ({ ok: false, kind, detail });

export const hang = <T>(): Promise<T> => new Promise<never>(() => {});

/** The database, with a door in front of each batch. `ask` is told which call it is and what it is about. */
export function doored(
  db: D1Database,
  ask: (call: number, statements: D1PreparedStatement[]) => Promise<"pass" | "lose"> | "pass" | "lose",
): D1Database {
  let calls = 0;
  return new Proxy(db, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      if (name !== "batch") return typeof member === "function" ? member.bind(target) : member;
      return async (statements: D1PreparedStatement[]) => {
        calls += 1;
        const fate = await ask(calls, statements);
        const results = await target.batch(statements);
        if (fate === "lose") throw new Error("D1_ERROR: Network connection lost.");
        return results;
      };
    },
  });
}
