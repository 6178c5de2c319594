import { Webhook } from "standardwebhooks";
import { expect, test } from "vitest";
import { type Asked, createOutside } from "./outside.ts";

const SECRET = `whsec_${btoa("a secret of thirty-two bytes....")}`;
const SETTINGS = { WEBHOOK_CHANNELS: JSON.stringify({ ops: { url: "https://ops.example/hook", secret: SECRET } }) };
const CHANNEL = "webhook:ops";
const RESULT = { kind: "result" as const, data: { run: "run-1", command: "item.retry", status: "succeeded" } };

async function withReceiver(answer: () => Response | Promise<Response> = () => new Response("ok")) {
  const calls: Asked[] = [];
  const world = await createOutside(
    SETTINGS,
    (call) => {
      calls.push(call);
      return answer();
    },
    { start: Date.now() },
  );
  return { calls, world };
}

test("a run's result is what the public Standard Webhooks verifier accepts, under the message's id", async () => {
  const { calls, world } = await withReceiver();
  const [id] = await world.say(CHANNEL, CHANNEL, ["item retry: succeeded"], RESULT);
  await world.settle();
  const [call] = calls;
  expect(call?.url.href).toBe("https://ops.example/hook");
  expect(call?.headers["webhook-id"]).toBe(id);
  expect(new Webhook(SECRET).verify(call!.body, call!.headers)).toEqual({
    type: "run.ended",
    timestamp: expect.any(String),
    channel: CHANNEL,
    run: RESULT.data,
    text: "item retry: succeeded",
  });
  expect(() => new Webhook(SECRET).verify(`${call!.body} `, call!.headers)).toThrow();
  expect(await world.posted()).toEqual([{ id }]);
});

test("a result goes out although no thread holds it, and once however often it is committed", async () => {
  const { calls, world } = await withReceiver();
  const [id] = await world.say(CHANNEL, CHANNEL, ["done"], RESULT);
  await world.db.prepare("DELETE FROM threads").run();
  await world.settle();
  await world.channels.commit(world.invocation(), [], [{ channel: CHANNEL, message: id! }]);
  await world.settle();
  expect(calls).toHaveLength(1);
});

test.each([
  ["answers 500", () => new Response("no", { status: 500 })],
  ["redirects", () => new Response("", { status: 307, headers: { location: "https://elsewhere.example/" } })],
  ["hangs", () => new Promise<Response>(() => {})],
])("a receiver that %s is tried again, with the same body and id", async (_, first) => {
  let answered = 0;
  const { calls, world } = await withReceiver(() => {
    answered += 1;
    return answered === 1 ? first() : new Response("ok");
  });
  await world.say(CHANNEL, CHANNEL, ["done"], RESULT);
  await world.deliver();
  expect(await world.items()).toMatchObject([{ attempts: 1 }]);
  expect(await world.posted()).toEqual([]);
  await world.settle();
  expect(calls).toHaveLength(2);
  expect(calls[1]?.body).toBe(calls[0]?.body);
  expect(calls[1]?.headers["webhook-id"]).toBe(calls[0]?.headers["webhook-id"]);
  expect(calls.every(({ url }) => url.hostname === "ops.example")).toBe(true);
});

test("Retry-After is heeded", async () => {
  const { world } = await withReceiver(() => new Response("", { status: 503, headers: { "retry-after": "600" } }));
  await world.say(CHANNEL, CHANNEL, ["done"], RESULT);
  await world.deliver();
  expect(await world.items()).toMatchObject([{ attempts: 1, due_at: world.now() + 600_000 }]);
});

test("only run results go there, and no thread can be opened", async () => {
  const { calls, world } = await withReceiver();
  for (const kind of ["lead", "text", "receipt", "refusal", "offer"] as const) {
    await world.say(CHANNEL, CHANNEL, [kind], { kind });
  }
  await world.settle();
  expect(calls).toEqual([]);
  expect([await world.items(), await world.dead()]).toEqual([[], []]);
  expect(await world.channels.canOpen(world.invocation(), CHANNEL)).toMatchObject({
    ok: false,
    code: "channel_cannot_open",
  });
});
