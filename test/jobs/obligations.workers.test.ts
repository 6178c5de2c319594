import { describe, expect, it } from "vitest";
import {
  forgetBatches,
  LEDGER_BOUND,
  listObligations,
  openBatch,
  type ObligationRow,
  putRows,
  readOpenBatches,
  readOwed,
  recordRows,
  settleAndCharge,
} from "../../src/jobs/obligations.ts";
import { type AskStorefront, settleByAsking, settleByHand } from "../../src/jobs/quarantine.ts";
import { completeSlot } from "../../src/jobs/slots.ts";
import type { Actor } from "../../src/commands/actor.ts";
import { quarantineCommands } from "../../src/commands/quarantine.ts";
import { createWorld } from "../outbox/world.ts";
import { confirmAll, DB, hang, Stage, workspace } from "../checkout/stage.ts";

const LIMIT = 1_000;
const batch = (key: string, number = 1) => ({ key, number, adapter: "supabase" as const, now: 10, limit: LIMIT });

async function open(slot: Awaited<ReturnType<Stage["claim"]>>, key: string): Promise<boolean> {
  const { meta } = await openBatch(DB, slot, batch(key), 10).run();
  return meta.changes === 1;
}

const record = (job: string, key: string, from: number, count: number) => {
  const rows = Array.from({ length: count }, (_, n) => ({
    checkoutId: `${key}-${n}`,
    workspaceId: workspace(from + n),
  }));
  return DB.batch([putRows(DB, key, rows), ...recordRows(DB, job, key, 20)]);
};

describe("open batch keys", () => {
  it("opens once, one at a time, for the claim that is given, unless the job is stopped", async () => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    expect(await open({ ...slot, generation: 7 }, "other generation")).toBe(false);
    expect(await open({ ...slot, slot: slot.slot - 60_000 }, "other slot")).toBe(false);
    expect(await open(slot, `${stage.job}-1`)).toBe(true);
    expect(await open(slot, `${stage.job}-1`)).toBe(false);
    expect(await open(slot, `${stage.job}-2`)).toBe(false);
    expect(await stage.openKeys()).toEqual([`${stage.job}-1`]);
    await record(stage.job, `${stage.job}-1`, 0, 0);
    expect(await open(slot, `${stage.job}-2`)).toBe(true);
    await record(stage.job, `${stage.job}-2`, 0, 0);
    await stage.stop();
    expect(await open(slot, `${stage.job}-3`)).toBe(false);
  });

  it("records under an open key once, and whatever claim has been given since", async () => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    await open(slot, `${stage.job}-1`);
    await stage.claim();
    await record(stage.job, `${stage.job}-1`, 0, 3);
    await record(stage.job, `${stage.job}-1`, 0, 3);
    await record(stage.job, `${stage.job}-1`, 50, 3);
    expect((await stage.obligations()).map(({ version }) => version)).toEqual([1, 1, 1]);
    expect((await readOpenBatches(DB, stage.job).all()).results).toEqual([]);
  });

  it.each([
    [3_999, true],
    [4_000, true],
    [4_001, false],
    [4_999, false],
    [5_000, false],
  ])("%i held: opens %s", async (held, opens) => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    await stage.hold(held, "quarantined");
    expect(await open(slot, `${stage.job}-1`)).toBe(opens);
  });

  it("opens none while anything is owed", async () => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    await stage.hold(1, "owed");
    expect(await open(slot, `${stage.job}-1`)).toBe(false);
  });

  it("refuses what would exceed the bound as a whole: nothing is recorded, and nothing put out", async () => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    await open(slot, `${stage.job}-1`);
    await stage.hold(4_500, "owed");
    await expect(record(stage.job, `${stage.job}-1`, 0, 501)).rejects.toThrow("ledger_full");
    expect(await stage.obligations()).toHaveLength(4_500);
    expect(await stage.openKeys()).toEqual([`${stage.job}-1`]);
    await record(stage.job, `${stage.job}-1`, 0, 500);
    expect(await stage.obligations()).toHaveLength(LEDGER_BOUND);
  });

  it("forgets closed batches in bounded numbers, and never an open key", async () => {
    const stage = await Stage.create();
    const slot = await stage.claim();
    for (const key of ["f1", "f2"]) {
      await open(slot, key);
      await record(stage.job, key, 0, 0);
    }
    await open(slot, "f3");
    const forget = async () => (await forgetBatches(DB, 21, 1).run()).meta.changes;
    while ((await forget()) > 0);
    const { results } = await DB.prepare("SELECT key FROM expiry_batches WHERE job = ?1").bind(stage.job).all();
    expect(results).toEqual([{ key: "f3" }]);
  });
});

