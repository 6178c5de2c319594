import type * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { type Mark, readCursor, writeCursor } from "../outbox/cursor.ts";
import type { listSchema } from "./request.ts";

export type PageQuery = v.InferOutput<typeof listSchema>;

/** Where a list goes on: behind the row of this instant and id. */
export type Keyset = { at: number; id: string } | null;

export interface Page<View> {
  items: View[];
  nextCursor: string | null;
}

/**
 * Reads a page by keyset: one row more than asked says whether there is a next one.
 * @param list the list's word, and `of` what it is of: a cursor of another is refused
 */
export async function readPage<Row, View>(
  { limit, cursor }: PageQuery,
  { list, of = "all" }: { list: string; of?: string },
  select: (from: Keyset, limit: number) => D1PreparedStatement,
  mark: (row: Row) => Mark,
  view: (row: Row) => View,
): Promise<Page<View> | Refusal> {
  const from = cursor === undefined ? null : readCursor(list, of, cursor);
  if (cursor !== undefined && from === null) return refuse("bad_arguments", "cursor", "not a cursor of this list");
  const { results } = await select(from === null ? null : { at: from.at, id: from.tail }, limit + 1).all<Row>();
  const shown = results.slice(0, limit);
  const last = shown.at(-1);
  const more = results.length > limit && last !== undefined;
  return { items: shown.map(view), nextCursor: more ? writeCursor(list, of, mark(last)) : null };
}
