import { isTopicName } from "../core/names.ts";

const DUE_DIGITS = 8;
const TAIL_DIGITS = 10;
/** 36^10: two rows of one topic and one due instant meet with odds of about one in 10^15. */
const TAILS = 36 ** TAIL_DIGITS;
/** Last instant that eight base-36 digits hold (the year 2059). A later due time sorts as this one. */
const LAST_DUE = 36 ** DUE_DIGITS - 1;

/**
 * Names for the rows of one call, 18 characters each: eight for the instant they are first due, ten for a random tail
 * that counts up inside the call, so that rows of one instant keep the order they were given in.
 */
export function createSeqs(bytes: (length: number) => Uint8Array): (dueAt: number) => string {
  let tail = bytes(6).reduce((sum, byte) => sum * 256 + byte, 0) % TAILS;
  return (dueAt) => {
    tail = (tail + 1) % TAILS;
    return digits(Math.min(dueAt, LAST_DUE), DUE_DIGITS) + digits(tail, TAIL_DIGITS);
  };
}

const digits = (value: number, length: number) => value.toString(36).padStart(length, "0");

/** An item's public id. `~` needs no escaping in a URL and stands in no topic name. */
export function itemId(topic: string, seq: string): string {
  return `${topic}~${seq}`;
}

/** An id, or an id with the place that a list showed: where the row stood then. */
export interface ParsedId {
  id: string;
  topic: string;
  seq: string;
  /** When it was first due, ms. */
  dueAt: number;
  /** Its lane and its instant; null = the text is the bare id. */
  hint: { lane: number; at: number } | null;
}

const PLACE = /^([^~]+)~([0-9a-z]{18})(?:~([012])\.(\d{1,16}))?$/;

/** Reads an item's id, or its place. Null: it is neither. */
export function parseItemId(text: string): ParsedId | null {
  const [, topic = "", seq = "", lane, at] = PLACE.exec(text) ?? [];
  if (!isTopicName(topic)) return null;
  const hint = lane === undefined ? null : { lane: Number(lane), at: Number(at) };
  return { id: itemId(topic, seq), topic, seq, dueAt: Number.parseInt(seq.slice(0, DUE_DIGITS), 36), hint };
}

/** An item's id with where its row stands: it is found there at once, as long as it has not moved. */
export function itemPlace(row: { topic: string; lane: number; at: number; seq: string }): string {
  return `${itemId(row.topic, row.seq)}~${row.lane}.${row.at}`;
}
