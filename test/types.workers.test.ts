import * as v from "valibot";
import { expect, expectTypeOf, test } from "vitest";
import source from "../src/index.ts?raw";
import * as duework from "../src/index.ts";
import {
  type Budget,
  type Context,
  command,
  defineModule,
  done,
  type Enqueued,
  type ItemContext,
  type NewItem,
  nextAt,
  type Outcome,
  retryAt,
  type TestContextOptions,
  type testContext,
  topic,
} from "../src/index.ts";

/** What compiles and what does not: `tsc` holds these, since a directive without its error is an error. */

const work = topic("typed.work", { schema: v.object({ n: v.number() }), handle: () => done() });
declare const ctx: Context;

test("a context without a budget compiles, and has an unbounded one", () => {
  expectTypeOf<{ db: D1Database; module: duework.Module }>().toExtend<TestContextOptions>();
  expectTypeOf<ReturnType<typeof testContext>["budget"]>().toEqualTypeOf<Budget>();
  expectTypeOf<Budget["remaining"]>().toEqualTypeOf<{
    readonly subrequests: number | null;
    readonly queries: number | null;
  }>();
});

test("a payload is what the topic's schema takes", () => {
  const enqueue = () => ctx.outbox.enqueue(work, [{ payload: { n: 1 }, key: "a", dueAt: 0 }]);
  expectTypeOf(enqueue).returns.toExtend<D1PreparedStatement[]>();
  expectTypeOf<NewItem<{ n: number }>["payload"]>().toEqualTypeOf<{ n: number }>();
  // @ts-expect-error Type 'string' is not assignable to type 'number'.
  void (() => ctx.outbox.enqueue(work, [{ payload: { n: "1" } }]));
  // @ts-expect-error Property 'n' is missing in type '{}' but required in type '{ n: number; }'.
  void (() => ctx.outbox.enqueueNow(work, [{ payload: {} }]));
  // @ts-expect-error Property 'payload' is missing
  void (() => ctx.outbox.enqueueNow(work, [{}]));
  topic("typed.read", {
    schema: v.pipe(v.string(), v.transform(Number)),
    handle({ payload }, handled) {
      expectTypeOf(payload).toEqualTypeOf<number>();
      expectTypeOf(handled).toExtend<ItemContext>();
      expectTypeOf(handled.signal).toEqualTypeOf<AbortSignal>();
    },
  });
});

test("an outcome is one of four", () => {
  expectTypeOf<Outcome["kind"]>().toEqualTypeOf<"done" | "nextAt" | "retryAt" | "dead">();
  const schema = v.object({});
  topic("typed.none", { schema, handle: () => {} });
  topic("typed.later", { schema, handle: async () => nextAt(1) });
  // @ts-expect-error Type '"later"' is not assignable to type '"done" | "nextAt" | "retryAt" | "dead"'.
  topic("typed.unknown", { schema, handle: () => ({ kind: "later" }) });
  // @ts-expect-error Type 'boolean' is not assignable to type 'void | Outcome | Promise<void | Outcome>'.
  topic("typed.boolean", { schema, handle: () => true });
  // @ts-expect-error Argument of type 'string' is not assignable to parameter of type 'number'.
  void (() => retryAt("soon", "no"));
});

test("a topic's options are its own", () => {
  const schema = v.object({});
  // @ts-expect-error Type '"push"' is not assignable to type 'Path'.
  void (() => topic("typed.push", { schema, handle: () => {}, path: "push" }));
  // @ts-expect-error 'retries' does not exist in type 'TopicOptions<...>'.
  void (() => topic("typed.retries", { schema, handle: () => {}, retries: 3 }));
  // @ts-expect-error Property 'schema' is missing
  void (() => topic("typed.bare", { handle: () => {} }));
});

test("settings and arguments are what their schemas answer", () => {
  const settings = v.object({ LEVEL: v.pipe(v.string(), v.transform(Number)) });
  defineModule<v.InferOutput<typeof settings>>("typed", {
    settings,
    async scheduled({ settings }) {
      expectTypeOf(settings).toEqualTypeOf<{ LEVEL: number }>();
      // @ts-expect-error Property 'LEVELS' does not exist on type '{ LEVEL: number; }'.
      void settings.LEVELS;
    },
  });
  command({
    name: "typed.go",
    effect: "write",
    grant: "typed:write",
    help: "Goes.",
    args: v.object({ to: v.string() }),
    async handle(args) {
      expectTypeOf(args).toEqualTypeOf<{ to: string }>();
      return { ok: true, result: null };
    },
  });
});

test("what is asked is answered in its own form", () => {
  expectTypeOf<Enqueued>().toEqualTypeOf<{ id: string; deduped: boolean }>();
  expectTypeOf<ReturnType<Budget["trySpend"]>>().toEqualTypeOf<boolean>();
});

test("the package exports this, and nothing else", () => {
  const names = [...source.matchAll(/export (type )?\{([^}]*)\}/g)].flatMap(([, types = "", list = ""]) =>
    list
      .split(",")
      .map((name) => name.trim())
      .filter((name) => name !== "")
      .map((name) => (name.startsWith("type ") ? name : `${types}${name}`)),
  );
  expect(names.filter((name) => !name.startsWith("type ")).sort()).toEqual(Object.keys(duework).sort());
  expect(names.sort()).toMatchInlineSnapshot(`
    [
      "DEFAULT_LIMITS",
      "DueworkError",
      "TOPIC_DEFAULTS",
      "UNBOUNDED",
      "checkDestination",
      "command",
      "createWorker",
      "dead",
      "defineModule",
      "done",
      "errorText",
      "exchange",
      "fanOut",
      "job",
      "nextAt",
      "parseRetryAfter",
      "recordsRetention",
      "refuse",
      "retryAt",
      "retryLater",
      "safeText",
      "signatures",
      "testContext",
      "topic",
      "type Budget",
      "type Command",
      "type CommandAnswer",
      "type CommandContext",
      "type Completion",
      "type Context",
      "type Cost",
      "type DeadLetter",
      "type DestinationAnswer",
      "type DestinationProblem",
      "type DrainReport",
      "type Effect",
      "type EnqueueNowAnswer",
      "type EnqueueStatements",
      "type Enqueued",
      "type ExchangeBounds",
      "type Exchanged",
      "type FanOutOptions",
      "type Item",
      "type ItemContext",
      "type Job",
      "type JobOptions",
      "type Limits",
      "type Module",
      "type NewItem",
      "type Outbox",
      "type Outcome",
      "type Path",
      "type Ports",
      "type Refusal",
      "type Routed",
      "type Router",
      "type Settlement",
      "type SignedMessage",
      "type Slot",
      "type SlotContext",
      "type TestContextOptions",
      "type Topic",
      "type TopicOptions",
      "type WorkerOptions",
    ]
  `);
});
