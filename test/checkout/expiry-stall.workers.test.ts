import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { SECOND } from "../../src/core/time.ts";
import { d1Expiry } from "../../src/checkout/d1.ts";
import { runSweep } from "../../src/checkout/run.ts";
import type { ExpiryAnswer } from "../../src/checkout/sweep.ts";
import { forgotten, keepAudit, Mortal, settleAll, twice } from "./mortal.ts";
import { confirmAll, DB, doored, hang, refuse, Stage, Steps, workspace } from "./stage.ts";

/** Lets the timeout that is about to be set pass at once. */
function passSeconds(seconds: number): void {
  queueMicrotask(() => vi.advanceTimersByTime(seconds * SECOND));
}

/** A call that hangs until the test lets it land. */
function stall(): { landed: Promise<"pass">; land(): void } {
  const { promise, resolve } = Promise.withResolvers<"pass">();
  return { landed: promise, land: () => resolve("pass") };
}

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => void vi.useRealTimers());

const PHASES = {
  d1: ["reconcile", "fence", "settle", "batch", "fence fresh", "settle fresh", "complete"],
  supabase: ["reconcile", "fence", "settle", "open", "record", "fence fresh", "settle fresh", "complete"],
};

describe.each(["d1", "supabase"] as const)("over %s", (kind) => {
  describe.each(["before the next claim", "after the next claim"])("a ledger call that stalls and lands %s", (when) => {
    it.each(PHASES[kind].map((name, index) => [name, index + 1] as const))("%s: it is asked once", async (_, at) => {
      await keepAudit();
      const stage = await Stage.create(kind);
      await stage.hold(2, "owed", 900);
      await stage.reserve(20, 5);
      const slot = await stage.claim();
      const stalled = stall();
      let calls = 0;
      stage.db = doored(DB, (call) => {
        calls = call;
        if (call !== at) return "pass";
        passSeconds(30);
        return stalled.landed;
      });
      const completes = at === PHASES[kind].length;
      const run = new Mortal(stage, null).run(slot, new Steps());
      if (completes) await expect(run).rejects.toThrow("ledger");
      else {
        await run;
        const { result, detail } = await stage.slot(slot);
        expect(result).toBe("failed");
        expect(detail).toMatchObject({ stoppedBy: "ledger", error: expect.stringContaining("did not answer") });
      }
      // The stalled call, and the completion after it.
      expect(calls).toBe(completes ? at : at + 1);
      expect(await twice()).toEqual([]);

      stage.db = DB;
      if (when === "before the next claim") await land(stalled);
      const next = await stage.claim();
      const before = await stage.obligations();
      if (when === "after the next claim") {
        await land(stalled);
        expect(await stage.obligations()).toEqual(before.length === 0 ? expect.any(Array) : keepsAll(before));
      }
      await new Mortal(stage, null).run(next, new Steps());
      await settleAll(stage);
      expect(await forgotten(stage)).toEqual([]);
      expect(await twice()).toEqual([]);
      expect(await stage.expiredCount()).toBe(20);
      expect(await stage.held()).toEqual({ owed: 0, quarantined: 0 });
      expect(await stage.openKeys()).toEqual([]);
    });
  });

  it("deadline: an instance that begins at or after it makes no call", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(5);
    const slot = await stage.claim();
    stage.meter.calls = 0;
    for (const late of [0, 1, 60 * SECOND]) {
      stage.clock.now = slot.deadline + late;
      expect((await stage.run(slot)).result).toBeNull();
    }
    expect(stage.meter.calls).toBe(0);
    expect(stage.chunks).toEqual([]);
    expect(stage.other.asks).toEqual([]);
    await stage.claim();
    expect((await stage.slot(slot)).result).toBe("unknown");
    expect((await stage.jobRow()).failures).toBe(1);
  });

  it("deadline: whichever call it passes in, nothing begins after it", async () => {
    for (let at = 1; at <= PHASES[kind].length; at += 1) {
      const stage = await Stage.create(kind);
      await stage.hold(2, "owed", 900);
      await stage.reserve(20, 5);
      const slot = await stage.claim();
      const calls = { at: 0, after: 0 };
      const count = () => {
        if (stage.clock.now >= slot.deadline) calls.after += 1;
      };
      stage.db = doored(DB, (call) => {
        count();
        if (call === at) stage.clock.now = slot.deadline;
        return "pass";
      });
      stage.storefront = (workspaces) => {
        count();
        return confirmAll(workspaces);
      };
      stage.other.misbehave = () => {
        count();
        return null;
      };
      await stage.run(slot);
      expect({ at, after: calls.after }).toEqual({ at, after: 0 });
    }
  });

  it("deadline: time that runs out in work leaves enough to say so", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(300, "owed");
    const slot = await stage.claim();
    stage.storefront = (workspaces, call) => {
      if (call === 2) stage.clock.now = slot.deadline - 5 * SECOND;
      return confirmAll(workspaces);
    };
    const { result, detail } = await stage.run(slot);
    expect(result).toBe("degraded");
    // The second chunk's answer came too late to be settled.
    expect(detail).toMatchObject({ stoppedBy: "deadline", chunks: 2, owed: 200 });
    expect(await stage.held()).toEqual({ owed: 200, quarantined: 0 });
  });

  it("deadline: owed work has 120 s, whatever the slot has left", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(300, "owed");
    const slot = await stage.claim();
    stage.storefront = (workspaces, call) => {
      if (call === 2) stage.clock.now = slot.claimedAt + 120 * SECOND;
      return confirmAll(workspaces);
    };
    const { detail } = await stage.run(slot);
    expect(detail).toMatchObject({ stoppedBy: "deadline", chunks: 2, revalidated: 200, owed: 100, expired: 0 });
  });

  it("a chunk that hangs ends at its own timeout; the others settle", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(500, "owed");
    stage.storefront = (workspaces, call) => {
      if (call === 2) return refuse();
      if (call !== 4) return confirmAll(workspaces);
      passSeconds(15);
      return hang();
    };
    expect((await stage.next()).detail).toMatchObject({ chunks: 5, revalidated: 300, owed: 200 });
    expect(await stage.charges()).toBe(200);
  });

  it("a late settle or charge of an older generation changes nothing", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(150, "owed");
    const old = await stage.claim();
    const stalled = stall();
    stage.storefront = (workspaces) => ({ ok: true, confirmed: workspaces.slice(0, 50), unconfirmed: [] });
    stage.db = doored(DB, (call) => {
      if (call !== 3) return "pass";
      passSeconds(30);
      return stalled.landed;
    });
    await stage.run(old);
    await stage.claim();
    const before = await stage.obligations();
    await land(stalled);
    expect(await stage.obligations()).toEqual(before);
    expect(await stage.charges()).toBe(0);
  });

  it("a later claim ends the sweep of the one before", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(300, "owed");
    const old = await stage.claim();
    stage.storefront = async (workspaces, call) => {
      if (call === 2) {
        const { now } = stage.clock;
        await stage.claim();
        stage.clock.now = now;
      }
      return confirmAll(workspaces);
    };
    await stage.run(old);
    expect(stage.chunks).toHaveLength(2);
    expect(await stage.held()).toEqual({ owed: 200, quarantined: 0 });
    expect((await stage.slot(old)).result).toBe("unknown");
  });

  it("restart: a finished instance that runs anew asks for nothing, and changes nothing", async () => {
    const stage = await Stage.create(kind);
    await stage.reserve(1_150, 130);
    const slot = await stage.claim();
    const first = await stage.run(slot);
    const asked = stage.chunks.length;
    expect(await stage.run(slot)).toEqual(first);
    expect(stage.chunks).toHaveLength(asked);
    expect(await stage.expiredCount()).toBe(1_150);
  });
});

