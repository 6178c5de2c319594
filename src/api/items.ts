import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { splitTopicName } from "../core/names.ts";
import { parseJson } from "../core/payload.ts";
import { isoInstant } from "../core/time.ts";
import { type ItemView, itemView } from "../outbox/explain.ts";
import { type Found, findItem, pageOfLetters, pageOfRows, readGoing, readKeyHolder } from "../outbox/find.ts";
import type { Runtime } from "../outbox/runtime.ts";
import { itemId } from "../outbox/seq.ts";
import { listSchema } from "./request.ts";

/** What an operator sees of items and dead letters. */

const word = v.optional(v.pipe(v.string(), v.nonEmpty(), v.maxLength(512)));
const ofTopic = { ...listSchema.entries, module: word, topic: word };
export const itemsQuery = v.strictObject({
  ...ofTopic,
  /** Without it: ready; with a key: whatever it is in. */
  state: v.optional(v.picklist(["ready", "leased", "running", "dead"], "a state is ready, leased, running or dead")),
  key: word,
});
export const lettersQuery = v.strictObject({ ...ofTopic, reason: word });

type Page<View> = { items: View[]; nextCursor: string | null };

/**
 * The topic that a list is about, `<module>.<topic>`. One that is given whole may be of a module that this Worker has
 * lost; of one that is not, exactly one must be meant.
 */
function topicOf(
  runtime: Runtime,
  { module, topic }: { module?: string | undefined; topic?: string | undefined },
): { ok: true; name: string } | Refusal {
  if (module !== undefined && topic !== undefined) return { ok: true, name: `${module}.${topic}` };
  const meant = [...runtime.topics.keys()].filter((name) => {
    const parts = splitTopicName(name);
    return (module ?? parts.module) === parts.module && (topic ?? parts.topic) === parts.topic;
  });
  const [name] = meant;
  if (name === undefined) return refuse("unknown_topic", topic === undefined ? "module" : "topic", "no such topic");
  if (meant.length === 1) return { ok: true, name };
  const field = topic === undefined ? "topic" : "module";
  const which = meant.slice(0, 5).join(", ");
  return refuse("bad_arguments", field, `${field}: say which topic is meant, such as ${which}`);
}

/** A topic that the code has not is one all the same while there are rows of it. */
function unlessUnknown<View>(runtime: Runtime, name: string, page: Page<View>, first: boolean): Page<View> | Refusal {
  if (runtime.topics.has(name) || page.items.length > 0 || !first) return page;
  return refuse("unknown_topic", "topic", `there is no topic ${name}`);
}

/** A page of a topic's items in one state, by when they are due or their lease ends; dead ones, the newest first. */
export async function listItems(
  db: D1Database,
  runtime: Runtime,
  query: v.InferOutput<typeof itemsQuery>,
  now: number,
): Promise<Page<ItemView> | Refusal> {
  const of = topicOf(runtime, query);
  if (!of.ok) return of;
  const { name } = of;
  const { state, key, limit, cursor } = query;
  const going = await readGoing(db, runtime, name);
  const view = (found: Found) => itemView(found, going, runtime, now);
  const first = cursor === undefined;
  if (state === "dead") {
    const page = await pageOfLetters(db, name, { limit, cursor, key, bare: true });
    if (!page.ok) return page;
    const items = page.letters.map((letter) => view({ letter }));
    return unlessUnknown(runtime, name, { items, nextCursor: page.nextCursor }, first);
  }
  if (key !== undefined) {
    if (!first) return refuse("bad_arguments", "cursor", "what is looked for by its key has one page");
    const seq = await readKeyHolder(db, name, key);
    const found = seq === null ? null : await findItem(db, runtime, itemId(name, seq));
    if (found?.ok === false && found.code === "item_moved") return found;
    const items = (found?.ok ? [view(found)] : []).filter((item) => state === undefined || item.state === state);
    return unlessUnknown(runtime, name, { items, nextCursor: null }, first);
  }
  const page = await pageOfRows(db, name, state ?? "ready", { limit, cursor });
  if (!page.ok) return page;
  const items = page.rows.map((row) => view({ row }));
  return unlessUnknown(runtime, name, { items, nextCursor: page.nextCursor }, first);
}

/** One item, alive or dead. */
export async function showItem(db: D1Database, runtime: Runtime, id: string, now: number): Promise<ItemView | Refusal> {
  const found = await findItem(db, runtime, id);
  if (!found.ok) return found;
  const going = await readGoing(db, runtime, "row" in found ? found.row.topic : found.letter.topic);
  return itemView(found, going, runtime, now);
}

/** A page of a topic's dead letters, the newest first. */
export async function listDeadLetters(
  db: D1Database,
  runtime: Runtime,
  query: v.InferOutput<typeof lettersQuery>,
): Promise<Page<object> | Refusal> {
  const of = topicOf(runtime, query);
  if (!of.ok) return of;
  const page = await pageOfLetters(db, of.name, query);
  if (!page.ok) return page;
  const items = page.letters.map(({ id, topic, k, payload, reason, error, attempts, died_at }) => {
    const json = parseJson(payload);
    return {
      id,
      ...splitTopicName(topic),
      key: k,
      // What is no JSON is shown as it was stored.
      payload: json.ok ? json.value : payload,
      reason,
      lastError: error,
      attempts,
      diedAt: isoInstant(died_at),
    };
  });
  const answer = { items, nextCursor: page.nextCursor };
  return unlessUnknown(runtime, of.name, answer, query.cursor === undefined);
}