describe("settling and charging", () => {
  const one = (charged = true) => ({
    confirmed: charged ? [] : [{ workspace: workspace(100_000), version: 1 }],
    charged: charged ? [{ workspace: workspace(100_000), error: "no" }] : [],
  });

  it("charges an item once a sweep, however often it is asked to; the third sweep quarantines", async () => {
    const stage = await Stage.create();
    await stage.hold(1, "owed");
    for (const charges of [1, 2, 3]) {
      const slot = await stage.claim();
      for (let again = 0; again < 3; again += 1) await DB.batch(settleAndCharge(DB, slot, one(), 30));
      const [row] = await stage.obligations();
      expect(row).toMatchObject({ charges, state: charges === 3 ? "quarantined" : "owed", error: "no" });
    }
    const slot = await stage.claim();
    await DB.batch(settleAndCharge(DB, slot, one(false), 30));
    await DB.batch(settleAndCharge(DB, slot, one(), 30));
    expect(await stage.obligations()).toMatchObject([{ state: "quarantined", charges: 3 }]);
  });

  it("settles the version that was asked, and takes its charges along", async () => {
    const stage = await Stage.create();
    await stage.hold(1, "owed");
    const slot = await stage.claim();
    await DB.batch(settleAndCharge(DB, slot, one(), 30));
    await DB.prepare("UPDATE obligations SET version = 2 WHERE job = ?1").bind(stage.job).run();
    await DB.batch(settleAndCharge(DB, slot, one(false), 30));
    expect(await stage.obligations()).toMatchObject([{ version: 2, charges: 1 }]);
    expect(await stage.charges()).toBe(1);
    const confirmed = [{ workspace: workspace(100_000), version: 2 }];
    await DB.batch(settleAndCharge(DB, slot, { confirmed, charged: [] }, 30));
    expect(await stage.obligations()).toEqual([]);
    expect(await stage.charges()).toBe(0);
  });

  it("changes nothing for an older generation, another slot, or a slot that has ended", async () => {
    const stage = await Stage.create();
    await stage.hold(2, "owed");
    const old = await stage.claim();
    const now = await stage.claim();
    const before = await stage.obligations();
    const findings = { ...one(), confirmed: [{ workspace: workspace(100_001), version: 1 }] };
    for (const claim of [old, { ...now, slot: old.slot }, { ...now, generation: 9 }]) {
      await DB.batch(settleAndCharge(DB, claim, findings, 30));
    }
    await DB.batch(completeSlot(DB, now, { result: "succeeded", progress: true, detail: {} }, 30));
    await DB.batch(settleAndCharge(DB, now, findings, 30));
    expect(await stage.obligations()).toEqual(before);
    expect(await stage.charges()).toBe(0);
  });

  it("reads what it settles and charges, not all that is owed", async () => {
    const stage = await Stage.create();
    await stage.hold(3_000, "owed");
    const slot = await stage.claim();
    const workspaces = Array.from({ length: 100 }, (_, n) => workspace(100_000 + n));
    const findings = {
      confirmed: workspaces.slice(50).map((one) => ({ workspace: one, version: 1 })),
      charged: workspaces.slice(0, 50).map((one) => ({ workspace: one, error: "no" })),
    };
    const results = await DB.batch(settleAndCharge(DB, slot, findings, 30));
    expect(results.reduce((sum, { meta }) => sum + meta.rows_read, 0)).toBeLessThanOrEqual(15 * 100);
    expect(await stage.held()).toEqual({ owed: 2_950, quarantined: 0 });
    expect(await stage.charges()).toBe(50);
  });

  it("lists the oldest first, and by an index", async () => {
    const stage = await Stage.create();
    await stage.hold(250, "owed");
    const slot = await stage.claim();
    const { results, meta } = await readOwed(DB, slot, null, 101).all<{ workspace: string }>();
    expect(results.map((row) => row.workspace)).toEqual(Array.from({ length: 101 }, (_, n) => workspace(100_000 + n)));
    expect(meta.rows_read).toBeLessThanOrEqual(4 * 101);
    const page = await listObligations(
      DB,
      stage.job,
      "owed",
      { since: 5 + 199, workspace: workspace(100_199) },
      200,
    ).all();
    expect(page.results).toHaveLength(50);
  });
});

