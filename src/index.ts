export type { Routed, Router } from "./commands/router.ts";
export { parseRetryAfter } from "./core/backoff.ts";
export { type Budget, type Cost, DEFAULT_LIMITS, type Limits, UNBOUNDED } from "./core/budget.ts";
export { checkDestination, type DestinationAnswer, type DestinationProblem } from "./core/destination.ts";
export { DueworkError, type Refusal, refuse } from "./core/errors.ts";
export { type ExchangeBounds, type Exchanged, exchange } from "./core/exchange.ts";
export { createWorker, type WorkerOptions } from "./create-worker.ts";
export { type FanOutOptions, fanOut } from "./fan-out.ts";
export { testContext, type TestContextOptions } from "./test-context.ts";
export type { Ports } from "./core/ports.ts";
export { dead, done, nextAt, type Outcome, retryAt, retryLater } from "./core/outcomes.ts";
export { type SignedMessage, signatures } from "./core/signature.ts";
export { errorText, safeText } from "./core/text.ts";
export { type Job, type JobOptions, job, type SlotContext } from "./jobs/catalog.ts";
export { recordsRetention } from "./jobs/retention.ts";
export type { Completion, Slot } from "./jobs/slots.ts";
export type { CommandContext, Context, ItemContext } from "./outbox/context.ts";
export { type Command, type CommandAnswer, command, defineModule, type Effect, type Module } from "./outbox/module.ts";
export type {
  DeadLetter,
  DrainReport,
  Enqueued,
  EnqueueNowAnswer,
  EnqueueStatements,
  NewItem,
  Outbox,
} from "./outbox/outbox.ts";
export {
  type Item,
  type Path,
  type Settlement,
  TOPIC_DEFAULTS,
  type Topic,
  type TopicOptions,
  topic,
} from "./outbox/topic.ts";
