import { consume, type Incoming, type Verdict } from "../src/outbox/consume.ts";
import { beginInvocation, type Runtime } from "../src/outbox/runtime.ts";

/** Consumes a batch of the items queue: every message is acked or retried, explicitly. */
export function consumeItems(batch: MessageBatch, runtime: Runtime): Promise<void> {
  return consume(beginInvocation(runtime, runtime.ports.clock()), batch.messages.map(incoming));
}

function incoming(message: Message): Incoming {
  return {
    body: message.body,
    settle(verdict: Verdict) {
      if (verdict.kind === "ack") message.ack();
      else message.retry({ delaySeconds: verdict.delaySeconds });
    },
  };
}
