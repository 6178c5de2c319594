export { type Budget, type Cost, DEFAULT_LIMITS, type Limits, UNBOUNDED } from "./core/budget.ts";
export { DueworkError, type Refusal } from "./core/errors.ts";
export { dead, done, nextAt, type Outcome, retryAt, retryLater } from "./core/outcomes.ts";
export type { Context, ItemContext } from "./outbox/context.ts";
export { type Command, command, defineModule, type Module } from "./outbox/module.ts";
export type { DrainReport, Enqueued, EnqueueNowAnswer, EnqueueStatements, NewItem, Outbox } from "./outbox/outbox.ts";
export { type Item, type Path, type Settlement, TOPIC_DEFAULTS, type Topic, type TopicOptions, topic } from "./outbox/topic.ts";
