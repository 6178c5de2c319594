import type { Budget, Cost } from "../core/budget.ts";
import type { Refusal } from "../core/errors.ts";
import type { Topic } from "./topic.ts";

/** What is put on the outbox. */
export interface NewItem<Payload> {
  payload: Payload;
  /** Unique in its topic while the item lives (and for the topic's `keyWindowMs` after). At most 512 characters. */
  key?: string;
  /** When it is due, ms; now when absent. */
  dueAt?: number;
}

/** What happens to an item whose key is taken: the old one stays, the new one takes its place, or all is refused. */
export type OnKey = "keep" | "replace" | "refuse";

export interface EnqueueOptions {
  /** Default `keep`. */
  onKey?: OnKey;
}

/** What became of one item that was asked for. */
export interface Enqueued {
  /** The id of the item that now stands for it: its own, or the one that held the key. */
  id: string;
  /** True when the key was taken (by a living item, or within the topic's key window). */
  deduped: boolean;
}

/** Statements for the caller's own batch; spread them into it. */
export interface EnqueueStatements extends Array<D1PreparedStatement> {
  /** The ids the items have when no key was taken, in the order asked. */
  readonly ids: readonly string[];
  /**
   * What became of each item, in the order asked.
   * @param results the results of these statements, in their order, cut from the batch's answer.
   */
  answer(results: readonly D1Result[]): Enqueued[];
}

export type EnqueueNowAnswer =
  | {
      ok: true;
      items: Enqueued[];
      /** How many of them were sent to the queue at once; the others are ready for the tick. */
      sent: number;
      /** The results of the caller's own statements, in their order. */
      results: D1Result[];
    }
  | Refusal<"payload_refused" | "key_taken" | "backlog_full" | "unknown_topic">;

/** What a drain did. `stopped` names what ended it early; null = it worked all it was allowed to claim. */
export interface DrainReport {
  /** Items whose delivery was settled, whatever its outcome. */
  processed: number;
  /** Items given back unchanged, at their old due time, uncounted. */
  released: number;
  /** Items whose lease was lost before they were settled: another has them. */
  lost: number;
  stopped: "budget" | "lease" | "failed" | null;
  /** What failed, when `stopped` is `failed`. */
  error: string | null;
}

export interface DrainOptions {
  /** Claim at most this many. */
  limit: number;
  /** What one item costs. Default: the topic's. */
  cost?: Cost;
}

/** An item that is not tried again by itself. */
export interface DeadLetter {
  id: string;
  key: string | null;
  /** As it was stored; text where it is not JSON. */
  payload: unknown;
  /** `attempts_exhausted`, `deliveries_exhausted`, `malformed`, `too_old`, or the handler's own word. */
  reason: string;
  error: string;
  attempts: number;
  /** ms */
  diedAt: number;
}

export interface DeadLettersAsked {
  /** At most so many: 1 to 200. */
  limit: number;
  /** The `nextCursor` of the page before. */
  cursor?: string;
  /** Only those that died of this. */
  reason?: string;
}

/** The outbox as a module sees it. */
export interface Outbox {
  /**
   * Statements that put items on the outbox, for the caller's own `db.batch([...])`: items and business rows commit
   * together or not at all. The next tick finds them.
   * @throws DueworkError `payload_refused` (the field named), `unknown_topic`. In the batch, `key_taken` and
   * `backlog_full` are D1 constraint errors that undo all of it.
   */
  enqueue<Payload>(
    topic: Topic<Payload>,
    items: readonly NewItem<Payload>[],
    options?: EnqueueOptions,
  ): EnqueueStatements;
  /**
   * Runs `batch` (the caller's own statements) and the items in one transaction, then sends what is due: an item
   * starts in well under a second. If the send fails, or the process dies before it, the tick makes good.
   * @throws what D1 throws when the batch fails for a reason of the caller's own.
   */
  enqueueNow<Payload>(
    topic: Topic<Payload>,
    items: readonly NewItem<Payload>[],
    options?: EnqueueOptions & { batch?: readonly D1PreparedStatement[] },
  ): Promise<EnqueueNowAnswer>;
  /**
   * Works due items of a topic here and now: claims min(limit, what the budget carries), spends before each item,
   * stops when refused and releases the rest. Never throws for an item.
   */
  drainWithin(topic: Topic, budget: Budget, options: DrainOptions): Promise<DrainReport>;
  /**
   * A page of a topic's dead letters, the newest first. With `reason` a page reads a bounded number of them and may be
   * short, or empty, with more behind its cursor.
   * @throws DueworkError `unknown_topic`, or `bad_arguments` for a cursor of another list. RangeError for a bad limit.
   */
  deadLetters(topic: Topic, options: DeadLettersAsked): Promise<{ items: DeadLetter[]; nextCursor: string | null }>;
  /** Puts a dead letter back as a new item, once however often it is asked. Null: no such dead letter (any more). */
  replay(deadLetterId: string): Promise<{ id: string } | null>;
}
