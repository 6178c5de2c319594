import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { splitTopicName } from "../core/names.ts";
import { discardDeadLetter, replayAll, replayDeadLetter } from "../outbox/dead-letters.ts";
import { enqueueNow } from "../outbox/enqueue.ts";
import { itemView } from "../outbox/explain.ts";
import { findItem, readGoing } from "../outbox/find.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import { changeTopic, type TopicChange } from "../outbox/paths.ts";
import { discardItem, retryItem } from "../outbox/operate.ts";
import type { Invocation, Runtime } from "../outbox/runtime.ts";
import type { Topic } from "../outbox/topic.ts";
import type { Actor } from "./actor.ts";
import { define, type Registered } from "./define.ts";

/** The commands about topics, items and dead letters. */

const name = v.pipe(v.string(), v.nonEmpty());
/** A topic by its module and its own name, or by its full name alone: `webhooks.deliver`. */
const topicArgs = { module: v.optional(name), topic: name };
const version = v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(0)));
/** An item's id, its `place` of a list, or a dead letter's id. */
const id = v.pipe(v.string(), v.nonEmpty(), v.maxLength(500));
const reason = v.pipe(v.string(), v.nonEmpty(), v.maxLength(100));
const instant = v.pipe(
  v.string(),
  v.isoTimestamp("an instant is ISO 8601, like 2026-01-31T09:00:00.000Z"),
  v.transform((text) => Date.parse(text)),
);

interface TopicArgs {
  module?: string | undefined;
  topic: string;
}

function topicOf(runtime: Runtime, { module, topic }: TopicArgs): Topic | Refusal<"unknown_topic"> {
  const full = module === undefined ? topic : `${module}.${topic}`;
  return runtime.topics.get(full) ?? refuse("unknown_topic", "topic", `there is no topic ${full}`);
}

async function change(
  args: TopicArgs & { expectedVersion?: number | undefined },
  to: TopicChange,
  invocation: Invocation,
  actor: Actor,
): Promise<CommandAnswer> {
  const topic = topicOf(invocation.runtime, args);
  if ("ok" in topic) return topic;
  const answer = await changeTopic(invocation, topic, to, actor.id, args.expectedVersion);
  if (!answer.ok) return answer;
  const { path, paused, version: pathVersion, changed } = answer;
  return { ok: true, result: { ...splitTopicName(topic.name), path, paused, pathVersion, changed } };
}

export const itemCommands: readonly Registered[] = [
  define(
    {
      name: "topic.path",
      effect: "write",
      grant: "topic:write",
      help: "Flip a topic between the queue and the drain.",
      positional: ["topic", "path"],
    },
    v.strictObject({ ...topicArgs, path: v.picklist(["queue", "drain"]), expectedVersion: version }),
    (args, invocation, actor) => change(args, { path: args.path }, invocation, actor),
  ),
  define(
    {
      name: "topic.pause",
      effect: "write",
      grant: "topic:write",
      help: "Stop claiming a topic's items.",
      positional: ["topic"],
    },
    v.strictObject({ ...topicArgs, expectedVersion: version }),
    (args, invocation, actor) => change(args, { paused: true }, invocation, actor),
  ),
  define(
    {
      name: "topic.resume",
      effect: "write",
      grant: "topic:write",
      help: "Claim a topic's items again.",
      positional: ["topic"],
    },
    v.strictObject({ ...topicArgs, expectedVersion: version }),
    (args, invocation, actor) => change(args, { paused: false }, invocation, actor),
  ),
  define(
    {
      name: "item.enqueue",
      effect: "write",
      grant: "item:write",
      help: "Put items on a topic.",
      positional: ["topic", "items"],
    },
    v.strictObject({
      ...topicArgs,
      items: v.pipe(
        v.array(v.strictObject({ key: v.optional(v.string()), payload: v.unknown(), dueAt: v.optional(instant) })),
        v.minLength(1),
        v.maxLength(1_000),
      ),
      onKey: v.optional(v.picklist(["keep", "replace", "refuse"]), "keep"),
    }),
    async (args, invocation) => {
      const topic = topicOf(invocation.runtime, args);
      if ("ok" in topic) return topic;
      const items = args.items.map(({ key, payload, dueAt }) => ({
        payload,
        ...(key !== undefined && { key }),
        ...(dueAt !== undefined && { dueAt }),
      }));
      const answer = await enqueueNow(invocation, topic, items, { onKey: args.onKey });
      return answer.ok ? { ok: true, result: { items: answer.items, sent: answer.sent } } : answer;
    },
  ),
  define(
    {
      name: "item.show",
      effect: "read",
      grant: "item:read",
      help: "Show an item, and why it is not running.",
      positional: ["id"],
    },
    v.strictObject({ id }),
    async (args, { db, runtime, now }) => {
      const found = await findItem(db, runtime, args.id);
      if (!found.ok) return found;
      const going = await readGoing(db, runtime, "row" in found ? found.row.topic : found.letter.topic);
      return { ok: true, result: itemView(found, going, runtime, now) };
    },
  ),
  define(
    {
      name: "item.retry",
      effect: "write",
      grant: "item:write",
      help: "Make a ready item due now, and start it.",
      positional: ["id"],
    },
    v.strictObject({ id }),
    async (args, invocation) => {
      const answer = await retryItem(invocation, args.id);
      return answer.ok ? { ok: true, result: { id: answer.id, sent: answer.sent } } : answer;
    },
  ),
  define(
    {
      name: "item.discard",
      effect: "write",
      grant: "item:write",
      help: "Throw a ready item away.",
      positional: ["id"],
    },
    v.strictObject({ id }),
    async (args, invocation) => {
      const answer = await discardItem(invocation, args.id);
      return answer.ok ? { ok: true, result: { id: answer.id } } : answer;
    },
  ),
  define(
    {
      name: "dead-letter.replay-all",
      effect: "write",
      grant: "item:write",
      help: "Put up to 200 dead letters of a topic back as new items, the newest first.",
      positional: ["topic"],
    },
    v.strictObject({ ...topicArgs, reason: v.optional(reason), cursor: v.optional(v.string()) }),
    async (args, invocation) => {
      const topic = topicOf(invocation.runtime, args);
      if ("ok" in topic) return topic;
      const answer = await replayAll(invocation, topic, args);
      if (!answer.ok) return answer;
      const { replayed, kept, nextCursor } = answer;
      return { ok: true, result: { replayed, kept, nextCursor } };
    },
  ),
  define(
    {
      name: "dead-letter.replay",
      effect: "write",
      grant: "item:write",
      help: "Put a dead letter back as a new item, once.",
      positional: ["id"],
    },
    v.strictObject({ id }),
    async (args, invocation) => {
      const answer = await replayDeadLetter(invocation, args.id);
      return answer.ok ? { ok: true, result: { id: answer.id } } : answer;
    },
  ),
  define(
    {
      name: "dead-letter.discard",
      effect: "write",
      grant: "item:write",
      help: "Throw a dead letter away.",
      positional: ["id"],
    },
    v.strictObject({ id }),
    async (args, invocation) =>
      (await discardDeadLetter(invocation, args.id))
        ? { ok: true, result: { id: args.id } }
        : refuse("no_dead_letter", "id", `there is no dead letter ${args.id}`),
  ),
];
