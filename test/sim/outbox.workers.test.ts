import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { createBudget, UNBOUNDED } from "../../src/core/budget.ts";
import { done } from "../../src/core/outcomes.ts";
import { consume } from "../../src/outbox/consume.ts";
import type { ItemContext } from "../../src/outbox/context.ts";
import { drainWithin } from "../../src/outbox/drain.ts";
import { enqueueNow } from "../../src/outbox/enqueue.ts";
import { defineModule } from "../../src/outbox/module.ts";
import { sendPump, startChains } from "../../src/outbox/pump.ts";
import { beginInvocation } from "../../src/outbox/runtime.ts";
import { type Item, type Topic, type TopicOptions, topic } from "../../src/outbox/topic.ts";
import { tick } from "../../src/tick/tick.ts";
import { play } from "./play.ts";
import { Random } from "./random.ts";
import { type Actor, type Fault, type Flying, type Gate, Stage } from "./stage.ts";

/**
 * The lease protocol under crashes, lost answers, late calls and any order of things: the real code over the real
 * local D1. A seed that fails is printed with all that was done; run it alone with VITE_SIM_FIRST=<seed>
 * VITE_SIM_SEEDS=1, and more of them with VITE_SIM_SEEDS=<count>. A seed means the same as long as `play.ts` stays as
 * it is, so what it found is told below as a test of its own.
 */
const FIRST = Number(import.meta.env.VITE_SIM_FIRST ?? 1);
const SEEDS = Number(import.meta.env.VITE_SIM_SEEDS ?? 200);

test(`${SEEDS} seeds from ${FIRST}: nothing is lost, settled twice, or started before the lease before it ends`, async () => {
  const total = { born: 0, done: 0, dead: 0, starts: 0 };
  for (let seed = FIRST; seed < FIRST + SEEDS; seed++) {
    const played = await play(seed, (line) => console.log(line));
    for (const what of Object.keys(total) as (keyof typeof total)[]) total[what] += played[what];
  }
  console.log(`seeds ${FIRST} to ${FIRST + SEEDS - 1}: ${JSON.stringify(total)}`);
  // A stage that did nothing would keep every promise.
  expect(total.starts).toBeGreaterThan(SEEDS);
}, 1_800_000);

const SECOND = 1_000;
const START = Date.UTC(2026, 0, 1, 12);

/** A stage with one topic, and the moves that the tests below make on it. */
class Scene {
  readonly stage: Stage;
  readonly #topic: Topic;

