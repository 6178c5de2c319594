import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { ClaimedRow } from "./items.ts";
import { itemMessage, MESSAGE_BATCH, MESSAGE_BATCH_BYTES } from "./message.ts";
import { type Invocation, instantOf } from "./runtime.ts";
import type { Topic } from "./topic.ts";

/** A queue that takes longer to accept a batch is treated as refusing it. The send may still land: keys move first. */
export const SEND_DEADLINE_MS = 5 * SECOND;
/** Longest delay the platform takes, s: 24 h. Nothing here comes near it. */
const MAX_DELAY_SECONDS = 86_400;
/** Sends under way at once: the platform's open connections, one kept for D1. */
const CONCURRENT_SENDS = 5;

/** A row whose message the queue has not taken: it may land all the same, and then its lead is what begins it. */
export interface Unsent {
  row: ClaimedRow;
  lead: ClaimedRow;
}

export interface Sent {
  /** Rows whose message the queue took. */
  sent: ClaimedRow[];
  /** Rows whose message it refused, or did not take in time, each message's lead last. */
  unsent: Unsent[];
  error: string | null;
  /** Messages waiting in the queue, when it says so. */
  backlog: number | null;
  /** Messages that the queue took, and calls that were made to it. */
  messages: number;
  calls: number;
}

/**
 * Sends leased rows (lane 1): as many to a message as the topic says, delayed to the second they are due. A row that
 * has lapsed before travels alone. After the first refusal nothing more is sent.
 */
export async function sendLeased(invocation: Invocation, topic: Topic, rows: readonly ClaimedRow[]): Promise<Sent> {
  const queue = invocation.runtime.queue(topic);
  const sent: Sent = { sent: [], unsent: [], error: null, backlog: null, messages: 0, calls: 0 };
  if (queue === null) return { ...sent, unsent: rows.map((row) => ({ row, lead: row })), error: "no queue is bound" };
  const batches = inBatches(pack(topic, rows, instantOf(invocation)));
  for (let first = 0; first < batches.length; first += CONCURRENT_SENDS) {
    const group = batches.slice(first, first + CONCURRENT_SENDS);
    if (sent.error !== null) {
      for (const batch of group) sent.unsent.push(...unsentOf(batch));
      continue;
    }
    await Promise.all(group.map((batch) => sendBatch(invocation, queue, batch, sent)));
  }
  return sent;
}

export interface Packed {
  rows: ClaimedRow[];
  message: MessageSendRequest;
  bytes: number;
}

async function sendBatch(invocation: Invocation, queue: Queue, batch: Packed[], sent: Sent): Promise<void> {
  invocation.meter.subrequests += 1;
  sent.calls += 1;
  try {
    const answer = await withDeadline(
      queue.sendBatch(batch.map(({ message }) => message)),
      SEND_DEADLINE_MS,
      "the queue",
    );
    sent.sent.push(...rowsOf(batch));
    sent.messages += batch.length;
    sent.backlog = answer?.metadata?.metrics?.backlogCount ?? sent.backlog;
  } catch (error) {
    sent.unsent.push(...unsentOf(batch));
    sent.error = errorText(error);
  }
}

/** The lead comes last: should they be given back in parts, it stands until the others are. */
const unsentOf = (batch: readonly Packed[]) =>
  batch.flatMap(({ rows }) => rows.toReversed().map((row): Unsent => ({ row, lead: rows[0] ?? row })));
const rowsOf = (batch: readonly Packed[]) => batch.flatMap(({ rows }) => rows);

/** Rows into messages: grouped by delay, since a delay belongs to a message. Pure. */
export function pack(topic: Topic, rows: readonly ClaimedRow[], now: number): Packed[] {
  const open = new Map<number, ClaimedRow[]>();
  const groups: [number, ClaimedRow[]][] = [];
  // Oldest first: RETURNING keeps no order.
  for (const row of [...rows].sort((a, b) => a.due_at - b.due_at || (a.seq < b.seq ? -1 : 1))) {
    const delay = Math.min(Math.max(Math.ceil((row.due_at - now) / SECOND), 0), MAX_DELAY_SECONDS);
    if (row.lapses > 0) {
      groups.push([delay, [row]]);
      continue;
    }
    const group = open.get(delay);
    if (group !== undefined && group.length < topic.options.itemsPerMessage) {
      group.push(row);
    } else {
      const fresh = [row];
      open.set(delay, fresh);
      groups.push([delay, fresh]);
    }
  }
  return groups.map(([delaySeconds, group]) => {
    const body = itemMessage(topic.name, group);
    const message = { body, contentType: "json" as const, ...(delaySeconds > 0 && { delaySeconds }) };
    return { rows: group, message, bytes: JSON.stringify(body).length };
  });
}

/** Messages into calls: at most 100 and 256 KB each. Pure. */
export function inBatches(messages: readonly Packed[]): Packed[][] {
  const batches: Packed[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const message of messages) {
    const last = batches.at(-1);
    if (last === undefined || last.length >= MESSAGE_BATCH || bytes + message.bytes > MESSAGE_BATCH_BYTES) {
      batches.push([message]);
      bytes = message.bytes;
    } else {
      last.push(message);
      bytes += message.bytes;
    }
  }
  return batches;
}
