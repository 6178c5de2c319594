import { Webhook } from "standardwebhooks";
import { describe, expect, test } from "vitest";
import { deliver } from "../../src/modules/webhooks/deliver.ts";
import { addEndpoint, log, publish, withReceivers } from "./receivers.ts";

const SECOND = 1_000;

describe("signing", () => {
  test("a delivery is what the public Standard Webhooks verifier accepts, and only as it was sent", async () => {
    const rig = await withReceivers(undefined, { start: Date.now() });
    const { secret } = await addEndpoint(rig);
    const eventId = await publish(rig, { text: "ü€😀", n: 1.5 });
    await rig.drain(deliver);

    const [call] = rig.calls;
    expect(call?.headers).toMatchObject({
      "webhook-id": eventId,
      "webhook-timestamp": String(Math.floor(rig.now() / SECOND)),
      "content-type": "application/json",
      "user-agent": "duework-webhooks",
    });
    expect(new Webhook(secret).verify(call!.body, call!.headers)).toEqual({
      type: "invoice.paid",
      timestamp: new Date(rig.now()).toISOString(),
      data: { text: "ü€😀", n: 1.5 },
    });
    expect(() => new Webhook(secret).verify(`${call!.body} `, call!.headers)).toThrow();
    expect(() => new Webhook("whsec_AAAA").verify(call!.body, call!.headers)).toThrow();
  });

  test("each attempt has the same id and body, and a signature of its own time", async () => {
    const start = Date.now() - 20 * SECOND;
    const rig = await withReceivers(() => new Response("no", { status: 500 }), { start });
    const { secret } = await addEndpoint(rig);
    await publish(rig);
    await rig.drain(deliver);
    rig.wait(10 * SECOND);
    await rig.drain(deliver);

    const [first, second] = rig.calls;
    expect(second?.headers["webhook-id"]).toBe(first?.headers["webhook-id"]);
    expect(second?.body).toBe(first?.body);
    expect(Number(second?.headers["webhook-timestamp"]) - Number(first?.headers["webhook-timestamp"])).toBe(10);
    for (const call of rig.calls) new Webhook(secret).verify(call.body, call.headers);
  });

  test("after a rotation both secrets verify until the old one ends, then only the new one", async () => {
    const rig = await withReceivers(undefined, { start: Date.now() - 60 * SECOND });
    const { id, secret: old } = await addEndpoint(rig);
    const { secret } = await rig.result("webhooks.endpoint-rotate", { id, keepOldSeconds: 60 });
    expect(secret).not.toBe(old);
    await publish(rig);
    rig.wait(59 * SECOND);
    await rig.drain(deliver);
    rig.wait(SECOND);
    await publish(rig);
    await rig.drain(deliver);

    const [during, after] = rig.calls;
    for (const each of [old, secret]) new Webhook(each).verify(during!.body, during!.headers);
    new Webhook(secret).verify(after!.body, after!.headers);
    expect(() => new Webhook(old).verify(after!.body, after!.headers)).toThrow();
    expect(after?.headers["webhook-signature"]?.split(" ")).toHaveLength(1);
  });

  test("a rotation that keeps the old secret for no time ends it at once", async () => {
    const rig = await withReceivers();
    const { id } = await addEndpoint(rig);
    await rig.result("webhooks.endpoint-rotate", { id, keepOldSeconds: 0 });
    await publish(rig);
    await rig.drain(deliver);
    expect(rig.calls[0]?.headers["webhook-signature"]?.split(" ")).toHaveLength(1);
  });

  test("a secret is 32 random bytes, shown when it is made and nowhere else", async () => {
    const rig = await withReceivers(() => new Response("no", { status: 500 }));
    const { id, secret } = await addEndpoint(rig);
    const rotated = await rig.result("webhooks.endpoint-rotate", { id });
    const eventId = await publish(rig);
    await rig.drain(deliver);
    expect(atob(secret.replace("whsec_", ""))).toHaveLength(32);
    const shown = JSON.stringify([
      rig.logged,
      await log(rig, eventId),
      await rig.result("webhooks.endpoint-list", {}),
      (await rig.db.prepare("SELECT * FROM items").all()).results,
    ]);
    for (const each of [secret, rotated.secret]) expect(shown).not.toContain(each.slice(6));
  });
});
