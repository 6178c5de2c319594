import { retryInstant } from "../core/backoff.ts";
import { unreachable } from "../core/errors.ts";
import { splitTopicName } from "../core/names.ts";
import { errorText, safeText } from "../core/text.ts";
import { MINUTE } from "../core/time.ts";
import { classifyDbError } from "../db/client.ts";
import { bury } from "./dead-letters.ts";
import { type ClaimedRow, type Fence, finish, freeKeys, inParts, type LoadedRow, type Move, move } from "./items.ts";
import type { Delivery } from "./run.ts";
import { contextFor, type Invocation, instantOf, leaseOf } from "./runtime.ts";
import { type Sent, sendLeased } from "./send.ts";
import type { Settlement, Topic } from "./topic.ts";

/**
 * The first instant that can wait for the tick: the start of the minute after next. What is due before it would start
 * up to a minute late if it waited, so it is born or moved leased, and sent with its delay at once.
 */
export function nearBefore(now: number): number {
  return (Math.floor(now / MINUTE) + 2) * MINUTE;
}

/** A lease to give back unchanged. */
export interface Release {
  topic: Topic;
  row: ClaimedRow & { lane: 1 | 2 };
  /** See {@link Move.lead}. */
  lead?: ClaimedRow;
}

/** What a settle changed. A row whose lease was lost is counted, and nothing of it changed. */
export interface Settled {
  settled: number;
  released: number;
  lost: number;
}

/** A settled delivery: what it became, and the row it is about. */
interface Decided {
  row: LoadedRow;
  topic: Topic;
  settlement: Settlement;
}

/**
 * Holds an outcome to its topic's bounds: a failure beyond the last attempt is a dead letter. Pure.
 * @param random in [0, 1), for the backoff's jitter
 */
export function decide({ row, topic, item, outcome }: Delivery, now: number, random: number): Decided {
  const { maxAttempts, backoff } = topic.options;
  const settled = (rest: Record<string, unknown>) => ({
    row,
    topic,
    settlement: { item, note: outcome.note, ...rest } as Settlement,
  });
  switch (outcome.kind) {
    case "done":
      return settled({ kind: "done" });
    case "nextAt":
      return settled({ kind: "nextAt", at: Math.max(outcome.at, now) });
    case "dead":
      return settled({ kind: "dead", reason: safeText(outcome.reason, 100), error: safeText(outcome.error) });
    case "retryAt": {
      const error = safeText(outcome.error);
      const attempt = row.attempts + 1;
      if (attempt >= maxAttempts) return settled({ kind: "dead", reason: "attempts_exhausted", error });
      const at = outcome.at ?? retryInstant({ backoff, attempt, now, random, notBefore: outcome.notBefore });
      return settled({ kind: "retryAt", at: Math.max(at, now), error });
    }
    default:
      return unreachable(outcome);
  }
}

/**
 * Settles deliveries and gives leases back, in one `batch()`, then sends what was moved to an instant so near that the
 * tick would be late for it.
 *
 * Without `resend` all of it waits for the tick.
 *
 * When a statement of a module's own `onSettle` breaks the batch, the settle is made again without any module's
 * statements: a wrong hook may lose its log, never the outcome.
 * @throws what D1 throws when the settle itself cannot be written. The leases then decide.
 */