  private constructor(
    options: Partial<TopicOptions>,
    handle: (item: Item, pause: () => Promise<void>) => Promise<void>,
  ) {
    this.#topic = topic("scene.work", {
      schema: v.object({ n: v.number() }),
      async handle(item: Item, ctx: ItemContext) {
        await handle(item, stage.enter(ctx.clock, item.id).pause);
        return done();
      },
      ...options,
    } as TopicOptions) as Topic;
    this.stage = new Stage([defineModule("scene", { topics: [this.#topic] })], new Random(1), START);
    const { stage } = this;
  }

  static async open(
    options: Partial<TopicOptions> = {},
    handle: (item: Item, pause: () => Promise<void>) => Promise<void> = async () => {},
  ): Promise<Scene> {
    const scene = new Scene(options, handle);
    await scene.stage.begin();
    return scene;
  }

  async enqueueNow(count: number): Promise<void> {
    await this.stage.start("enqueue", (runtime) =>
      enqueueNow(
        beginInvocation(runtime, this.stage.clock.now),
        this.#topic,
        Array.from({ length: count }, (_, n) => ({ payload: { n } })),
      ),
    );
  }

  tick(): Promise<Actor> {
    return this.stage.start("tick", (runtime) => tick(runtime, this.stage.clock.now, UNBOUNDED));
  }

  drain(): Promise<Actor> {
    const budget = createBudget({ deadline: null, subrequests: null, queries: null });
    return this.stage.start("drain", (runtime) =>
      drainWithin(beginInvocation(runtime, this.stage.clock.now), this.#topic, budget, { limit: 10 }),
    );
  }

  consume(batch: readonly Flying[]): Promise<Actor> {
    return this.stage.start("consumer", (runtime) =>
      consume(
        beginInvocation(runtime, this.stage.clock.now),
        batch.map(({ body }) => ({ body: structuredClone(body), attempts: 1, settle() {} })),
      ),
    );
  }

  take(): Flying[] {
    return this.stage.messages.splice(0);
  }

  /** Opens an invocation's next gate. */
  async step(actor: Actor, fault: Fault = "none"): Promise<void> {
    const gate = this.stage.gates.find((one) => one.actor === actor);
    if (gate === undefined) throw new Error(`${actor.name} stands at no gate`);
    await this.stage.open(gate, fault);
  }

  /** Ticks and deliveries until nothing is left. */
  async settleAll(): Promise<void> {
    await this.stage.finish();
    for (let round = 0; round < 10 && this.stage.ledger.snapshot.items.length > 0; round++) {
      this.stage.clock.now += 360 * SECOND;
      await this.tick();
      await this.stage.finish();
      await this.consume(this.take());
      await this.stage.finish();
    }
    this.stage.ledger.checkEnd();
  }
}

describe("what seeds have found", () => {
  test("a chunk whose send hung and landed keeps the items that its consumer runs", async () => {
    const scene = await Scene.open({ itemsPerMessage: 3 }, (_, pause) => pause());
    await scene.enqueueNow(3);
    const [sender] = scene.stage.actors;
    if (sender === undefined) throw new Error("nobody sends");
    await scene.step(sender);
    await scene.step(sender, "answer lost");
    await scene.step(await scene.consume(scene.take()));
    await scene.step(sender);
    // Its release has changed nothing of what runs.
    expect(scene.stage.ledger.snapshot.items.map(({ lane }) => lane).sort()).toEqual([1, 1, 2]);
    await scene.stage.finish();
    expect(scene.stage.ledger.done.size).toBe(3);
    expect(scene.stage.ledger.starts).toHaveLength(3);
  });

  test("a chunk whose send was refused is given back whole", async () => {
    const scene = await Scene.open({ itemsPerMessage: 3 });
    await scene.enqueueNow(3);
    const [sender] = scene.stage.actors;
    if (sender === undefined) throw new Error("nobody sends");
    await scene.step(sender);
    await scene.step(sender, "error");
    await scene.step(sender);
    expect(scene.stage.ledger.snapshot.items.map(({ lane }) => lane)).toEqual([0, 0, 0]);
    await scene.settleAll();
    expect(scene.stage.ledger.starts).toHaveLength(3);
  });

  test("an item that runs alone behind a long batch has its lease from its own begin", async () => {
    const scene = await Scene.open();
    await scene.enqueueNow(1);
    await scene.stage.finish();
    scene.take();
    scene.stage.clock.now += 301 * SECOND;
    await scene.tick();
    await scene.stage.finish();
    const alone = scene.take();
    await scene.enqueueNow(1);
    await scene.stage.finish();
    const consumer = await scene.consume([...scene.take(), ...alone]);
    await scene.step(consumer);
    scene.stage.clock.now += 100 * SECOND;
    await scene.stage.finish();
    expect(scene.stage.ledger.starts).toHaveLength(2);
    expect(scene.stage.ledger.done.size).toBe(2);
  });

  test("a chunk that is twice in one batch runs once", async () => {
    const scene = await Scene.open({ itemsPerMessage: 3 });
    await scene.enqueueNow(3);
    await scene.stage.finish();
    const messages = scene.take();
    await scene.consume([...messages, ...messages]);
    await scene.stage.finish();
    expect(scene.stage.ledger.starts).toHaveLength(3);
  });

  test("a drain whose begin took most of the lease gives the item back, uncounted", async () => {
    const scene = await Scene.open();
    await scene.enqueueNow(1);
    await scene.stage.finish();
    scene.take();
    scene.stage.clock.now += 301 * SECOND;
    const drain = await scene.drain();
    await scene.step(drain);
    scene.stage.clock.now += 60 * SECOND;
    await scene.stage.finish();
    expect(scene.stage.ledger.starts).toEqual([]);
    expect(scene.stage.ledger.snapshot.items).toMatchObject([{ lane: 0, deliveries: 0, attempts: 0 }]);
  });

  test("a drain late in a long tick has its lease from its own claim", async () => {
    const scene = await Scene.open({ path: "drain" });
    await scene.enqueueNow(1);
    await scene.stage.finish();
    const ticking = await scene.tick();
    await scene.step(ticking);
    scene.stage.clock.now += 300 * SECOND;
    await scene.stage.finish();
    expect(scene.stage.ledger.done.size).toBe(1);
  });
});

test("a chain that has ended makes room for the next tick's, however soon that comes", async () => {
  const scene = await Scene.open();
  for (const chain of ["first", "second"]) {
    let started = 0;
    await scene.stage.start("pump", async (runtime) => {
      const invocation = beginInvocation(runtime, scene.stage.clock.now);
      for (const one of await startChains(invocation, [...runtime.topics.values()], chain)) {
        started += 1;
        await sendPump(invocation, one, { chain, step: 0, claimed: 0 });
      }
    });
    await scene.stage.finish();
    await scene.consume(scene.take());
    await scene.stage.finish();
    expect(started).toBe(1);
    scene.stage.clock.now += SECOND;
  }
});

/**
 * Plays a scene in every order that its calls can take. `more` starts what can only start once something is there.
 * Answers how many orders there are.
 */
async function everyOrder(
  build: () => Promise<{ scene: Scene; more?: () => (() => Promise<unknown>) | null; fault?: (gate: Gate) => Fault }>,
  check: (scene: Scene) => void,
): Promise<number> {
  const path: { choice: number; of: number }[] = [];
  for (let orders = 1; ; orders++) {
    const { scene, more = () => null, fault = () => "none" } = await build();
    const { stage } = scene;
    try {
      for (let depth = 0; ; depth++) {
        const start = more();
        const of = stage.gates.length + (start === null ? 0 : 1);
        if (of === 0) break;
        path[depth] ??= { choice: 0, of };
        const { choice } = path[depth] as { choice: number };
        const gate = stage.gates[choice];
        if (gate === undefined) await start?.();
        else await stage.open(gate, fault(gate));
      }
      await scene.settleAll();
      check(scene);
    } catch (error) {
      throw new Error(`order ${JSON.stringify(path.map(({ choice }) => choice))}\n${stage.trace.join("\n")}`, {
        cause: error,
      });
    }
    for (let last = path.at(-1); last !== undefined && last.choice + 1 >= last.of; last = path.at(-1)) path.pop();
    const last = path.at(-1);
    if (last === undefined) return orders;
    last.choice += 1;
  }
}

describe("every order", () => {
  test("two consumers of one message, and a tick that finds its lease lapsed: one run at a time", async () => {
    const orders = await everyOrder(
      async () => {
        const scene = await Scene.open();
        await scene.enqueueNow(1);
        await scene.stage.finish();
        const messages = scene.take();
        scene.stage.clock.now += 301 * SECOND;
        await scene.consume(messages);
        await scene.consume(messages);
        await scene.tick();
        return { scene };
      },
      ({ stage }) => {
        expect(stage.ledger.starts).toHaveLength(1);
        expect(stage.ledger.done.size).toBe(1);
      },
    );
    expect(orders).toBeGreaterThan(30);
  });

  test("a chunk of two whose send hangs and lands, its consumer, and a drain: each item runs once", async () => {
    const orders = await everyOrder(
      async () => {
        const scene = await Scene.open({ itemsPerMessage: 2 }, (_, pause) => pause());
        await scene.enqueueNow(2);
        const [sender] = scene.stage.actors;
        let drained = false;
        return {
          scene,
          fault: (gate) => (gate.actor === sender && gate.kind === "send" ? "answer lost" : "none"),
          more: () => {
            if (scene.stage.messages.length > 0) return () => scene.consume(scene.take());
            if (drained || sender?.over !== true) return null;
            drained = true;
            return () => scene.drain();
          },
        };
      },
      ({ stage }) => {
        expect(stage.ledger.starts).toHaveLength(2);
        expect(stage.ledger.done.size).toBe(2);
      },
    );
    expect(orders).toBeGreaterThan(20);
  });
});