describe("quarantine, settled by a person", () => {
  const ann = { by: "http:ann", reason: "mended by hand" };
  const kept = async (stage: Stage) =>
    (await DB.prepare("SELECT * FROM settlements WHERE job = ?1 ORDER BY workspace").bind(stage.job).all()).results;

  it("by hand: keeps who and why, frees the room, and leaves what is not quarantined", async () => {
    const stage = await Stage.create();
    await stage.hold(2, "quarantined");
    await stage.hold(1, "owed", 300);
    const items = [workspace(100_000), workspace(300), workspace(9)];
    expect(await settleByHand(DB, stage.job, items, ann, 50)).toEqual({
      settled: [workspace(100_000)],
      kept: [
        { workspace: workspace(300), why: "not_quarantined" },
        { workspace: workspace(9), why: "not_quarantined" },
      ],
    });
    expect(await stage.held()).toEqual({ owed: 1, quarantined: 1 });
    expect(await kept(stage)).toMatchObject([
      { workspace: workspace(100_000), version: 1, how: "by hand", settled_by: "http:ann", reason: "mended by hand" },
    ]);
    expect((await settleByHand(DB, stage.job, items, ann, 50)).settled).toEqual([]);
  });

  it("by hand, in a version that has been raised since: it stays", async () => {
    const stage = await Stage.create();
    await stage.hold(1, "quarantined");
    await DB.prepare("UPDATE obligations SET version = 2 WHERE job = ?1").bind(stage.job).run();
    const named = { workspace: workspace(100_000), version: 1 };
    expect(await settleByHand(DB, stage.job, [named], ann, 50)).toEqual({
      settled: [],
      kept: [{ workspace: workspace(100_000), why: "other_version" }],
    });
    expect(await kept(stage)).toEqual([]);
    expect((await settleByHand(DB, stage.job, [{ ...named, version: 2 }], ann, 50)).settled).toHaveLength(1);
  });

  it("by asking again: settles what is confirmed, in the version that was asked", async () => {
    const stage = await Stage.create();
    await stage.hold(3, "quarantined");
    const ask: AskStorefront = async (workspaces) => {
      await DB.prepare("UPDATE obligations SET version = 2 WHERE job = ?1 AND workspace = ?2")
        .bind(stage.job, workspace(100_002))
        .run();
      return { ok: true, confirmed: workspaces.slice(1), unconfirmed: [] };
    };
    const items = [0, 1, 2].map((n) => workspace(100_000 + n));
    expect(await settleByAsking(DB, stage.job, items, ask, ann, 50)).toEqual({
      settled: [workspace(100_001)],
      kept: [
        { workspace: workspace(100_000), why: "not_confirmed" },
        { workspace: workspace(100_002), why: "other_version" },
      ],
    });
    expect(await kept(stage)).toMatchObject([{ workspace: workspace(100_001), how: "revalidated" }]);
  });

  it("by asking: a storefront that fails settles nothing; nobody is asked about what is not quarantined", async () => {
    const stage = await Stage.create();
    await stage.hold(1, "quarantined");
    const items = [workspace(100_000)];
    const failing: AskStorefront = () => Promise.reject(new Error("no route"));
    expect(await settleByAsking(DB, stage.job, items, failing, ann, 50)).toMatchObject({
      ok: false,
      detail: "Error: no route",
    });
    const answer = await settleByAsking(DB, stage.job, [workspace(1)], hang, ann, 50);
    expect(answer).toMatchObject({ settled: [] });
    expect(await settleByAsking(DB, stage.job, items, async (all) => confirmAll(all), ann, 50)).toMatchObject({
      settled: items,
    });
  });
});