export async function settle(
  invocation: Invocation,
  deliveries: readonly Delivery[],
  releases: readonly Release[] = [],
  options: { resend: boolean } = { resend: true },
): Promise<Settled> {
  const { ports } = invocation.runtime;
  const now = instantOf(invocation);
  const decided = deliveries.map((delivery) => decide(delivery, now, ports.random()));
  const moves = [
    ...decided.flatMap((one) => moveOf(one, options.resend ? nearBefore(now) : 0)),
    ...releases.map((one) => releaseOf(one, options.resend)),
  ];
  const ended = decided.filter(({ settlement }) => settlement.kind === "done" || settlement.kind === "dead");
  const corpses = decided.filter(({ settlement }) => settlement.kind === "dead");

  const moving = inParts(moves, ({ move }) => charsOf(move.error)).map((part) =>
    move(
      invocation.db,
      part.map(({ topic, ...one }) => ({ ...one, lease: leaseOf(invocation.runtime, topic) })),
      now,
    ),
  );
  const own = [
    ...keysOf(invocation, ended, now),
    ...inParts(corpses.map(corpseOf), ({ error }) => charsOf(error)).map((part) => bury(invocation.db, part, now)),
    ...(ended.length > 0
      ? [
          finish(
            invocation.db,
            ended.map(({ row }) => fenceOf(row)),
          ),
        ]
      : []),
    ...moving,
  ];
  if (own.length === 0) return { settled: 0, released: 0, lost: 0 };
  const hooks = hooksOf(invocation, decided);
  let results: D1Result[];
  try {
    results = await invocation.db.batch([...own, ...[...hooks.values()].flat()]);
  } catch (error) {
    const [hooked, ...others] = hooks.keys();
    if (hooked === undefined || classifyDbError(error) !== "broken") throw error;
    if (others.length > 0) return settleApart(invocation, deliveries, releases, options);
    hookFailed(invocation, hooked, error);
    results = await invocation.db.batch(own);
  }

  const firstMove = own.length - moving.length;
  const finished = ended.length > 0 ? (results[firstMove - 1]?.meta.changes ?? 0) : 0;
  const moved = (results.slice(firstMove, own.length) as D1Result<MovedRow>[]).flatMap(({ results }) => results);
  await sendMoved(invocation, moved);
  const given = new Set(releases.map(({ topic, row }) => `${topic.name} ${row.seq}`));
  const released = moved.filter(({ topic, seq }) => given.has(`${topic} ${seq}`)).length;
  const settled = finished + moved.length - released;
  const lost = decided.length + releases.length - settled - released;
  if (lost > 0) ports.log({ event: "lease_lost", level: "warn", count: lost });
  return { settled, released, lost };
}

/** Characters that a row takes in a statement's JSON, with the text of its failure. */
const charsOf = (error: string | null) => 200 + JSON.stringify(error).length;

interface MovedRow extends ClaimedRow {
  topic: string;
  lane: 0 | 1;
}

export function fenceOf(row: ClaimedRow & { topic: string; lane: 1 | 2 }): Fence {
  return { topic: row.topic, lane: row.lane, at: row.at, seq: row.seq, turn: row.turn };
}

function moveOf({ row, topic, settlement }: Decided, sendBefore: number): { move: Move; topic: Topic }[] {
  if (settlement.kind !== "nextAt" && settlement.kind !== "retryAt") return [];
  const { kind, at: dueAt } = settlement;
  const error = kind === "retryAt" ? settlement.error : null;
  return [{ topic, move: { fence: fenceOf(row), kind, dueAt, error, near: dueAt < sendBefore, lead: null } }];
}

function releaseOf({ topic, row, lead }: Release, near: boolean): { move: Move; topic: Topic } {
  const fence = fenceOf({ ...row, topic: topic.name });
  return { topic, move: { fence, kind: "release", dueAt: row.due_at, error: null, near, lead: lead ?? null } };
}

function keysOf(invocation: Invocation, ended: readonly Decided[], now: number): D1PreparedStatement[] {
  const keyed = ended.filter(({ row }) => row.k !== null);
  if (keyed.length === 0) return [];
  return freeKeys(
    invocation.db,
    keyed.map(({ row, topic, settlement }) => {
      const { keyWindowMs } = topic.options;
      return [fenceOf(row), keyWindowMs > 0 && settlement.kind === "done" ? now + keyWindowMs : null];
    }),
  );
}

function corpseOf({ row, settlement }: Decided) {
  const { reason, error } = settlement as Extract<Settlement, { kind: "dead" }>;
  return { fence: fenceOf(row), reason, error, counted: reason === "attempts_exhausted" };
}

