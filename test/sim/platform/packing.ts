import type { ClaimedRow } from "../../../src/outbox/items.ts";
import { inBatches, type Packed, pack } from "../../../src/outbox/send.ts";
import type { Topic } from "../../../src/outbox/topic.ts";
import type { Claimed } from "./backlog.ts";

/** Rows of one delay in one call to the queue. */
export interface Piece {
  due: number;
  alone: boolean;
  messages: number;
  rows: number;
}

const AT = Date.UTC(2026, 0, 1);
const remembered = new Map<string, Packed[]>();
const shapes = new Map<string, Shape[][]>();
/** Shapes that are remembered at most. */
const SHAPES = 50_000;

/** Messages and rows of the `of`-th of the claimed rows. */
interface Shape {
  of: number;
  messages: number;
  rows: number;
}

/**
 * What the real code makes of claimed rows: messages, and calls to the queue. It packs rows of one delay by themselves,
 * so that its answer for so many of them is asked once and remembered.
 */
export function calls(topic: Topic, claimed: readonly Claimed[]): Piece[][] {
  const { itemsPerMessage } = topic.options;
  const key = `${itemsPerMessage} ${claimed.map(({ count, lapsed }) => (lapsed ? -count : count)).join(" ")}`;
  let shape = shapes.get(key);
  if (shape === undefined) {
    shape = shapeOf(topic, claimed);
    if (shapes.size >= SHAPES) shapes.clear();
    shapes.set(key, shape);
  }
  return shape.map((batch) =>
    batch.map(({ of, messages, rows }) => {
      const { due, lapsed } = claimed[of] as Claimed;
      return { due, alone: lapsed, messages, rows };
    }),
  );
}

function shapeOf(topic: Topic, claimed: readonly Claimed[]): Shape[][] {
  const parts = claimed.map(({ count, lapsed }) => packed(topic, count, lapsed));
  const ends: number[] = [];
  for (const part of parts) ends.push((ends.at(-1) ?? 0) + part.length);
  let nth = 0;
  let of = 0;
  return inBatches(parts.flat()).map((batch) => {
    const pieces: Shape[] = [];
    for (const message of batch) {
      while (nth >= (ends[of] ?? 0)) of += 1;
      nth += 1;
      let piece = pieces.at(-1);
      if (piece?.of !== of) {
        piece = { of, messages: 0, rows: 0 };
        pieces.push(piece);
      }
      piece.messages += 1;
      piece.rows += message.rows.length;
    }
    return pieces;
  });
}

function packed(topic: Topic, count: number, lapsed: boolean): Packed[] {
  const key = `${topic.options.itemsPerMessage} ${count} ${lapsed}`;
  let messages = remembered.get(key);
  if (messages === undefined) {
    const rows = Array.from(
      { length: count },
      (_, n): ClaimedRow => ({
        at: AT + 300_000,
        seq: String(n).padStart(18, "0"),
        turn: 1,
        due_at: AT,
        deliveries: 0,
        lapses: lapsed ? 1 : 0,
      }),
    );
    messages = pack(topic, rows, AT);
    remembered.set(key, messages);
  }
  return messages;
}