describe("the quarantine commands", () => {
  const actor: Actor = { kind: "user", id: "http:ann", grants: { actions: "all", channels: [], scopes: [] } };
  const run = async (name: string, args: object, asks: Map<string, AskStorefront>) => {
    const command = quarantineCommands(asks).find((one) => one.name === name);
    const parsed = await command?.args["~standard"].validate(args);
    if (parsed === undefined || parsed.issues) return parsed?.issues?.[0]?.message;
    return command?.run(parsed.value, createWorld([]).invocation(), actor);
  };

  it("settle by hand, and by asking the job's storefront", async () => {
    const stage = await Stage.create();
    await stage.hold(2, "quarantined");
    const [first, second] = [workspace(100_000), workspace(100_001)];
    const args = { job: stage.job, reason: "mended" };
    expect(await run("quarantine.settle", { ...args, items: [first] }, new Map())).toEqual({
      ok: true,
      result: { settled: [first], kept: [] },
    });
    const asking = { ...args, items: [{ workspace: second, version: 1 }] };
    expect(await run("quarantine.revalidate", asking, new Map())).toMatchObject({ ok: false, code: "no_storefront" });
    const down = new Map<string, AskStorefront>([
      [stage.job, async () => ({ ok: false, kind: "status", detail: "502" })],
    ]);
    expect(await run("quarantine.revalidate", asking, down)).toMatchObject({ ok: false, code: "storefront_failed" });
    const asks = new Map<string, AskStorefront>([[stage.job, async (all) => confirmAll(all)]]);
    expect(await run("quarantine.revalidate", asking, asks)).toMatchObject({ ok: true, result: { settled: [second] } });
    expect(await stage.held()).toEqual({ owed: 0, quarantined: 0 });
  });

  it("refuse what is no UUID, more than a hundred, and a reason that says nothing", async () => {
    const args = { job: "x", items: [workspace(1)], reason: "why" };
    const settle = (more: object) => run("quarantine.settle", { ...args, ...more }, new Map());
    expect(await settle({})).toMatchObject({ ok: true });
    for (const more of [{ items: ["w1"] }, { items: [] }, { items: Array(101).fill(workspace(1)) }, { reason: "  " }]) {
      expect(typeof (await settle(more))).toBe("string");
    }
  });
});

it("keeps obligations that are legal only", async () => {
  const put = (row: Partial<ObligationRow>) =>
    DB.prepare(
      "INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at) VALUES ('x', ?1, ?2, 1, 1, ?3, ?4)",
    )
      .bind(row.workspace ?? workspace(1), row.state ?? "owed", row.charges ?? 0, row.quarantined_at ?? null)
      .run();
  await expect(put({ workspace: "short" })).rejects.toThrow("workspace_is_a_uuid");
  await expect(put({ state: "quarantined", charges: 3 })).rejects.toThrow("quarantine_has_its_time");
  await expect(put({ charges: 3 })).rejects.toThrow("three_charges_quarantine");
});
