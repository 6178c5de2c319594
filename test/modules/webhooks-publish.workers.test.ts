import { describe, expect, test } from "vitest";
import { DueworkError } from "../../src/index.ts";
import { deliver } from "../../src/modules/webhooks/deliver.ts";
import { publish } from "../../src/modules/webhooks/index.ts";
import { add, okRig } from "./receivers.ts";
import type { Rig } from "./rig.ts";

const SECOND = 1_000;

const items = (rig: Rig) => rig.db.prepare("SELECT count(*) AS n FROM items").first<number>("n");

describe("who hears of an event", () => {
  test("endpoints of its exact type or of all, and of its subject or of any", async () => {
    const rig = await okRig();
    await add(rig, "all.example", ["*"]);
    await add(rig, "paid.example", ["invoice.paid", "invoice.void"]);
    await add(rig, "prefix.example", ["invoice"]);
    await add(rig, "other.example", ["refund.made"]);
    await add(rig, "mine.example", ["*"], "acme");
    await add(rig, "theirs.example", ["*"], "globex");
    const told = async (args: object) => {
      const { items } = await rig.result("webhooks.publish", { type: "invoice.paid", data: null, ...args });
      rig.called.length = 0;
      await rig.drain(deliver);
      expect(rig.called).toHaveLength(items);
      return rig.called.toSorted();
    };
    expect(await told({})).toEqual(["all.example", "paid.example"]);
    expect(await told({ subject: "acme" })).toEqual(["all.example", "mine.example", "paid.example"]);
    expect(await told({ subject: "ACME" })).toEqual(["all.example", "paid.example"]);
    expect(await told({ type: "refund.made", subject: "globex" })).toEqual([
      "all.example",
      "other.example",
      "theirs.example",
    ]);
  });

  test("its scope is its subject, and another subject in a scope is refused", async () => {
    const rig = await okRig();
    await add(rig, "all.example", ["*"]);
    await add(rig, "mine.example", ["*"], "acme/api");
    const event = { type: "a", data: 0 };
    expect(await rig.run("webhooks.publish", event, "acme/api")).toMatchObject({ result: { items: 2 } });
    expect(await rig.run("webhooks.publish", { ...event, subject: "acme/api" }, "acme/api")).toMatchObject({
      result: { items: 2 },
    });
    expect(await rig.run("webhooks.publish", event, "acme/web")).toMatchObject({ result: { items: 1 } });
    expect(await rig.run("webhooks.publish", { ...event, subject: "acme/api" }, "acme/web")).toMatchObject({
      ok: false,
      code: "bad_arguments",
      field: "subject",
    });
    expect(await items(rig)).toBe(5);
  });

  test("finding them reads no endpoint of another subject", async () => {
    const rig = await okRig();
    await rig.db
      .prepare(
        `INSERT INTO webhook_endpoints (id, url, events, subject, secret, state, created_at)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         SELECT 'ep_' || i, 'https://x.example/', '["*"]', 's' || i, 'whsec_', 'active', 0 FROM n`,
      )
      .run();
    const ctx = rig.context();
    expect(await publish(ctx, { type: "a", data: 0, subject: "s7" })).toMatchObject({ items: 1 });
    expect(rig.used().queries).toBe(1);
    expect(rig.used().rowsRead).toBeLessThan(10);
  });
});

