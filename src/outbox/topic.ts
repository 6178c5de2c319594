import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type Backoff, checkBackoff } from "../core/backoff.ts";
import type { Cost } from "../core/budget.ts";
import { DueworkError } from "../core/errors.ts";
import { isTopicName } from "../core/names.ts";
import type { Outcome } from "../core/outcomes.ts";
import { DAY, HOUR, SECOND } from "../core/time.ts";
import type { Context, ItemContext } from "./context.ts";

/** The way a topic's items go: handed to the Queue consumer, or drained inside the tick. */
export type Path = "queue" | "drain";

/** One item as its handler sees it. */
export interface Item<Payload = unknown> {
  /** Stable over all deliveries: the idempotency key to give the other side. */
  readonly id: string;
  readonly topic: string;
  readonly key: string | null;
  readonly payload: Payload;
  /** Failed deliveries so far: 0 at the first. */
  readonly attempts: number;
  /** When it was due, ms. */
  readonly dueAt: number;
  /** What its age counts from, ms: when it was enqueued, or last answered `nextAt`, and not before it was due then. */
  readonly bornAt: number;
}

/** How one delivery ended, as decided: a `retryAt` beyond the topic's bounds is already a `dead` here. */
export type Settlement<Payload = unknown> = {
  /** A payload that no longer parses is given as stored. */
  readonly item: Item<Payload>;
  /** What the handler gave its outcome as `note`. */
  readonly note: unknown;
} & (
  | { readonly kind: "done" }
  | { readonly kind: "nextAt"; readonly at: number }
  | { readonly kind: "retryAt"; readonly at: number; readonly error: string }
  | { readonly kind: "dead"; readonly reason: string; readonly error: string }
);

/** What a topic may say of itself. Every option has a default: {@link TOPIC_DEFAULTS}. */
export interface TopicOptions<Schema extends StandardSchemaV1 = StandardSchemaV1> {
  /** Checks a payload when it is enqueued and again when it is delivered. Any Standard Schema that answers at once. */
  schema: Schema;
  /**
   * Does one item's work. Runs at least once, so it must be idempotent; `item.id` is the key for that. A throw is a
   * failed attempt.
   */
  handle(
    item: Item<StandardSchemaV1.InferOutput<Schema>>,
    // biome-ignore lint/suspicious/noExplicitAny: each module has its own settings, which its own handlers know
    ctx: ItemContext<any>,
  ): Promise<Outcome | void> | Outcome | void;
  /**
   * Statements that commit together with the settle of these deliveries: a delivery log, a policy for dead letters.
   * Asked once for all of a batch's deliveries, so that a hundred items cost one statement. They run whether or not
   * each lease was still held: what happened, happened.
   */
  onSettle?(
    settled: readonly Settlement<StandardSchemaV1.InferOutput<Schema>>[],
    // biome-ignore lint/suspicious/noExplicitAny: as above
    ctx: Context<any>,
  ): D1PreparedStatement[];
  path?: Path;
  queue?: string;
  leaseMs?: number;
  deadlineMs?: number;
  maxAttempts?: number;
  maxDeliveries?: number;
  backoff?: Backoff;
  cost?: Cost;
  itemsPerMessage?: number;
  concurrency?: number;
  maxAgeMs?: number;
  maxBacklog?: number;
  keyWindowMs?: number;
  settleEvery?: number;
}

/** Defaults of {@link TopicOptions}; `docs/limits.md` gives each its reason. */
export const TOPIC_DEFAULTS = {
  path: "queue",
  /** The binding of the queue that carries the topic. */
  queue: "ITEMS",
  /** Lease of a sent row, ms, beyond its due time: a slow queue is no reason to send again. */
  leaseMs: 300 * SECOND,
  /** Longest a handler may take, ms. */
  deadlineMs: 30 * SECOND,
  /** Failed deliveries until the item is dead. */
  maxAttempts: 10,
  /** Begun and never settled deliveries until the item is dead: what kills its worker must end too. */
  maxDeliveries: 3,
  /** 10 s, 20 s, 40 s … to an hour. */
  backoff: { baseMs: 10 * SECOND, factor: 2, capMs: HOUR, jitter: 0.2 },
  /** What one item costs a drain: one request to the outside, and a statement each for the handler, the settle and its hook. */
  cost: { subrequests: 1, queries: 3 },
  itemsPerMessage: 1,
  /** Handlers at a time; null = all topics of a batch share the platform's six open connections. */
  concurrency: null,
  /** Oldest an item may get, ms; null = no bound. */
  maxAgeMs: null,
  /** Most items a topic may hold; null = no bound (a bound costs as many rows read at each enqueue). */
  maxBacklog: null,
  /** How long a key stays taken after its item settled, ms. */
  keyWindowMs: 0,
  /** Items a drain settles together. 1 = each is settled before the next begins. */
  settleEvery: 1,
} as const satisfies Partial<{ [Name in keyof TopicOptions]: TopicOptions[Name] | null }>;

