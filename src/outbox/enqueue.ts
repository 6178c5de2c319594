import { DueworkError, type Refusal, refuse } from "../core/errors.ts";
import { checkJson, PAYLOAD_MAX_BYTES } from "../core/payload.ts";
import { isConstraint } from "../db/client.ts";
import { type Birth, bear, birthsJson, boundBacklog, type ClaimedRow, inParts, keyHolders, takeKeys } from "./items.ts";
import type { Enqueued, EnqueueNowAnswer, EnqueueOptions, EnqueueStatements, NewItem } from "./outbox.ts";
import { validate } from "./run.ts";
import { type Invocation, instantOf, leaseOf } from "./runtime.ts";
import { createSeqs, itemId } from "./seq.ts";
import { nearBefore, sendOrRelease } from "./settle.ts";
import type { Topic } from "./topic.ts";

/** Longest key, in characters. */
const KEY_MAX = 512;
/** Last instant a due time may have, ms: the largest that a Date holds. */
const LAST_INSTANT = 8_640_000_000_000_000;

type PayloadRefusal = Refusal<"payload_refused" | "unknown_topic">;

/** See `Outbox.enqueue`. */
export function enqueue(
  invocation: Invocation,
  topic: Topic,
  items: readonly NewItem<unknown>[],
  options: EnqueueOptions = {},
): EnqueueStatements {
  const checked = check(invocation, topic, items);
  if (!checked.ok) throw new DueworkError(checked.code, checked.field, checked.message);
  const plan = planOf(invocation, topic, checked.births, options, null);
  return Object.assign([...plan.statements], {
    ids: checked.births.map(({ seq }) => itemId(topic.name, seq)),
    answer: (results: readonly D1Result[]) => answerOf(topic, checked.births, plan, results),
  }) as EnqueueStatements;
}

/** See `Outbox.enqueueNow`. */
export async function enqueueNow(
  invocation: Invocation,
  topic: Topic,
  items: readonly NewItem<unknown>[],
  options: EnqueueOptions & { batch?: readonly D1PreparedStatement[] } = {},
): Promise<EnqueueNowAnswer> {
  const checked = check(invocation, topic, items);
  if (!checked.ok) return checked;
  const batch = options.batch ?? [];
  const plan = planOf(invocation, topic, checked.births, options, nearBefore(instantOf(invocation)));
  const statements = [...batch, ...plan.statements];
  if (statements.length === 0) return { ok: true, items: [], sent: 0, results: [] };
  let results: D1Result[];
  try {
    results = await invocation.db.batch(statements);
  } catch (error) {
    if (isConstraint(error, "item_keys.k")) return refuse("key_taken", "items.key", `a key is taken in ${topic.name}`);
    if (isConstraint(error, "backlog_full")) {
      return refuse("backlog_full", "items", `${topic.name} holds its ${topic.options.maxBacklog} items`);
    }
    throw error;
  }
  const mine = results.slice(batch.length);
  const born = plan.bearers.flatMap((index) => (mine[index] as D1Result<ClaimedRow & { lane: 0 | 1 }>).results);
  const { sent } = await sendOrRelease(
    invocation,
    topic,
    born.filter(({ lane }) => lane === 1),
  );
  return {
    ok: true,
    items: answerOf(topic, checked.births, plan, mine),
    sent: sent.length,
    results: results.slice(0, batch.length),
  };
}

interface Plan {
  statements: D1PreparedStatement[];
  /** Which of the statements bear rows, and which read the holders of keys. */
  bearers: number[];
  readers: number[];
}

function planOf(
  { db, runtime, now }: Invocation,
  topic: Topic,
  births: readonly Birth[],
  { onKey = "keep" }: EnqueueOptions,
  sendBefore: number | null,
): Plan {
  const plan: Plan = { statements: [], bearers: [], readers: [] };
  const { maxBacklog } = topic.options;
  if (births.length > 0 && maxBacklog !== null) {
    plan.statements.push(boundBacklog(db, topic.name, births.length, maxBacklog));
  }
  const parts = inParts(births, ({ payload, key }) => payload.length + (key?.length ?? 0) + 64).map((part) => ({
    json: birthsJson(part),
    keyed: part.some(({ key }) => key !== null),
  }));
  // All keys are taken before any row is born: a later part may take an earlier one's.
  for (const { json, keyed } of parts) {
    if (keyed) plan.statements.push(...takeKeys(db, topic.name, json, onKey, now));
  }
  for (const { json, keyed } of parts) {
    plan.bearers.push(plan.statements.push(bear(db, leaseOf(runtime, topic), json, { keyed, now, sendBefore })) - 1);
    if (keyed) plan.readers.push(plan.statements.push(keyHolders(db, topic.name, json)) - 1);
  }
  return plan;
}

function answerOf(topic: Topic, births: readonly Birth[], plan: Plan, results: readonly D1Result[]): Enqueued[] {
  const holders = new Map(
    plan.readers.flatMap((index) =>
      (results[index] as D1Result<{ asked: string; holder: string }>).results.map(({ asked, holder }) => [
        asked,
        holder,
      ]),
    ),
  );
  return births.map(({ seq }) => {
    const holder = holders.get(seq) ?? seq;
    return { id: itemId(topic.name, holder), deduped: holder !== seq };
  });
}

/** Holds what is asked for to the topic's schema, to JSON and to the limits, before anything is written. */
function check(
  { runtime, now }: Invocation,
  topic: Topic,
  items: readonly NewItem<unknown>[],
): { ok: true; births: Birth[] } | PayloadRefusal {
  if (runtime.topics.get(topic.name) !== topic) {
    return refuse("unknown_topic", "topic", `no module of this Worker has the topic ${topic.name}`);
  }
  const seqOf = createSeqs(runtime.ports.bytes);
  const births: Birth[] = [];
  for (const [index, { payload, key = null, dueAt = now }] of items.entries()) {
    const field = `items[${index}]`;
    if (!Number.isSafeInteger(dueAt) || dueAt < 0 || dueAt > LAST_INSTANT) {
      return refuse("payload_refused", `${field}.dueAt`, "dueAt is whole milliseconds since 1970");
    }
    if (key !== null && !isKey(key)) {
      return refuse("payload_refused", `${field}.key`, `a key is 1 to ${KEY_MAX} well-formed characters without NUL`);
    }
    const json = checkJson(payload, { maxBytes: PAYLOAD_MAX_BYTES });
    if (!json.ok) {
      return refuse("payload_refused", `${field}.payload${json.path.replace(/^\$/, "")}`, json.problem);
    }
    const valid = validate(topic, payload);
    if (!valid.ok) {
      return refuse("payload_refused", `${field}.payload${valid.path}`, valid.problem);
    }
    births.push({ seq: seqOf(dueAt), dueAt, key, payload: json.json });
  }
  return { ok: true, births };
}

function isKey(key: unknown): key is string {
  return (
    typeof key === "string" && key.length > 0 && key.length <= KEY_MAX && key.isWellFormed() && !key.includes("\0")
  );
}