describe("publishing", () => {
  test("in the caller's batch commits with it", async () => {
    const rig = await okRig();
    await add(rig, "a.example", ["*"]);
    await add(rig, "b.example", ["*"]);
    const ctx = rig.context();
    const { eventId, items: count, statements } = await publish(ctx, { type: "order.made", data: { id: 7 } });
    expect(count).toBe(2);
    expect(await items(rig)).toBe(0);
    await ctx.db.batch([ctx.db.prepare("SELECT 1"), ...statements]);
    await rig.drain(deliver);
    expect(rig.called.toSorted()).toEqual(["a.example", "b.example"]);
    expect((await rig.result("webhooks.deliveries", { eventId })).items).toHaveLength(2);
  });

  test("in a batch that is rolled back tells nobody", async () => {
    const rig = await okRig();
    await add(rig, "a.example", ["*"]);
    const ctx = rig.context();
    const { statements } = await publish(ctx, { type: "order.made", data: {} });
    const broken = ctx.db.prepare(
      "INSERT INTO webhook_endpoints (id, url, events, state, created_at) VALUES ('x', '', '', '', 0)",
    );
    await expect(ctx.db.batch([...statements, broken])).rejects.toThrow();
    await rig.drain(deliver);
    expect(rig.called).toEqual([]);
    expect(await items(rig)).toBe(0);
  });

  test("the same event id again adds nothing while its items live", async () => {
    const rig = await okRig();
    await add(rig, "a.example", ["*"]);
    for (let times = 0; times < 3; times += 1) {
      const ctx = rig.context();
      const event = await publish(ctx, { type: "order.made", data: {}, eventId: "order-7" });
      expect(event.eventId).toBe("order-7");
      await ctx.db.batch(event.statements);
    }
    expect(await items(rig)).toBe(1);
  });

  test.each([
    ["type", { type: "a b", data: 0 }],
    ["type", { type: "x".repeat(129), data: 0 }],
    ["type", { type: "", data: 0 }],
    ["subject", { type: "a", data: 0, subject: "" }],
    ["eventId", { type: "a", data: 0, eventId: "a.b" }],
    ["eventId", { type: "a", data: 0, eventId: "a\r\nx-evil: 1" }],
    ["items[0].payload.data.at", { type: "a", data: { at: Number.NaN } }],
    ["items[0].payload.data", { type: "a", data: "\0" }],
    ["items[0].payload", { type: "a", data: "x".repeat(65_536) }],
  ])("is refused naming %s before anything is written", async (field, event) => {
    const rig = await okRig();
    await add(rig, "a.example", ["*"]);
    const refusal = await publish(rig.context(), event).then(
      () => null,
      (error) => error,
    );
    expect(refusal).toBeInstanceOf(DueworkError);
    expect(refusal).toMatchObject({ code: "payload_refused", field });
    expect(await items(rig)).toBe(0);
  });

  test("now, where there is a queue, is sent without a tick", async () => {
    const rig = await okRig({ path: "queue" });
    await add(rig, "a.example", ["*"]);
    await rig.result("webhooks.publish", { type: "a", data: 0 });
    expect(await rig.consume()).toBe(1);
    expect(rig.called).toEqual(["a.example"]);
  });
});

describe("cost", () => {
  test("a batch of 100 for two endpoints reads each once, and its settle and log are a statement each", async () => {
    const rig = await okRig({ path: "queue" });
    await add(rig, "a.example", ["*"]);
    await add(rig, "b.example", ["*"]);
    for (let event = 0; event < 50; event += 1) await rig.result("webhooks.publish", { type: "a", data: event });
    expect(await rig.consume()).toBe(100);
    expect(rig.called).toHaveLength(100);
    // The begin, two endpoints, the settle, the log.
    expect(rig.used().queries).toBe(5);
    expect(rig.used().calls).toBe(4);
    expect(rig.used().subrequests).toBe(100);
  });

  test("a delivery's log is one row billed", async () => {
    const rig = await okRig();
    const ctx = rig.context();
    const { logDeliveries } = await import("../../src/modules/webhooks/store.ts");
    const row = {
      at: rig.now(),
      endpointId: "e",
      attempt: 1,
      outcome: "dropped",
      status: null,
      ms: 0,
      error: null,
    } as const;
    const rows = Array.from({ length: 100 }, (_, n) => ({
      ...row,
      eventId: `evt_${n}`,
      item: `i${n}`,
      response: null,
    }));
    await ctx.db.batch([logDeliveries(ctx.db, rows)]);
    expect(rig.used().rowsWritten).toBe(100);
    await ctx.db.batch([logDeliveries(ctx.db, rows)]);
    expect(rig.used().rowsWritten).toBe(100);
  });

  test("an endpoint that is removed during a long batch is read again before it is called", async () => {
    const rig: Rig & { called: string[] } = await okRig();
    const { id } = await add(rig, "a.example", ["*"]);
    await rig.result("webhooks.publish", { type: "a", data: 1 });
    await rig.result("webhooks.publish", { type: "a", data: 2 });
    const ctx = rig.context();
    await ctx.outbox.drainWithin(deliver, ctx.budget, { limit: 1 });
    await rig.result("webhooks.endpoint-remove", { id });
    rig.wait(6 * SECOND);
    await ctx.outbox.drainWithin(deliver, ctx.budget, { limit: 1 });
    expect(rig.called).toHaveLength(1);
  });
});