/** The statements that each topic wants committed with its settlements. A hook that fails is logged and left out. */
function hooksOf(invocation: Invocation, decided: readonly Decided[]): Map<Topic, D1PreparedStatement[]> {
  const heard = decided.filter(({ row, topic }) => topic.options.onSettle !== null && !row.superseded);
  const hooks = new Map<Topic, D1PreparedStatement[]>();
  for (const [topic, all] of Map.groupBy(heard, ({ topic }) => topic)) {
    try {
      const context = contextFor(invocation, splitTopicName(topic.name).module);
      const settled = all.map(({ settlement }) => settlement);
      const statements: unknown = topic.options.onSettle?.(settled, context);
      if (!Array.isArray(statements) || !statements.every(isStatement)) throw new Error("it answered no statements");
      if (statements.length > 0) hooks.set(topic, statements);
    } catch (error) {
      hookFailed(invocation, topic, error);
    }
  }
  return hooks;
}

function isStatement(value: unknown): value is D1PreparedStatement {
  return typeof (value as D1PreparedStatement | null | undefined)?.bind === "function";
}

function hookFailed({ runtime }: Invocation, topic: Topic, error: unknown): void {
  runtime.ports.log({ event: "hook_failed", level: "error", topic: topic.name, error: errorText(error) });
}

/** Settles each topic by itself: of several topics' hooks one is wrong, and it may lose no other's. */
async function settleApart(
  invocation: Invocation,
  deliveries: readonly Delivery[],
  releases: readonly Release[],
  options: { resend: boolean },
): Promise<Settled> {
  const sum: Settled = { settled: 0, released: 0, lost: 0 };
  for (const topic of new Set([...deliveries, ...releases].map((one) => one.topic))) {
    const part = await settle(
      invocation,
      deliveries.filter((one) => one.topic === topic),
      releases.filter((one) => one.topic === topic),
      options,
    );
    sum.settled += part.settled;
    sum.released += part.released;
    sum.lost += part.lost;
  }
  return sum;
}

/** Sends rows that were moved leased; what the queue refuses is given back, ready for the tick. */
async function sendMoved(invocation: Invocation, moved: readonly MovedRow[]): Promise<void> {
  const byTopic = Map.groupBy(
    moved.filter(({ lane }) => lane === 1),
    ({ topic }) => topic,
  );
  const outgoing = [...byTopic].flatMap(([name, rows]): Outgoing[] => {
    const topic = invocation.runtime.topics.get(name);
    return topic === undefined ? [] : [{ topic, rows }];
  });
  await sendAll(invocation, outgoing);
}

/** Leased rows of one topic, to be sent. */
export interface Outgoing {
  topic: Topic;
  rows: readonly ClaimedRow[];
}

/**
 * Sends leased rows of several topics at the same time, so that a queue that hangs is waited for once. All rows whose
 * send was refused or hung are given back in one statement: their key is new, and a late message finds nothing. A
 * message that has landed and begun all the same keeps its rows.
 * Answers for each topic, in the order asked.
 */
export async function sendAll(invocation: Invocation, outgoing: readonly Outgoing[]): Promise<Sent[]> {
  const { ports } = invocation.runtime;
  const outcomes = await Promise.all(outgoing.map(({ topic, rows }) => sendLeased(invocation, topic, rows)));
  const releases = outcomes.flatMap(({ unsent, error }, index): Release[] => {
    const topic = outgoing[index]?.topic;
    if (topic === undefined || unsent.length === 0) return [];
    ports.log({ event: "send_refused", level: "warn", topic: topic.name, count: unsent.length, error });
    return unsent.map(({ row, lead }) => ({ topic, row: { ...row, lane: 1 }, lead }));
  });
  await settle(invocation, [], releases, { resend: false }).catch((failure) => {
    ports.log({ event: "release_failed", level: "warn", count: releases.length, error: errorText(failure) });
  });
  return outcomes;
}

/** {@link sendAll} for one topic. */
export async function sendOrRelease(invocation: Invocation, topic: Topic, rows: readonly ClaimedRow[]): Promise<Sent> {
  const [outcome] = await sendAll(invocation, [{ topic, rows }]);
  return outcome as Sent;
}
