import { beforeEach, describe, expect, it } from "vitest";
import { forgotten, keepAudit, Mortal, settleAll, twice } from "./mortal.ts";
import { confirmAll, confirmBut, refuse, Stage, Steps, workspace } from "./stage.ts";

/** A small generator: the same seed, the same numbers. */
function randomOf(seed: number): () => number {
  let state = seed * 2_654_435_761;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t ^= t + Math.imul(t ^ (t >>> 7), 61 | t);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

describe.each(["d1", "supabase"] as const)("a process that dies, over %s", (kind) => {
  beforeEach(keepAudit);

  describe.each([
    ["and its step runs again", true],
    ["and never comes back", false],
  ])("%s", (_, again) => {
    it.each([false, true])("at every effect in turn, the effect landing: %s", async (lands) => {
      let finished = false;
      for (let at = 1; !finished; at += 1) {
        expect(at).toBeLessThan(40);
        await keepAudit();
        const stage = await Stage.create(kind);
        await stage.hold(1, "owed", 900);
        await stage.reserve(1_150, 130);
        const slot = await stage.claim();
        const steps = new Steps();
        finished = await new Mortal(stage, { at, lands }).run(slot, steps);
        expect(await forgotten(stage)).toEqual([]);
        if (!finished && again) {
          stage.clock.now += 20_000;
          await new Mortal(stage, null).run(slot, steps);
          const { result, detail } = await stage.slot(slot);
          expect({ at, result, expired: detail.expired, owed: detail.owed }).toEqual({
            at,
            result: "succeeded",
            expired: 1_150,
            owed: 0,
          });
        }
        if (!again) await settleAll(stage);
        expect(await forgotten(stage)).toEqual([]);
        expect(await twice()).toEqual([]);
        expect(await stage.openKeys()).toEqual([]);
        expect(await stage.expiredCount()).toBe(1_150);
        expect(await stage.held()).toEqual({ owed: 0, quarantined: 0 });
      }
    });
  });

  it("after a charge landed: its step, run again, asks nobody twice in the sweep", async () => {
    const stage = await Stage.create(kind);
    await stage.hold(1, "owed");
    stage.storefront = confirmBut(workspace(100_000));
    const slot = await stage.claim();
    const steps = new Steps();
    // Reconcile, the page, the request; the fourth effect charges.
    expect(await new Mortal(stage, { at: 4, lands: true }).run(slot, steps)).toBe(false);
    await new Mortal(stage, null).run(slot, steps);
    expect(stage.chunks).toHaveLength(1);
    expect(await stage.obligations()).toMatchObject([{ charges: 1 }]);
    expect((await stage.slot(slot)).detail).toMatchObject({ chunks: 1, owed: 1, stoppedBy: "owed" });
  });

  it("again and again, with a storefront that fails at times (seeded)", async () => {
    for (let seed = 1; seed <= 15; seed += 1) {
      const random = randomOf(seed);
      await keepAudit();
      const stage = await Stage.create(kind);
      await stage.reserve(100 + Math.floor(random() * 1_200), 20 + Math.floor(random() * 150));
      stage.storefront = (workspaces) => {
        const luck = random();
        if (luck < 0.15) return refuse();
        return luck < 0.3 ? confirmBut(workspace(3), workspace(5))(workspaces) : confirmAll(workspaces);
      };
      for (let n = 0; n < 4; n += 1) {
        await stage.resume();
        const slot = await stage.claim();
        const steps = new Steps();
        for (let lives = 0; lives < 3; lives += 1) {
          const fuse = { at: 1 + Math.floor(random() * 9), lands: random() < 0.5 };
          if (await new Mortal(stage, fuse).run(slot, steps)) break;
          expect(await forgotten(stage), `seed ${seed}`).toEqual([]);
          stage.clock.now += Math.floor(random() * 100_000);
        }
        await stage.reserve(Math.floor(random() * 40), 20, 0, 5_000 + n * 100);
      }
      await stage.resume();
      await settleAll(stage);
      expect(await forgotten(stage), `seed ${seed}`).toEqual([]);
      expect(await twice(), `seed ${seed}`).toEqual([]);
      expect(
        (await stage.checkouts()).every(({ status }) => status === "expired"),
        `seed ${seed}`,
      ).toBe(true);
    }
  });
});
