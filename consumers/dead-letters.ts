import { parseMessage } from "../src/outbox/message.ts";
import type { Runtime } from "../src/outbox/runtime.ts";

/**
 * Consumes a batch of the dead-letter queue. A message is a reference and the row is the truth: its lease lapses, and
 * the tick sends it anew. So each is logged and acked.
 */
export function consumeDeadLetters(batch: MessageBatch, runtime: Runtime): void {
  for (const message of batch.messages) {
    const parsed = parseMessage(message.body);
    runtime.ports.log({
      event: "message_dead",
      level: "warn",
      queue: batch.queue,
      ...(parsed.ok ? { topic: parsed.message.topic } : { problem: parsed.problem }),
    });
    message.ack();
  }
}
