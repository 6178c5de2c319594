import { splitTopicName } from "../core/names.ts";
import { errorText } from "../core/text.ts";
import { MINUTE } from "../core/time.ts";
import { begin, type Fence, type LoadedContent, type LoadedRow, loadLeased } from "./items.ts";
import { type ItemMessage, type PumpMessage, parseMessage } from "./message.ts";
import { pumpRetryAfter, stepPump } from "./pump.ts";
import { type Delivery, deliver, exhausted } from "./run.ts";
import { contextFor, type Invocation, instantOf } from "./runtime.ts";
import { type Release, settle } from "./settle.ts";
import { runningLeaseMs, SETTLE_MARGIN_MS, SHARED_CONCURRENCY, type Topic } from "./topic.ts";

/** What the consumer tells the queue of one message. Every message gets one, explicitly. */
export type Verdict = { kind: "ack" } | { kind: "retry"; delaySeconds: number };

/** One message as the consumer gets it. */
export interface Incoming {
  readonly body: unknown;
  /** How often the queue has delivered it, from 1. */
  readonly attempts: number;
  settle(verdict: Verdict): void;
}

/** Wait before a message is tried again when D1 could not be reached before its begin, s: this and up to as much again. */
const RETRY_SECONDS = 10;

/**
 * Messages that run alone run one after another: none is begun later than this in a batch, ms. The platform ends a
 * consumer at 15 minutes, and what it ends counts a delivery.
 */
const ALONE_WALL_MS = 10 * MINUTE;

/** How long the queue keeps a message whose begin D1 did not take, s. Pure. @param random in [0, 1) */
export function retryAfter(random: number): number {
  return RETRY_SECONDS + Math.floor(random * RETRY_SECONDS);
}

interface Parsed {
  incoming: Incoming;
  message: ItemMessage;
  topic: Topic;
}

/**
 * Consumes one batch: steps its pumps, so that the next page is under way while this one runs, then begins the item
 * messages in one statement, runs their items concurrently, settles them in one batch. A message that has lapsed before
 * is taken after all others and with nothing beside it. Answers a verdict for every
 * message; a message whose work cannot be settled is acked all the same, since the lease decides then.
 */
export async function consume(invocation: Invocation, batch: readonly Incoming[]): Promise<void> {
  const { clock } = invocation.runtime.ports;
  const startedAt = clock();
  const together: Parsed[] = [];
  const alone: Parsed[] = [];
  const pumps: { incoming: Incoming; message: PumpMessage; topic: Topic }[] = [];
  for (const incoming of batch) {
    const parsed = read(invocation, incoming);
    if (parsed === null) incoming.settle({ kind: "ack" });
    else if ("pump" in parsed.message) pumps.push({ ...parsed, message: parsed.message });
    else (parsed.message.alone === 1 ? alone : together).push({ ...parsed, message: parsed.message });
  }
  for (const { incoming, message, topic } of pumps) {
    incoming.settle(await consumePump(invocation, topic, message.pump, incoming.attempts));
  }
  if (together.length > 0) await consumeTogether(invocation, together);
  for (const one of alone) {
    if (clock() - startedAt < ALONE_WALL_MS) await consumeTogether(invocation, [one]);
    else one.incoming.settle({ kind: "retry", delaySeconds: RETRY_SECONDS });
  }
}

async function consumePump(
  invocation: Invocation,
  topic: Topic,
  pump: PumpMessage["pump"],
  attempts: number,
): Promise<Verdict> {
  const { log, random } = invocation.runtime.ports;
  try {
    const stepped = await stepPump(invocation, topic, pump);
    return stepped === "later" ? { kind: "retry", delaySeconds: pumpRetryAfter(attempts) } : { kind: "ack" };
  } catch (error) {
    log({ event: "pump_failed", level: "warn", topic: topic.name, error: errorText(error) });
    return { kind: "retry", delaySeconds: retryAfter(random()) };
  }
}

function read({ runtime }: Invocation, incoming: Incoming) {
  const parsed = parseMessage(incoming.body);
  if (!parsed.ok) {
    runtime.ports.log({ event: "message_refused", level: "error", problem: parsed.problem });
    return null;
  }
  const topic = runtime.topics.get(parsed.message.topic);
  if (topic === undefined) {
    runtime.ports.log({ event: "message_refused", level: "error", problem: `unknown topic ${parsed.message.topic}` });
    return null;
  }
  return { incoming, message: parsed.message, topic };
}

