import { describe, expect, test } from "vitest";
import { deliver } from "../../src/modules/webhooks/deliver.ts";
import { addEndpoint, type Call, deadLetters, log, publish, URL_A, withReceivers } from "./receivers.ts";
import type { Rig } from "./rig.ts";

const SECOND = 1_000;
const HOUR = 3_600 * SECOND;

describe("what a receiver answers", () => {
  test.each([200, 201, 202, 204, 299])("%i: delivered, logged once, the item is gone", async (status) => {
    const rig = await withReceivers(() => new Response(null, { status }));
    const { id } = await addEndpoint(rig);
    const eventId = await publish(rig);
    await rig.drain(deliver);
    expect(await log(rig, eventId)).toMatchObject([
      { endpointId: id, attempt: 1, outcome: "delivered", status, error: null },
    ]);
    expect(await rig.db.prepare("SELECT count(*) AS n FROM items").first("n")).toBe(0);
  });

  test.each([301, 302, 303, 307, 308, 400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504])(
    "%i: tried again later, and a Location is not followed",
    async (status) => {
      const rig = await withReceivers(
        () => new Response("no", { status, headers: { location: "https://elsewhere.example/" } }),
      );
      await addEndpoint(rig);
      const eventId = await publish(rig);
      await rig.drain(deliver);
      rig.wait(5 * SECOND - 1);
      await rig.drain(deliver);
      expect(rig.calls.map(({ url }) => url)).toEqual([URL_A]);
      rig.wait(SECOND);
      await rig.drain(deliver);
      expect(rig.calls.map(({ url }) => url)).toEqual([URL_A, URL_A]);
      expect(await log(rig, eventId)).toMatchObject([
        { attempt: 1, outcome: "retried", status },
        { attempt: 2, outcome: "retried", status },
      ]);
    },
  );

  test("no answer at all is tried again, and logged without a status", async () => {
    const rig = await withReceivers(() => {
      throw new TypeError("connection refused");
    });
    await addEndpoint(rig);
    const eventId = await publish(rig);
    await rig.drain(deliver);
    expect(await log(rig, eventId)).toMatchObject([
      { outcome: "retried", status: null, error: "TypeError: connection refused", response: null },
    ]);
  });

  test.each([
    ["in seconds", () => "600", 600 * SECOND],
    ["as a date", (now: number) => new Date(now + 600 * SECOND).toUTCString(), 600 * SECOND],
    ["of a year, as a day", () => "31536000", 24 * HOUR],
    ["of a second, as the list's own wait", () => "1", 5 * SECOND],
    ["of nonsense, likewise", () => "soon", 5 * SECOND],
  ])("a Retry-After %s holds the next attempt back", async (_, header, held) => {
    const rig: Rig & { calls: Call[] } = await withReceivers(
      () => new Response("slow down", { status: 429, headers: { "retry-after": header(rig.now()) } }),
    );
    await addEndpoint(rig);
    await publish(rig);
    await rig.drain(deliver);
    rig.wait(held - 1);
    await rig.drain(deliver);
    expect(rig.calls).toHaveLength(1);
    rig.wait(held * 0.1 + 2);
    await rig.drain(deliver);
    expect(rig.calls).toHaveLength(2);
  });

  test("410 ends the endpoint in the same commit: this item is dead, and no other is sent", async () => {
    const rig = await withReceivers(() => new Response("gone", { status: 410 }));
    const { id } = await addEndpoint(rig);
    const first = await publish(rig);
    await rig.drain(deliver, 1);
    const list = await rig.result("webhooks.endpoint-list", {});
    expect(list.items).toMatchObject([{ id, state: "gone", endedAt: new Date(rig.now()).toISOString() }]);
    expect(await deadLetters(rig)).toMatchObject([{ reason: "endpoint_gone" }]);
    expect(await log(rig, first)).toMatchObject([{ outcome: "dead", status: 410 }]);
    expect(await rig.result("webhooks.publish", { type: "a", data: 0 })).toMatchObject({ items: 0 });
  });

  test("what was on its way to an endpoint that is gone is dead without a call", async () => {
    const rig = await withReceivers(() => new Response("gone", { status: 410 }));
    await addEndpoint(rig);
    await publish(rig);
    rig.wait(SECOND);
    const second = await publish(rig);
    await rig.drain(deliver, 1);
    await rig.drain(deliver, 1);
    expect(rig.calls).toHaveLength(1);
    expect(await log(rig, second)).toMatchObject([{ outcome: "dead", status: null }]);
    expect(await deadLetters(rig)).toMatchObject([{ reason: "endpoint_gone" }, { reason: "endpoint_gone" }]);
  });

  test("an endpoint that is down for a day loses nothing; then the item is a dead letter that names the failure", async () => {
    const rig = await withReceivers(() => new Response("no", { status: 503 }));
    await addEndpoint(rig);
    const eventId = await publish(rig);
    const start = rig.now();
    let last = start;
    for (let day = 0; day < 3 * 48 && (await deadLetters(rig)).length === 0; day += 1) {
      await rig.drain(deliver);
      last = rig.now();
      rig.wait(HOUR / 2);
    }
    expect(last - start).toBeGreaterThan(24 * HOUR);
    const rows = await log(rig, eventId);
    expect(rows.map(({ attempt }) => attempt)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    expect(rows.map(({ outcome }) => outcome)).toEqual([...Array(10).fill("retried"), "dead"]);
    expect(await deadLetters(rig)).toMatchObject([
      { reason: "attempts_exhausted", error: "answered 503", attempts: 11 },
    ]);
  });

  test("a dead letter is replayed once: the same event, signed anew", async () => {
    let status = 503;
    const rig = await withReceivers(() => new Response(null, { status }));
    await addEndpoint(rig);
    const eventId = await publish(rig);
    for (let hours = 0; hours < 60; hours += 1) {
      await rig.drain(deliver);
      rig.wait(HOUR);
    }
    status = 200;
    const answers = await Promise.all([rig.result("webhooks.replay-dead", {}), rig.result("webhooks.replay-dead", {})]);
    expect(answers.map(({ replayed }) => replayed).sort()).toEqual([0, 1]);
    await rig.drain(deliver);
    expect((await log(rig, eventId)).at(-1)).toMatchObject({ attempt: 1, outcome: "delivered" });
    expect(rig.calls.at(-1)?.headers["webhook-id"]).toBe(eventId);
    expect(rig.calls.at(-1)?.body).toBe(rig.calls[0]?.body);
    expect(await deadLetters(rig)).toEqual([]);
  });

  test("a replay looks past the dead letters of removed endpoints, and leaves them", async () => {
    const rig = await withReceivers();
    const gone = await addEndpoint(rig);
    const here = await addEndpoint(rig);
    await rig.result("webhooks.endpoint-remove", { id: gone.id });
    const bury = rig.db.prepare(
      `WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
       INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
       SELECT 'webhooks.deliver~' || printf('%018d', i), 'webhooks.deliver',
         json_object('endpointId', ?3, 'eventId', 'evt_1', 'type', 'a', 'occurredAt', 1, 'body', '{}'), 'gone', '', 1, 0, 0, i
       FROM n`,
    );
    await rig.db.batch([bury.bind(1, 2, here.id), bury.bind(3, 500, gone.id)]);
    expect(await rig.result("webhooks.replay-dead", {})).toEqual({ replayed: 2 });
    const left = await rig.db.prepare("SELECT count(*) AS n, min(died_at) AS oldest FROM dead_letters").first();
    expect(left).toEqual({ n: 498, oldest: 3 });
  });

  test("an endpoint that was removed is not called, and what was dropped leaves a trace", async () => {
    const rig = await withReceivers();
    const { id } = await addEndpoint(rig);
    const eventId = await publish(rig);
    await rig.result("webhooks.endpoint-remove", { id });
    await rig.drain(deliver);
    expect(rig.calls).toEqual([]);
    expect(await log(rig, eventId)).toMatchObject([{ endpointId: id, outcome: "dropped", status: null }]);
    expect(await deadLetters(rig)).toEqual([]);
  });

  test("a destination that is no longer allowed is refused at the delivery too, without a call", async () => {
    const rig = await withReceivers();
    const { id } = await addEndpoint(rig);
    await rig.db.prepare("UPDATE webhook_endpoints SET url = 'https://127.1/' WHERE id = ?1").bind(id).run();
    const eventId = await publish(rig);
    await rig.drain(deliver);
    expect(rig.calls).toEqual([]);
    expect(await deadLetters(rig)).toMatchObject([{ reason: "destination_refused" }]);
    expect(await log(rig, eventId)).toMatchObject([{ outcome: "dead" }]);
  });
});

describe("a hostile body", () => {
  const stream = (pull: (controller: ReadableStreamDefaultController<Uint8Array>) => void | Promise<void>) =>
    new ReadableStream<Uint8Array>({ pull });
  const bytes = new TextEncoder().encode("x".repeat(1_024));

  test.each([
    ["never ends", () => stream((controller) => controller.enqueue(bytes)), 256],
    ["never begins", () => stream(() => new Promise(() => {})), 0],
    [
      "drips",
      () =>
        stream(async (controller) => {
          await new Promise((resolve) => setTimeout(resolve, 300));
          controller.enqueue(bytes.slice(0, 1));
        }),
      6,
    ],
  ])("that %s holds a delivery for two seconds at most, and its status counts", async (_, body, kept) => {
    const rig = await withReceivers(() => new Response(body()));
    await addEndpoint(rig);
    const eventId = await publish(rig);
    const started = performance.now();
    await rig.drain(deliver);
    expect(performance.now() - started).toBeLessThan(4_000);
    const [row] = await log(rig, eventId);
    expect(row).toMatchObject({ outcome: "delivered", status: 200 });
    expect(Math.abs(row.response.length - kept)).toBeLessThanOrEqual(1);
  });

  test("with NUL, bytes that are no text, half a surrogate pair and HTML is kept as safe text", async () => {
    const body = new Uint8Array([
      0,
      0xff,
      0xed,
      0xa0,
      0x80,
      ...new TextEncoder().encode("<img src=x onerror=alert(1)>'\"--"),
    ]);
    const rig = await withReceivers(() => new Response(body, { status: 500 }));
    await addEndpoint(rig);
    const eventId = await publish(rig);
    await rig.drain(deliver);
    const [row] = await log(rig, eventId);
    expect(row.response).toContain("<img src=x onerror=alert(1)>'\"--");
    expect(row.response).not.toContain("\0");
    expect(row.response.isWellFormed()).toBe(true);
  });

  test("of four-byte characters is cut between two of them", async () => {
    const rig = await withReceivers(() => new Response(`a${"😀".repeat(3_000)}`));
    await addEndpoint(rig);
    const eventId = await publish(rig);
    await rig.drain(deliver);
    const [row] = await log(rig, eventId);
    expect(row.response).toBe(`a${"😀".repeat(127)}`);
  });
});
