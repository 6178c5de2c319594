import { parseSlotMessage } from "../src/jobs/message.ts";
import type { ActiveJob } from "../src/jobs/selection.ts";
import { consumeSlot } from "../src/jobs/work.ts";
import { consume, type Incoming, type Verdict } from "../src/outbox/consume.ts";
import { beginInvocation, type Runtime } from "../src/outbox/runtime.ts";

/** Consumes a batch of the items queue, items first, then job slots: every message is acked or retried, explicitly. */
export async function consumeItems(batch: MessageBatch, runtime: Runtime, jobs: readonly ActiveJob[]): Promise<void> {
  const invocation = beginInvocation(runtime, runtime.ports.clock());
  const all = batch.messages.map((message) => ({ incoming: incoming(message), slot: parseSlotMessage(message.body) }));
  await consume(
    invocation,
    all.flatMap(({ incoming, slot }) => (slot === null ? [incoming] : [])),
  );
  for (const { incoming, slot } of all) {
    if (slot !== null) incoming.settle(await consumeSlot(invocation, jobs, slot));
  }
}

function incoming(message: Message): Incoming {
  return {
    body: message.body,
    attempts: message.attempts,
    settle(verdict: Verdict) {
      if (verdict.kind === "ack") message.ack();
      else message.retry({ delaySeconds: verdict.delaySeconds });
    },
  };
}
