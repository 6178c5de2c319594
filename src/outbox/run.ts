import { dead, done, type Outcome, readOutcome, retryLater } from "../core/outcomes.ts";
import { issuePath, parseJson } from "../core/payload.ts";
import { errorText } from "../core/text.ts";
import { meterFetch } from "../db/network.ts";
import type { Context, ItemContext } from "./context.ts";
import type { LoadedRow } from "./items.ts";
import { type Invocation, instantOf } from "./runtime.ts";
import { itemId } from "./seq.ts";
import type { Item, Topic } from "./topic.ts";

/** A delivery's outcome before the topic's bounds are held against it. */
export interface Delivery {
  row: LoadedRow;
  topic: Topic;
  item: Item;
  outcome: Outcome;
}

/**
 * Delivers one begun row to its handler and answers how it ended. Never throws, and never takes longer than
 * `deadlineMs`: at the deadline the signal is aborted, the delivery is a failure, and whatever the handler still does
 * changes nothing.
 */
export async function deliver(
  invocation: Invocation,
  context: Context,
  topic: Topic,
  row: LoadedRow,
  deadlineMs: number,
): Promise<Delivery> {
  const now = instantOf(invocation);
  const stored = read(topic, row);
  const item = itemOf(row, stored.payload);
  const end = (outcome: Outcome): Delivery => ({ row, topic, item, outcome });
  // A newer item has taken its key: the row goes without a word to the module.
  if (row.superseded) return end(done());
  if (stored.problem !== null) return end(dead("malformed", stored.problem));
  const { maxAgeMs } = topic.options;
  if (maxAgeMs !== null && now - row.born_at > maxAgeMs) {
    return end(dead("too_old", `older than ${maxAgeMs} ms`));
  }
  return end(await handle(invocation, context, topic, item, deadlineMs));
}

/** The dead letter of a row that was begun too often without ever being settled: whatever it is, it kills its worker. */
export function exhausted(topic: Topic, row: LoadedRow): Delivery {
  const outcome = row.superseded
    ? done()
    : dead("deliveries_exhausted", "its deliveries were begun and none of them was settled");
  return { row, topic, item: itemOf(row, row.payload), outcome };
}

function itemOf(row: LoadedRow, payload: unknown): Item {
  return {
    id: itemId(row.topic, row.seq),
    topic: row.topic,
    key: row.k,
    payload,
    attempts: row.attempts,
    dueAt: row.due_at,
    bornAt: row.born_at,
  };
}

async function handle(
  { runtime, meter }: Invocation,
  context: Context,
  topic: Topic,
  item: Item,
  deadlineMs: number,
): Promise<Outcome> {
  // Made when first asked for, and no timer for a handler that answers at once: a hundred of those cost next to nothing.
  let cut: AbortController | null = null;
  const cutter = () => {
    cut ??= new AbortController();
    return cut;
  };
  const ctx: ItemContext = {
    ...context,
    fetch: (input, init) => meterFetch(runtime.ports.fetch, meter, cutter().signal)(input, init),
    get signal() {
      return cutter().signal;
    },
    deadline: runtime.ports.clock() + deadlineMs,
  };
  try {
    const work = topic.options.handle(item, ctx);
    const answer = isPromise(work) ? await within(deadlineMs, work, () => cutter().abort(new Error(PASSED))) : work;
    if (answer === LATE) return retryLater(`no answer within ${deadlineMs} ms`);
    const read = readOutcome(answer);
    return read.ok ? read.outcome : retryLater(read.problem);
  } catch (error) {
    return retryLater(errorText(error));
  }
}

const PASSED = "the handler's deadline passed";

/** What the work answers, or at the deadline `LATE`, once it was told. */
async function within(ms: number, work: Promise<unknown>, tell: () => void): Promise<unknown> {
  const late = Promise.withResolvers<typeof LATE>();
  const timer = setTimeout(() => {
    tell();
    late.resolve(LATE);
  }, ms);
  try {
    return await Promise.race([work, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

const LATE = Symbol("late");

function isPromise(value: unknown): value is Promise<unknown> {
  return typeof (value as { then?: unknown } | null | undefined)?.then === "function";
}

/** A stored payload held to its schema: it may be of an older version, or written by hand. */
function read(topic: Topic, row: LoadedRow): { payload: unknown; problem: string | null } {
  const json = parseJson(row.payload);
  if (!json.ok) return { payload: row.payload, problem: json.problem };
  const checked = validate(topic, json.value);
  return checked.ok ? { payload: checked.value, problem: null } : { payload: json.value, problem: checked.problem };
}

/** Holds a value to a topic's schema. The path is written `.items[3].at`, and the problem names it. A schema that answers later is a problem too. */
export function validate(
  topic: Topic,
  value: unknown,
): { ok: true; value: unknown } | { ok: false; path: string; problem: string } {
  try {
    const result = topic.options.schema["~standard"].validate(value);
    if (isPromise(result)) {
      result.then(undefined, () => {});
      return { ok: false, path: "", problem: "the topic's schema is asynchronous" };
    }
    const answer = result as Exclude<typeof result, Promise<unknown>>;
    if (!answer.issues) return { ok: true, value: answer.value };
    const [issue] = answer.issues;
    const path = issuePath(issue?.path).slice(1);
    return { ok: false, path, problem: path === "" ? `${issue?.message}` : `$${path}: ${issue?.message}` };
  } catch (error) {
    return { ok: false, path: "", problem: errorText(error) };
  }
}