describe("an expiry elsewhere that misbehaves", () => {
  const cases: [string, () => Promise<ExpiryAnswer>, string][] = [
    ["malformed", async () => ({ ok: false, kind: "malformed", detail: "it is HTML" }), "malformed: it is HTML"],
    ["a throw", async () => Promise.reject(new Error("no route to host")), "no route to host"],
    [
      "more rows than asked for",
      async () => ({
        ok: true,
        rows: Array.from({ length: 1_001 }, (_, n) => ({ checkoutId: workspace(n), workspaceId: workspace(n) })),
      }),
      "malformed: more than the 1000 rows asked for",
    ],
    [
      "a hang",
      () => {
        passSeconds(30);
        return hang();
      },
      "did not answer within 30000 ms",
    ],
  ];

  it.each(cases)(
    "%s: the slot fails and says why, nothing is recorded, the key stays open",
    async (_, misbehave, error) => {
      const stage = await Stage.create("supabase");
      await stage.reserve(7);
      stage.other.misbehave = misbehave;
      const { result, detail } = await stage.next();
      expect(result).toBe("failed");
      expect(detail).toMatchObject({ stoppedBy: "expiry", chunks: 0, calls: { expiry: 1, storefront: 0 } });
      expect(detail.error).toContain(error);
      expect(await stage.openKeys()).toHaveLength(1);
      const [asked] = stage.other.asks;
      stage.other.misbehave = () => null;
      const next = await stage.next();
      // The next claim asks under the open key first, with the same instant.
      expect(stage.other.asks[1]).toEqual(asked);
      expect(next).toMatchObject({ result: "succeeded", detail: { expired: 7, revalidated: 7 } });
      expect(await stage.openKeys()).toEqual([]);
    },
  );

  it("an answer that was lost is asked for again: no checkout is expired twice, none is forgotten", async () => {
    const stage = await Stage.create("supabase");
    await stage.reserve(7);
    stage.other.misbehave = (ask) => {
      stage.other.answer(ask);
      return Promise.resolve({ ok: false, kind: "timeout", detail: "no answer within 30000 ms" });
    };
    expect((await stage.next()).result).toBe("failed");
    expect(await stage.expiredCount()).toBe(7);
    stage.other.misbehave = () => null;
    expect((await stage.next()).detail).toMatchObject({ expired: 7, revalidated: 7, owed: 0 });
    expect([...stage.other.moves.values()]).toEqual(Array(7).fill(1));
  });

  it("an open key holds its room and lets no other batch begin; with other settings it is not forgotten", async () => {
    const stage = await Stage.create("supabase");
    await stage.reserve(7);
    stage.other.misbehave = async () => ({ ok: false, kind: "status", detail: "502" });
    for (let n = 0; n < 4; n += 1) expect((await stage.next()).result).toBe("failed");
    expect(new Set(stage.other.asks.map(({ key }) => key)).size).toBe(1);
    const slot = await stage.claim();
    await runSweep({ ...stage.sweep(slot), expiry: d1Expiry() }, new Steps().run);
    const { result, detail } = await stage.slot(slot);
    expect(result).toBe("failed");
    expect(detail.error).toContain("is open with the adapter supabase");
    expect(await stage.openKeys()).toHaveLength(1);
  });

  it("a run of the function without key beside ours takes no checkout twice", async () => {
    const stage = await Stage.create("supabase");
    await stage.reserve(1_500, 10);
    stage.other.misbehave = (ask) => {
      stage.other.expire({ now: ask.now, limit: 200 });
      return null;
    };
    await stage.next();
    expect([...stage.other.moves.values()].every((moves) => moves === 1)).toBe(true);
    expect(await stage.expiredCount()).toBe(1_500);
  });
});

async function land(stalled: { land(): void }): Promise<void> {
  stalled.land();
  // Real time, since the database is real.
  vi.useRealTimers();
  await new Promise((resolve) => setTimeout(resolve, 25));
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
}

/** Whatever else came, nothing that was held is gone or charged. */
function keepsAll(rows: readonly object[]) {
  return expect.arrayContaining([...rows]);
}
