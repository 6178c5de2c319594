import { describe, expect, test } from "vitest";
import { type CheckoutEvidence, checkoutComplaints, type StoredCheckouts } from "../../src/cli/demo/checkouts.ts";
import { checkoutPlanOf, POISON, startStorefront, workspaceId } from "../../src/cli/demo/storefront.ts";

test("the storefront fails one workspace for ever and one twice, and counts the rest", async () => {
  const storefront = await startStorefront(checkoutPlanOf(3), "secret");
  const headers = { authorization: "Bearer secret", "content-type": "application/json" };
  const ask = async () => {
    const workspaceIds = [0, 1, 2].map(workspaceId);
    const answer = await fetch(storefront.url, { method: "POST", headers, body: JSON.stringify({ workspaceIds }) });
    return ((await answer.json()) as { results: { ok: boolean }[] }).results.map(({ ok }) => ok);
  };
  try {
    expect([await ask(), await ask(), await ask()]).toEqual([
      [false, false, true],
      [false, false, true],
      [false, true, true],
    ]);
    await fetch(storefront.routeUrl, { method: "POST", headers, body: "{}" });
    expect(storefront.seen).toMatchObject({ routed: 1, complaints: [] });
    expect(storefront.seen.revalidated).toEqual(
      new Map([2, 1].map((index) => [workspaceId(index), index === 2 ? 3 : 1])),
    );
    expect((await fetch(storefront.routeUrl, { method: "POST", body: "{}" })).status).toBe(401);
    expect(storefront.seen.complaints).toEqual(["POST /route was answered 401"]);
  } finally {
    await storefront.close();
  }
});

describe("the checkouts' account", () => {
  type Whole = CheckoutEvidence & { stored: StoredCheckouts };
  const good = (): Whole => ({
    plan: checkoutPlanOf(3),
    seen: {
      asked: new Map([[POISON, 3]]),
      revalidated: new Map([
        [workspaceId(1), 1],
        [workspaceId(2), 2],
      ]),
      routed: 2,
      complaints: [],
    },
    stored: {
      expired: 3,
      batched: 3,
      owed: 0,
      quarantined: [POISON],
      slots: [
        { processor: "route", result: "succeeded", instanceId: null },
        { processor: "workflow", result: "degraded", instanceId: "a" },
        { processor: "workflow", result: "succeeded", instanceId: "b" },
        { processor: "route", result: "succeeded", instanceId: null },
      ],
    },
    instances: [
      { id: "a", status: "complete" },
      { id: "b", status: "complete" },
    ],
  });

  test("finds nothing in what is as it must be", () => expect(checkoutComplaints(good())).toEqual([]));

  test.each<[string, (evidence: Whole) => unknown, string]>([
    ["one is not expired", ({ stored }) => Object.assign(stored, { expired: 2 }), "2 of 3 checkouts"],
    ["one expired twice", ({ stored }) => Object.assign(stored, { batched: 4 }), "have expired 4 checkouts"],
    ["one is owed", ({ stored }) => Object.assign(stored, { owed: 1 }), "1 workspaces are owed"],
    ["another is in quarantine", ({ stored }) => stored.quarantined.push("x"), "2 workspaces are in quarantine"],
    ["one was not revalidated", ({ seen }) => seen.revalidated.delete(workspaceId(2)), "revalidated 1 of 2"],
    ["one was asked too often", ({ seen }) => seen.asked.set(POISON, 4), "asked 4 times"],
    ["it complains", ({ seen }) => seen.complaints.push("no"), "complains: no"],
    ["the job was not moved back", ({ stored }) => stored.slots.pop(), "route, then by workflow"],
    ["the route was called twice", ({ seen }) => Object.assign(seen, { routed: 3 }), "called 3 times for 2 slots"],
    ["an instance is unknown", ({ instances }) => instances.pop(), "2 slots became instances, and 1"],
    ["one failed", ({ instances }) => Object.assign(instances[1] ?? {}, { status: "errored" }), "b is errored"],
    ["it came to no end", (evidence) => Object.assign(evidence, { stored: null }), "did not come to an end"],
  ])("complains when %s", (_, spoil, complaint) => {
    const evidence = good();
    spoil(evidence);
    expect(checkoutComplaints(evidence).join("; ")).toContain(complaint);
  });
});
