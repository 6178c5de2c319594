import { Webhook } from "standardwebhooks";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { account, type Evidence } from "../../src/cli/demo/account.ts";
import { failsOnce, itemsOf, type Plan, planOf } from "../../src/cli/demo/plan.ts";
import {
  deliveryKey,
  hookPath,
  merchantPath,
  pollKey,
  type Receiver,
  startReceiver,
} from "../../src/cli/demo/receiver.ts";
import type { Stored, Ticks } from "../../src/cli/demo/record.ts";

describe("a plan", () => {
  test.each<[number, Plan]>([
    [2_000, { endpoints: 10, events: 200, merchants: 1_000 }],
    [10, { endpoints: 10, events: 1, merchants: 5 }],
    [35, { endpoints: 7, events: 5, merchants: 17 }],
    [13, { endpoints: 1, events: 13, merchants: 6 }],
  ])("of %i deliveries", (deliveries, plan) => {
    expect(planOf(deliveries)).toEqual(plan);
    expect(itemsOf(plan)).toBe(deliveries + Math.floor(deliveries / 2));
  });
});

describe("the receiver", () => {
  const SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
  const plan: Plan = { endpoints: 2, events: 10, merchants: 10 };
  let receiver: Receiver;
  beforeEach(async () => {
    receiver = await startReceiver(plan);
    for (let index = 0; index < plan.endpoints; index += 1) receiver.trust(index, SECRET);
  });
  afterEach(() => receiver.close());

  async function deliver(endpoint: number, order: number, secret = SECRET): Promise<number> {
    const body = JSON.stringify({ data: { order } });
    const at = new Date();
    const signature = new Webhook(secret).sign("evt_1", at, body);
    const headers = {
      "webhook-id": "evt_1",
      "webhook-timestamp": String(Math.floor(at.getTime() / 1_000)),
      "webhook-signature": signature,
    };
    return (await fetch(receiver.url + hookPath(endpoint), { method: "POST", headers, body })).status;
  }

  test("takes what is signed, and counts what comes again", async () => {
    expect([await deliver(1, 2), await deliver(1, 2)]).toEqual([200, 200]);
    expect(receiver.seen).toMatchObject({ requests: 2, complaints: [] });
    expect(receiver.seen.succeeded).toEqual(new Map([[deliveryKey(1, 2), 2]]));
  });

  test("refuses another's signature, and complains", async () => {
    expect(await deliver(1, 2, "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=")).toBe(401);
    expect(receiver.seen.succeeded.size).toBe(0);
    expect(receiver.seen.complaints).toEqual([expect.stringContaining("signature")]);
  });

  test("fails one event once at each endpoint, and one delivery for ever", async () => {
    expect(failsOnce(7)).toBe(true);
    expect([await deliver(0, 7), await deliver(1, 7), await deliver(0, 7)]).toEqual([500, 500, 200]);
    expect([await deliver(0, 0), await deliver(0, 0), await deliver(1, 0)]).toEqual([500, 500, 200]);
    expect(receiver.seen.failed.get(deliveryKey(0, 0))).toBe(2);
  });

  test("fails one merchant once, and complains of what nobody planned", async () => {
    const poll = async (index: number) => (await fetch(receiver.url + merchantPath(index))).status;
    expect([await poll(7), await poll(7), await poll(8), await poll(10)]).toEqual([500, 200, 200, 404]);
    expect(await deliver(1, 10)).toBe(200);
    expect(receiver.seen.complaints).toHaveLength(2);
  });
});