/** Items six at a time: the platform's simultaneous open connections of one invocation. */
export const SHARED_CONCURRENCY = 6;
/** Kept between a handler's deadline and the end of its lease, ms: for the settle itself. */
export const SETTLE_MARGIN_MS = 10 * SECOND;
/** How much longer than one deadline a running lease is, ms, so that a batch's later handlers may still start. */
export const START_WINDOW_MS = 30 * SECOND;

/** One kind of item, in a module. Made by {@link topic}. */
export interface Topic<Input = unknown> {
  /** `<module>.<topic>` */
  readonly name: string;
  readonly options: Required<Omit<TopicOptions, "onSettle" | "concurrency" | "maxAgeMs" | "maxBacklog">> & {
    onSettle: TopicOptions["onSettle"] | null;
    concurrency: number | null;
    maxAgeMs: number | null;
    maxBacklog: number | null;
  };
  /** Carries the payload's type; never there at run time. */
  readonly "~input"?: Input;
}

/**
 * Declares a topic.
 * @throws DueworkError `bad_topic` naming the option, when one is out of range or two contradict each other.
 */
export function topic<Schema extends StandardSchemaV1>(
  name: string,
  options: TopicOptions<Schema>,
): Topic<StandardSchemaV1.InferInput<Schema>> {
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const all = { onSettle: null, ...TOPIC_DEFAULTS, ...given } as unknown as Topic["options"];
  checkTopic(name, all);
  return { name, options: all };
}

/** How long a begun message's lease is, ms. */
export function runningLeaseMs(topic: Topic): number {
  return topic.options.deadlineMs + START_WINDOW_MS + SETTLE_MARGIN_MS;
}

const MAX_ITEMS_PER_MESSAGE = 100;

function checkTopic(name: string, options: Topic["options"]): void {
  const fail = (field: string, message: string): never => {
    throw new DueworkError("bad_topic", `${name}.${field}`, message);
  };
  if (!isTopicName(name)) fail("name", `a topic is named <module>.<topic> in a-z, 0-9 and -, not "${name}"`);
  if (typeof options.handle !== "function") fail("handle", "a topic needs a handler");
  if (typeof options.schema?.["~standard"]?.validate !== "function") fail("schema", "a topic needs a Standard Schema");
  if (options.path !== "queue" && options.path !== "drain") fail("path", "a path is queue or drain");
  const whole = (field: keyof Topic["options"], least: number, most: number) => {
    const value = options[field];
    if (value === null) return;
    if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most) {
      fail(field, `${field} is a whole number from ${least} to ${most}, not ${String(value)}`);
    }
  };
  whole("leaseMs", SECOND, DAY);
  whole("deadlineMs", 1, 10 * 60 * SECOND);
  whole("maxAttempts", 1, 1_000_000);
  whole("maxDeliveries", 1, 1_000);
  whole("itemsPerMessage", 1, MAX_ITEMS_PER_MESSAGE);
  whole("concurrency", 1, 1_000);
  whole("maxAgeMs", 1, 10_000 * DAY);
  whole("maxBacklog", 1, 1_000_000);
  whole("keyWindowMs", 0, 400 * DAY);
  whole("settleEvery", 1, 1_000);
  const backoff = checkBackoff(options.backoff);
  if (!backoff.ok) fail(backoff.field, backoff.message);
  const overhead = START_WINDOW_MS + SETTLE_MARGIN_MS;
  if (options.deadlineMs + overhead > options.leaseMs) {
    fail(
      "deadlineMs",
      `the handler's deadline and ${overhead} ms to start and to settle must fit in the lease of ${options.leaseMs} ms`,
    );
  }
}
