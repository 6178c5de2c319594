import { expect, test } from "vitest";
import { done } from "../../src/index.ts";
import { createWorld, oneTopic } from "./world.ts";

test("an item enqueued now is sent, runs once and is gone", async () => {
  const ran: number[] = [];
  const { module, topic, name } = oneTopic((item) => {
    ran.push((item.payload as { n: number }).n);
    return done();
  });
  const world = createWorld([module]);
  const answer = await world.context().outbox.enqueueNow(topic, [{ payload: { n: 1 } }]);
  expect(answer).toMatchObject({ ok: true, sent: 1 });
  const messages = world.queue.take();
  expect(messages).toHaveLength(1);
  expect(await world.deliver([...messages, ...messages])).toEqual([{ kind: "ack" }, { kind: "ack" }]);
  expect(ran).toEqual([1]);
  expect(await world.rows(name)).toEqual([]);
});

test("a ready item is claimed by the tick and sent", async () => {
  const { module, topic, name } = oneTopic(() => done());
  const world = createWorld([module]);
  const ctx = world.context();
  await ctx.db.batch([...ctx.outbox.enqueue(topic, [{ payload: { n: 1 } }, { payload: { n: 2 } }])]);
  const report = await world.tick();
  expect(report).toMatchObject({ claimed: 2, sent: 2, failed: 0 });
  await world.deliver(world.queue.take());
  expect(await world.rows(name)).toEqual([]);
  expect(world.logs.filter(({ level }) => level !== "info")).toEqual([]);
});