describe("the account", () => {
  const plan: Plan = { endpoints: 2, events: 2, merchants: 2 };
  type Whole = Evidence & { stored: Stored; ticks: Ticks };
  const good = (): Whole => ({
    plan,
    seen: {
      requests: 20,
      failed: new Map([[deliveryKey(0, 0), 11]]),
      complaints: [],
      succeeded: new Map(
        [deliveryKey(0, 1), deliveryKey(1, 0), deliveryKey(1, 1), pollKey(0), pollKey(1)].map((key) => [key, 1]),
      ),
    },
    enqueued: 6,
    drained: 3,
    stored: {
      outbox: { ready: 0, due: 0, leased: 0, nextDue: null, slots: 0, pollers: 2 },
      deadLetters: [{ topic: "webhooks.deliver", reason: "max_attempts", attempts: 11 }],
      delivered: 3,
      polled: 2,
    },
    ticks: { ticks: 9, drained: 4, failed: 0, maxPerTick: { subrequests: 50, queries: 50 } },
    schedules: {
      firings: [
        { schedule: "demo-report", outcome: "admitted", run: "run-1", said: "lead,receipt,result" },
        { schedule: "demo-replay", outcome: "refused:schedule_write", run: null, said: "lead,refusal" },
      ],
      runs: [{ id: "run-1", actor: "schedule:demo-report", command: "webhooks.report", status: "succeeded" }],
      instances: [{ id: "run-1", status: "complete" }],
    },
    checkouts: null,
    seconds: 1.5,
  });

  test("of work that is settled", () => {
    expect(account(good())).toEqual({
      ok: true,
      items: { enqueued: 6, settled: 5, dead: 1, lost: 0, repeated: 0 },
      paths: { queue: 3, drain: 3 },
      checkouts: { expired: 0, revalidated: 0, owed: 0, quarantined: 0 },
      workflows: [{ id: "run-1", status: "complete" }],
      firings: [
        { schedule: "demo-report", outcome: "admitted" },
        { schedule: "demo-replay", outcome: "refused:schedule_write" },
      ],
      ticks: 9,
      maxPerTick: { subrequests: 50, queries: 50 },
      seconds: 1.5,
    });
  });

  test("what was delivered twice is repeated, and no fault: delivery is at least once", () => {
    const evidence = good();
    evidence.seen.succeeded.set(pollKey(0), 3);
    expect(account(evidence)).toMatchObject({ ok: true, items: { repeated: 1, settled: 5 } });
  });

  test.each<[string, (evidence: Whole) => void, string]>([
    ["an item is lost", ({ seen }) => seen.succeeded.delete(pollKey(1)), "2 items never succeeded"],
    ["the wrong one is dead", swapDead, "1 items never succeeded"],
    ["a signature was wrong", ({ seen }) => seen.complaints.push("/hooks/1: no"), "complains 1 times: /hooks/1: no"],
    [
      "less was stored than enqueued",
      (evidence) => Object.assign(evidence, { enqueued: 5 }),
      "6 items were enqueued and 5 were stored",
    ],
    ["nothing is dead", ({ stored }) => stored.deadLetters.pop(), "0 items are dead"],
    ["an attempt was not counted", ({ seen }) => seen.failed.set(deliveryKey(0, 0), 12), "11 attempts"],
    [
      "one is on its way",
      ({ stored }) => Object.assign(stored.outbox, { leased: 1 }),
      "1 items are still on their way",
    ],
    ["a poller is gone", ({ stored }) => Object.assign(stored.outbox, { pollers: 1 }), "1 of 2 pollers"],
    ["the log is short", ({ stored }) => Object.assign(stored, { delivered: 2 }), "the log has 2 deliveries"],
    ["an account is not stored as polled", ({ stored }) => Object.assign(stored, { polled: 1 }), "1 of 2 accounts"],
    ["records claim less than was drained", ({ ticks }) => Object.assign(ticks, { drained: 2 }), "account for 2 of 3"],
    ["a tick used too much", ({ ticks }) => Object.assign(ticks.maxPerTick, { queries: 51 }), "51 queries"],
    ["a part of a tick failed", ({ ticks }) => Object.assign(ticks, { failed: 1 }), "1 parts of ticks failed"],
    ["a schedule did not fire", ({ schedules }) => schedules?.firings.pop(), "demo-replay has fired 0 times"],
    ["no schedule was fired", (evidence) => Object.assign(evidence, { schedules: null }), "did not come to an end"],
    ["it came to no end", (evidence) => Object.assign(evidence, { ticks: null }), "did not come to an end"],
  ])("is not ok when %s", (_, spoil, reason) => {
    const evidence = good();
    spoil(evidence);
    const report = account(evidence);
    expect(report.ok).toBe(false);
    expect(report.reason).toContain(reason);
  });

  test("an early end loses nothing that is still on its way", () => {
    const evidence = good();
    evidence.seen.succeeded.delete(pollKey(1));
    evidence.stored = {
      ...evidence.stored,
      outbox: { ready: 0, due: 0, leased: 1, nextDue: null, slots: 0, pollers: 1 },
    };
    expect(account(evidence).items).toMatchObject({ settled: 4, lost: 0 });
  });

  function swapDead({ seen }: Whole): void {
    seen.succeeded.delete(pollKey(1));
    seen.succeeded.set(deliveryKey(0, 0), 1);
  }
});
