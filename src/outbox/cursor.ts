/**
 * Where a list of rows goes on: which list it is, the last row's instant, its topic and what tells it from others of
 * that instant. Another list's cursor is refused, since it would leave rows out without a word.
 */
export interface Mark {
  /** ms */
  at: number;
  tail: string;
}

/** Writes a cursor. `list` is a word. */
export function writeCursor(list: string, topic: string, { at, tail }: Mark): string {
  return `${list}.${at}.${topic}~${tail}`;
}

/** Reads a cursor of that list and topic. Null: it is none. */
export function readCursor(list: string, topic: string, text: string): Mark | null {
  const [, word, at = "", of, tail = ""] = /^([a-z]+)\.(\d{1,16})\.([^~]+)~([\s\S]{1,500})$/.exec(text) ?? [];
  return word === list && of === topic ? { at: Number(at), tail } : null;
}
