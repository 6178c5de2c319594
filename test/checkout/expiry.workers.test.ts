import { describe, expect, it } from "vitest";
import { createMeter } from "../../src/db/meter.ts";
import { confirmAll, confirmBut, refuse, Stage, workspace } from "./stage.ts";

/** A sweep's calls, each case by its name, over both places that checkouts may be in. */
describe.each(["d1", "supabase"] as const)("checkout expiry over %s", (kind) => {
  it("idle: five ledger calls at most, one expiry call, none to the storefront", async () => {
    const stage = await Stage.create(kind);
    const slot = await stage.claim();
    stage.meter.calls = 0;
    const { result, detail } = await stage.run(slot);
    expect(result).toBe("succeeded");
    expect(detail).toEqual({
      expired: 0,
      batches: 1,
      chunks: 0,
      revalidated: 0,
      owed: 0,
      quarantined: 0,
      stoppedBy: null,
      calls: { ledger: kind === "d1" ? 4 : 5, expiry: 1, storefront: 0 },
    });
    expect(stage.meter.calls + 1).toBe(detail.calls.ledger);
    expect(stage.chunks).toEqual([]);
  });

  it("draining: batches until one is short, each revalidated before the next", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(2_500, 300);
    const slot = await stage.claim();
    stage.meter.calls = 0;
    const { result, detail } = await stage.run(slot);
    expect(result).toBe("succeeded");
    expect(detail).toMatchObject({ expired: 2_500, batches: 3, chunks: 9, revalidated: 900, owed: 0, stoppedBy: null });
    expect(detail.calls).toMatchObject({ expiry: 3, storefront: 9 });
    expect(stage.meter.calls + 1).toBe(detail.calls.ledger);
    expect(await stage.expiredCount()).toBe(2_500);
    expect(await stage.held()).toEqual({ owed: 0, quarantined: 0 });
    if (kind === "supabase") {
      expect(new Set(stage.other.asks.map(({ now }) => now))).toEqual(new Set([slot.claimedAt]));
      expect(new Set(stage.other.asks.map(({ key }) => key)).size).toBe(3);
    }
  });

  it("capped by batches: ten expiry calls, and never a success while more may be there", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(10_500, 20);
    const { result, detail } = await stage.next();
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({ expired: 10_000, batches: 10, stoppedBy: "batches", owed: 0 });
    expect(detail.calls).toMatchObject({ expiry: 10, storefront: 10 });
    expect(await stage.jobRow()).toMatchObject({ failures: 0, stalled: 0 });
    expect((await stage.next()).detail).toMatchObject({ expired: 500, stoppedBy: null });
  });

  it("capped by chunks: fifty of owed and fifty of fresh work, three ledger calls each at most", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(5_000, "owed");
    await stage.reserve(6_000);
    const slot = await stage.claim();
    Object.assign(stage.meter, createMeter());
    const { result, detail } = await stage.run(slot);
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({ expired: 5_000, chunks: 100, revalidated: 10_000, stoppedBy: "chunks", owed: 0 });
    expect(detail.calls).toMatchObject({ expiry: 5, storefront: 100 });
    expect(stage.meter.calls + 1).toBe(detail.calls.ledger);
    expect(detail.calls.ledger).toBeLessThanOrEqual(3 * 100 + 3 + 2 * 5);
    // Statements, of which the platform lets an invocation make a thousand.
    expect(stage.meter.queries).toBeLessThanOrEqual(750);
  });

  it("stopped before it begins: no work at all", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(10);
    await stage.hold(3, "owed");
    const slot = await stage.claim();
    await stage.stop();
    const { result, detail } = await stage.run(slot);
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({ expired: 0, chunks: 0, stoppedBy: "stop", owed: 3 });
    expect(detail.calls).toMatchObject({ expiry: 0, storefront: 0 });
    expect(await stage.expiredCount()).toBe(0);
    await expect(stage.claim()).rejects.toThrow("not claimed");
  });

  it("stopped between chunks: what was answered is settled, and no further chunk is asked", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(300, "owed");
    stage.storefront = async (workspaces, call) => {
      if (call === 2) await stage.stop();
      return confirmAll(workspaces);
    };
    const { detail } = await stage.next();
    expect(detail).toMatchObject({ chunks: 2, revalidated: 200, owed: 100, stoppedBy: "stop" });
    expect(detail.calls.expiry).toBe(0);
  });

  it("stopped between batches: no further batch", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(2_000, 5);
    stage.storefront = async (workspaces) => {
      await stage.stop();
      return confirmAll(workspaces);
    };
    const { result, detail } = await stage.next();
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({ expired: 1_000, revalidated: 5, stoppedBy: "stop" });
    expect(await stage.expiredCount()).toBe(1_000);
  });

  it("partially failed: chunk 2 of 5 answers 500, another hangs to its own timeout, the other three settle", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(500, "owed");
    stage.storefront = async (workspaces, call) => {
      if (call === 2) return refuse();
      if (call === 4) return refuse("timeout", "no answer within 15000 ms");
      return confirmAll(workspaces);
    };
    const { result, detail } = await stage.next();
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({
      chunks: 5,
      revalidated: 300,
      owed: 200,
      quarantined: 0,
      stoppedBy: "owed",
      expired: 0,
    });
    expect(await stage.charges()).toBe(200);
    expect(await stage.jobRow()).toMatchObject({ failures: 0, stalled: 0 });
  });

  it("partially failed at its first chunk: those are charged too, once another was answered", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(250, "owed");
    stage.storefront = async (workspaces, call) => (call === 1 ? refuse() : confirmAll(workspaces));
    const { detail } = await stage.next();
    expect(detail).toMatchObject({ chunks: 3, revalidated: 150, owed: 100 });
    expect(await stage.charges()).toBe(100);
  });

  it("chunked: the oldest first, a hundred at most, nobody twice in a sweep", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(250, "owed");
    const { detail } = await stage.next();
    expect(stage.chunks.map((chunk) => chunk.length)).toEqual([100, 100, 50]);
    expect(stage.chunks.flat()).toEqual(Array.from({ length: 250 }, (_, n) => workspace(100_000 + n)));
    expect(detail.calls.ledger).toBeLessThanOrEqual(3 * 3 + 5);
  });

  it("owed work first: nothing is expired while anything is owed", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(1, "owed");
    await stage.reserve(10);
    stage.storefront = confirmBut(workspace(100_000));
    const first = await stage.next();
    expect(first.detail).toMatchObject({ expired: 0, owed: 1, stoppedBy: "owed", calls: { expiry: 0 } });
    stage.storefront = confirmAll;
    expect((await stage.next()).detail).toMatchObject({ expired: 10, revalidated: 11, owed: 0 });
  });

  it.each([
    [3_999, 1_000, null, 4_999],
    [4_000, 1_000, null, 5_000],
    [4_001, 0, "room", 4_001],
    [4_999, 0, "room", 4_999],
    [5_000, 0, "room", 5_000],
    [5_001, 0, "room", 5_001],
  ])("%i held: %i are expired", async (held, expired, stoppedBy, after) => {
    const stage = await Stage.create(kind);
    await stage.hold(held, "quarantined");
    await stage.reserve(1_000);
    stage.storefront = (workspaces) => ({
      ok: true,
      confirmed: [],
      unconfirmed: workspaces.map((wsId) => ({ wsId, error: "no" })),
    });
    const { result, detail } = await stage.next();
    expect(result).toBe("degraded");
    expect(detail).toMatchObject({ expired, quarantined: held, stoppedBy: expired > 0 ? "owed" : stoppedBy });
    expect(await stage.obligations()).toHaveLength(after);
    expect(await stage.expiredCount()).toBe(expired);
    expect(stage.logs.some(({ event }) => event === "ledger_filling")).toBe(after >= 4_000);
  });

  it("the reserve is released to what a batch really took", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(3_990, "quarantined");
    await stage.reserve(1_010, 10);
    expect((await stage.next()).detail).toMatchObject({ expired: 1_010, batches: 2, quarantined: 3_990 });
  });

  it("a poison workspace: charged once a sweep, quarantined after three, kept through resume, the job goes on", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(150);
    stage.storefront = confirmBut(workspace(7));
    const first = await stage.next();
    expect(first.detail).toMatchObject({ expired: 150, revalidated: 149, owed: 1, quarantined: 0 });
    expect((await stage.obligations())[0]).toMatchObject({ charges: 1, error: "it always fails" });
    expect((await stage.next()).detail).toMatchObject({ revalidated: 0, owed: 1 });
    await stage.reserve(5, 5, 500, 1_000);
    const third = await stage.next();
    expect(third.detail).toMatchObject({ owed: 0, quarantined: 1, expired: 5, revalidated: 5 });
    const asked = stage.chunks.length;
    const fourth = await stage.next();
    expect(fourth.result).toBe("degraded");
    expect(fourth.detail).toMatchObject({ quarantined: 1, stoppedBy: null });
    expect(stage.chunks).toHaveLength(asked);
    await stage.stop();
    await stage.resume();
    expect(await stage.held()).toEqual({ owed: 0, quarantined: 1 });
    expect(await stage.jobRow()).toMatchObject({ failures: 0 });
  });

  it("a quarantined workspace that expires again stays quarantined, under a new version", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(1, "quarantined", 3);
    await stage.reserve(1, 1, 3);
    expect((await stage.next()).detail).toMatchObject({ expired: 1, owed: 0, quarantined: 1, chunks: 0 });
    expect(await stage.obligations()).toMatchObject([{ state: "quarantined", version: 2 }]);
  });

  it("a storefront that is down for an hour quarantines nobody, and five such slots stop the job", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(250, "owed");
    stage.storefront = () => refuse("network", "connection refused");
    for (let n = 0; n < 5; n += 1) {
      const { result, detail } = await stage.next();
      expect(result).toBe("failed");
      expect(detail).toMatchObject({ chunks: 3, owed: 250, quarantined: 0 });
    }
    expect(await stage.jobRow()).toMatchObject({ failures: 5, stopped_at: expect.any(Number) });
    expect(await stage.charges()).toBe(0);
    for (let hour = 0; hour < 7; hour += 1) {
      await stage.resume();
      await stage.next();
    }
    expect(await stage.held()).toEqual({ owed: 250, quarantined: 0 });
    await stage.resume();
    stage.storefront = confirmAll;
    expect((await stage.next()).detail).toMatchObject({ revalidated: 250, owed: 0 });
  });

  it("a second expiry of a workspace during its first revalidation stays owed", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(1, "owed", 4);
    stage.storefront = async (workspaces) => {
      await stage.db.prepare("UPDATE obligations SET version = version + 1 WHERE job = ?1").bind(stage.job).run();
      return confirmAll(workspaces);
    };
    expect((await stage.next()).detail).toMatchObject({ revalidated: 0, owed: 1 });
    expect(await stage.obligations()).toMatchObject([{ state: "owed", version: 2 }]);
  });

  it("a checkout that is paid in between stays paid", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(3);
    const slot = await stage.claim();
    const [first] = await stage.checkouts();
    if (kind === "supabase" && first) first.status = "paid";
    else await stage.db.prepare("UPDATE checkouts SET status = 'paid' WHERE id = ?1").bind(first?.id).run();
    expect((await stage.run(slot)).detail).toMatchObject({ expired: 2 });
    expect((await stage.checkouts()).map(({ status }) => status).sort()).toEqual(["expired", "expired", "paid"]);
  });
});