async function consumeTogether(invocation: Invocation, messages: readonly Parsed[]): Promise<void> {
  const { ports } = invocation.runtime;
  let rows: Row[];
  try {
    rows = await beginAll(invocation, messages);
  } catch (error) {
    ports.log({ event: "begin_failed", level: "warn", count: messages.length, error: errorText(error) });
    for (const { incoming } of messages) {
      incoming.settle({ kind: "retry", delaySeconds: retryAfter(ports.random()) });
    }
    return;
  }
  try {
    const { deliveries, releases } = await runAll(invocation, rows);
    await settle(invocation, deliveries, releases);
  } catch (error) {
    ports.log({ event: "settle_failed", level: "error", count: rows.length, error: errorText(error) });
  }
  for (const { incoming } of messages) incoming.settle({ kind: "ack" });
}

interface Row {
  row: LoadedRow;
  topic: Topic;
}

/**
 * Moves each message's lead, and reads the other rows of the messages whose lead was there. A message whose lead has
 * moved is a duplicate or stale: nothing of it is touched.
 */
async function beginAll(invocation: Invocation, messages: readonly Parsed[]): Promise<Row[]> {
  const { db, runtime } = invocation;
  const leads = new Map<string, Parsed>();
  const rest: { fence: Fence; of: Parsed }[] = [];
  for (const one of messages) {
    const [lead, ...others] = one.message.items.map((item) => fence(one.message.topic, item));
    const key = lead === undefined ? "" : `${lead.topic} ${lead.seq} ${lead.turn}`;
    if (lead === undefined || leads.has(key)) continue;
    leads.set(key, one);
    for (const other of others) rest.push({ fence: other, of: one });
  }
  const statements = [
    begin(
      db,
      [...leads.values()].map(({ message, topic }) => [
        fence(message.topic, message.items[0] as ItemMessage["items"][number]),
        runningLeaseMs(topic),
      ]),
      instantOf(invocation),
    ),
    ...(rest.length > 0
      ? [
          loadLeased(
            db,
            rest.map(({ fence }) => fence),
          ),
        ]
      : []),
  ];
  const [begun, others] = (await db.batch(statements)) as [D1Result<LoadedRow>, D1Result<LoadedContent>?];
  const rows: Row[] = [];
  const started = new Set<Parsed>();
  for (const row of begun.results) {
    const lead = leads.get(`${row.topic} ${row.seq} ${row.turn - 1}`);
    if (lead === undefined) continue;
    rows.push({ row, topic: lead.topic });
    started.add(lead);
  }
  for (const { n, ...content } of others?.results ?? []) {
    const one = rest[n];
    if (one !== undefined && started.has(one.of)) rows.push({ row: { ...one.fence, ...content }, topic: one.of.topic });
  }
  const stale = messages.length - begun.results.length;
  if (stale > 0) runtime.ports.log({ event: "message_stale", level: "info", count: stale });
  return rows;
}

const fence = (topic: string, [at, seq, turn]: ItemMessage["items"][number]): Fence => ({
  topic,
  lane: 1,
  at,
  seq,
  turn,
});

/**
 * Runs the handlers, six at a time over the whole batch, or as many as a topic says for its own. What has not started
 * when its lease runs short is given back, uncounted.
 */
async function runAll(
  invocation: Invocation,
  rows: readonly Row[],
): Promise<{ deliveries: Delivery[]; releases: Release[] }> {
  const deliveries: Delivery[] = [];
  const releases: Release[] = [];
  const contexts = new Map<string, ReturnType<typeof contextFor>>();
  const runOne = async ({ row, topic }: Row) => {
    const { deadlineMs, maxDeliveries } = topic.options;
    // A lead holds its running lease, the others of a chunk the lease they were sent with: `at` is its end.
    if (row.at - instantOf(invocation) < deadlineMs + SETTLE_MARGIN_MS) {
      releases.push({ topic, row });
      return;
    }
    if (row.deliveries > maxDeliveries) {
      deliveries.push(exhausted(topic, row));
      return;
    }
    const { module } = splitTopicName(topic.name);
    const context = contexts.get(module) ?? contextFor(invocation, module);
    contexts.set(module, context);
    deliveries.push(await deliver(invocation, context, topic, row, deadlineMs));
  };
  const pools = Map.groupBy(rows, ({ topic }) => (topic.options.concurrency === null ? null : topic));
  await Promise.all(
    [...pools].map(([owner, members]) => pooled(members, owner?.options.concurrency ?? SHARED_CONCURRENCY, runOne)),
  );
  return { deliveries, releases };
}

async function pooled<T>(all: readonly T[], width: number, work: (one: T) => Promise<void>): Promise<void> {
  let next = 0;
  const worker = async () => {
    for (let one = all[next++]; one !== undefined; one = all[next++]) await work(one);
  };
  await Promise.all(Array.from({ length: Math.min(width, all.length) }, worker));
}
