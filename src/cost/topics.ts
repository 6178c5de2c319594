import { costOf, noUsage, plus } from "./cost.ts";
import { type Measured, PATHS, shared } from "./envelope.ts";
import type { Usage } from "./prices.ts";

/** What one tick's record says of a topic; see `src/tick/record.ts`. */
export interface TopicFigures {
  topic: string;
  sent: number;
  messages: number;
  pumped: number;
  drained: number;
  rowsRead: number;
  rowsWritten: number;
}

export interface TopicCost {
  topic: string;
  /** Items that ticks sent, pumps sent and drains ended. What `enqueueNow` sent at once is in no tick's record. */
  items: number;
  /** As the ticks counted it. */
  measured: Usage;
  /** What the same items use elsewhere, their birth and the consumer, by the envelope. */
  byEnvelope: Usage;
  /** Of both, every unit paid: free allowances are the account's. */
  dollars: number;
}

/** An insert: one row. What a drain's items used before the tick. */
const BIRTH: Measured = { rowsWritten: 1, rowsRead: 1 };
const BATCH = 100;

/**
 * What each topic used and cost over these records; dearest first. Divide by the days they span.
 * @param records the `topics` of each tick's report
 */
export function topicCosts(records: readonly (readonly TopicFigures[])[]): TopicCost[] {
  const topics = Map.groupBy(records.flat(), ({ topic }) => topic);
  return [...topics]
    .map(([topic, all]) => costOfTopic(topic, all))
    .sort((a, b) => b.dollars - a.dollars || (a.topic < b.topic ? -1 : 1));
}

function costOfTopic(topic: string, all: readonly TopicFigures[]): TopicCost {
  const sum = (name: Exclude<keyof TopicFigures, "topic">) => all.reduce((total, one) => total + one[name], 0);
  const [sent, messages, pumped, drained] = [sum("sent"), sum("messages"), sum("pumped"), sum("drained")];
  // How many went in a message is known of those that ticks sent, and taken to be so of the others.
  const each = messages > 0 ? sent / messages : 1;
  const now = shared(PATHS["enqueued now, by the queue"], PATHS["enqueued now, by the queue, ten a message"], each);
  const later = shared(PATHS["due later, by the queue"], PATHS["due later, by the queue, ten a message"], each);
  const operations = 3;
  const measured = {
    ...noUsage(),
    rowsRead: sum("rowsRead"),
    rowsWritten: sum("rowsWritten"),
    queueOperations: messages * operations,
  };
  // The claim of what a tick sent is measured, and what is left of its life is that of an item enqueued now.
  const rest: [Measured, number][] = [
    [now, sent],
    [later, pumped],
    [BIRTH, drained],
  ];
  const carried = messages + pumped / each;
  const byEnvelope = {
    ...noUsage(),
    requests: carried / BATCH,
    queueOperations: (pumped / each) * operations,
    rowsRead: rest.reduce((total, [one, items]) => total + one.rowsRead * items, 0),
    rowsWritten: rest.reduce((total, [one, items]) => total + one.rowsWritten * items, 0),
  };
  const { dollars } = costOf(plus(measured, byEnvelope), { allowances: false });
  return { topic, items: sent + pumped + drained, measured, byEnvelope, dollars };
}
