import * as v from "valibot";
import { createBudget, type Limits, UNBOUNDED } from "../../src/core/budget.ts";
import { dead, done, nextAt, type Outcome, retryAt, retryLater } from "../../src/core/outcomes.ts";
import { consume } from "../../src/outbox/consume.ts";
import type { ItemContext } from "../../src/outbox/context.ts";
import { replayDeadLetter } from "../../src/outbox/dead-letters.ts";
import { drainWithin } from "../../src/outbox/drain.ts";
import { enqueueNow } from "../../src/outbox/enqueue.ts";
import { defineModule } from "../../src/outbox/module.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import { sendPump, startChains } from "../../src/outbox/pump.ts";
import { beginInvocation, contextFor } from "../../src/outbox/runtime.ts";
import { createSeqs } from "../../src/outbox/seq.ts";
import { type Item, type Topic, topic } from "../../src/outbox/topic.ts";
import { tick } from "../../src/tick/tick.ts";
import { Broken } from "./ledger.ts";
import { Random } from "./random.ts";
import { type Actor, type Fault, type Flying, Stage } from "./stage.ts";

const START = Date.UTC(2026, 0, 1, 12);
const SECOND = 1_000;
const MINUTE = 60 * SECOND;
/** Choices of one play before the calm. */
const CHOICES = 90;
/** Rounds of the calm: more than the lapses, attempts and deliveries that an item can still have before it. */
const CALM_ROUNDS = 14;
/** Invocations under way at once. */
const MOST_ACTORS = 3;

/** What came of a play, for the report. */
export interface Played {
  born: number;
  done: number;
  dead: number;
  starts: number;
}

/** One seed: a world of two topics, some items, and everything that can go wrong with them. @throws Broken */
export async function play(seed: number, tell: (line: string) => void = () => {}): Promise<Played> {
  const one = new Play(seed);
  try {
    return await one.run();
  } catch (error) {
    for (const line of one.stage.trace) tell(line);
    throw error instanceof Broken ? new Broken(`seed ${seed}: ${error.message}`) : error;
  }
}

class Play {
  readonly stage: Stage;
  readonly #random: Random;
  readonly #topics: Topic[];
  readonly #faults: number;
  #calm = false;
  #toEnqueue: number;

  constructor(seed: number) {
    const random = new Random(seed);
    this.#random = random;
    this.#faults = random.pick([0, 0.05, 0.15, 0.3]);
    this.#toEnqueue = random.whole(6, 12);
    const common = {
      schema: v.object({ n: v.number() }),
      handle: (item: Item, ctx: ItemContext) => this.#handle(item, ctx),
      maxAttempts: random.whole(2, 4),
      maxDeliveries: random.whole(1, 3),
      backoff: random.pick([[1], [20 * SECOND, 200 * SECOND]]),
    };
    const pick = random.pick([1, 3] as const);
    this.#topics = [
      topic("sim.chunks", { ...common, itemsPerMessage: 3, path: random.pick(["queue", "queue", "drain"]) }),
      topic("sim.keyed", { ...common, settleEvery: pick, keyWindowMs: random.pick([0, 5 * MINUTE]) }),
    ] as Topic[];
    this.stage = new Stage([defineModule("sim", { topics: this.#topics })], random, START);
  }

  async run(): Promise<Played> {
    const { stage } = this;
    await stage.begin();
    for (let choice = 0; choice < CHOICES; choice++) await this.#choose();
    await this.#calmDown();
    const { born, done, starts, snapshot } = stage.ledger;
    return { born: born.size, done: done.size, dead: snapshot.letters.length, starts: starts.length };
  }

  async #choose(): Promise<void> {
    const { stage } = this;
    const random = this.#random;
    if (stage.late.length > 0 && random.chance(0.1)) return stage.land(random.whole(0, stage.late.length - 1));
    if (stage.gates.length > 0 && (stage.actors.size >= MOST_ACTORS || random.chance(0.75))) {
      const gate = random.pick(stage.gates);
      // A slow call: time passes before its answer.
      if (random.chance(0.1)) this.#pass(random.pick([SECOND, 20 * SECOND, 70 * SECOND, 6 * MINUTE]));
      const faulty = gate.kind !== "handler" && random.chance(this.#faults);
      return stage.open(
        gate,
        faulty ? this.#fault() : gate.kind === "handler" && random.chance(0.05) ? "crash before" : "none",
      );
    }
    await this.#begin();
  }

  #fault(): Fault {
    return this.#random.pick(["crash before", "crash after", "error", "answer lost", "late"]);
  }

  async #begin(): Promise<void> {
    const random = this.#random;
    switch (random.weighted({ enqueue: 20, tick: 22, deliver: 26, clock: 12, set: 6, drain: 5, pump: 5, replay: 4 })) {
      case "enqueue":
        return void (await this.#enqueue());
      case "tick":
        return void (await this.#tick());
      case "deliver":
        return void (await this.#deliver());
      case "clock":
        return this.#moveClock();
      case "set":
        return void (await this.#set());
      case "drain":
        return void (await this.#drain());
      case "pump":
        return void (await this.#pump());
      case "replay":
        return void (await this.#replay());
    }
  }

  async #enqueue(): Promise<void> {
    const random = this.#random;
    const count = Math.min(random.whole(1, 4), this.#toEnqueue);
    if (count === 0) return;
    this.#toEnqueue -= count;
    const chosen = random.pick(this.#topics);
    const dueIn = random.pick([0, 0, 0, 5 * SECOND, 50 * SECOND, 4 * MINUTE, -MINUTE]);
    const onKey = random.pick(["keep", "replace", "refuse"] as const);
    const items = Array.from({ length: count }, (_, n) => ({
      payload: { n },
      dueAt: this.stage.clock.now + dueIn,
      ...(chosen.name === "sim.keyed" && random.chance(0.8) && { key: random.pick(["a", "b", "c"]) }),
    }));
    const now = random.chance(0.5);
    await this.stage.start(`enqueue ${items.length} to ${chosen.name}`, async (runtime) => {
      const invocation = beginInvocation(runtime, this.stage.clock.now);
      if (now) return enqueueNow(invocation, chosen, items, { onKey });
      const statements = contextFor(invocation, "sim").outbox.enqueue(chosen, items, { onKey });
      return invocation.db.batch([...statements]);
    });
  }

  #tick(
    limits: Limits = this.#random.pick([UNBOUNDED, { wallMs: 25 * SECOND, subrequests: 8, queries: 20 }]),
  ): Promise<Actor> {
    return this.stage.start("tick", (runtime) => tick(runtime, this.stage.clock.now, limits));
  }

  /** A batch of what may be delivered by now: some of it twice, some of it kept to come again, some lost. */
  async #deliver(): Promise<void> {
    const { stage } = this;
    const random = this.#random;
    const ready = stage.messages.filter(({ notBefore }) => notBefore <= stage.clock.now || random.chance(0.05));
    const some = ready.filter(() => random.chance(0.6)).sort(() => random.next() - 0.5);
    if (some.length === 0) return;
    if (random.chance(0.15)) {
      stage.messages = stage.messages.filter((one) => !some.includes(one));
      stage.trace.push(`${some.length} messages are lost`);
      return;
    }
    const kept = some.filter(() => random.chance(0.2));
    stage.messages = stage.messages.filter((one) => !some.includes(one) || kept.includes(one));
    await this.#consume(random.chance(0.1) ? [...some, ...some] : some);
  }

  #consume(batch: readonly Flying[]): Promise<Actor> {
    const { stage } = this;
    return stage.start(`consumer of ${JSON.stringify(batch.map(({ body }) => body))}`, async (runtime, actor) => {
      const verdicts = new Map<Flying, string>();
      const incoming = batch.map((message) => ({
        body: structuredClone(message.body),
        attempts: 1,
        settle: ({ kind, ...rest }: { kind: string; delaySeconds?: number }) => {
          if (actor.dead) return;
          verdicts.set(message, kind);
          if (kind === "retry") {
            stage.messages.push({ ...message, notBefore: stage.clock.now + (rest.delaySeconds ?? 0) * SECOND });
          }
        },
      }));
      await consume(beginInvocation(runtime, stage.clock.now), incoming);
      if (actor.dead) stage.messages.push(...batch.filter((one) => !verdicts.has(one) || this.#random.chance(0.5)));
      else if (verdicts.size < new Set(batch).size) throw new Broken("a message got no verdict");
    });
  }

  #moveClock(): void {
    const { stage } = this;
    // A clock that steps back under a running invocation breaks any lease: only between invocations.
    const back = stage.actors.size === 0 && this.#random.chance(0.15);
    const by = back
      ? -this.#random.pick([SECOND, MINUTE, 6 * MINUTE])
      : this.#random.pick([SECOND, 10 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE + SECOND, 7 * MINUTE]);
    this.#pass(by);
  }

  #pass(ms: number): void {
    const { clock, trace } = this.stage;
    clock.now += ms;
    trace.push(`the clock moves by ${ms} ms to ${clock.now}`);
  }

  async #set(): Promise<void> {
    const chosen = this.#random.pick(this.#topics);
    const change = this.#random.pick([
      { path: "queue" },
      { path: "drain" },
      { paused: true },
      { paused: false },
    ] as const);
    await this.stage.start(`set ${chosen.name} ${JSON.stringify(change)}`, (runtime) =>
      changeTopic(beginInvocation(runtime, this.stage.clock.now), chosen, change, "sim"),
    );
  }

  async #drain(): Promise<void> {
    const random = this.#random;
    const chosen = random.pick(this.#topics);
    const { now } = this.stage.clock;
    const budget = createBudget({
      deadline: now + random.pick([5, 25, 300]) * SECOND,
      subrequests: random.whole(1, 6),
      queries: null,
    });
    await this.stage.start(`drain ${chosen.name}`, (runtime) =>
      drainWithin(beginInvocation(runtime, now), chosen, budget, { limit: random.whole(1, 8) }),
    );
  }

  async #pump(): Promise<void> {
    const chosen = this.#random.pick(this.#topics);
    await this.stage.start(`pump ${chosen.name}`, async (runtime) => {
      const invocation = beginInvocation(runtime, this.stage.clock.now);
      const chain = createSeqs(runtime.ports.bytes)(invocation.now);
      for (const one of await startChains(invocation, [chosen], chain)) {
        await sendPump(invocation, one, { chain, step: 0, claimed: 0 });
      }
    });
  }

  async #replay(): Promise<void> {
    const { letters } = this.stage.ledger.snapshot;
    if (letters.length === 0) return;
    const { id } = this.#random.pick(letters);
    await this.stage.start(`replay ${id}`, (runtime) =>
      replayDeadLetter(beginInvocation(runtime, this.stage.clock.now), id),
    );
  }

  async #handle(item: Item, ctx: ItemContext): Promise<Outcome> {
    const random = this.#random;
    const { pause } = this.stage.enter(ctx.clock, item.id);
    if (this.#calm) return done();
    const { now } = this.stage.clock;
    const soon = () => now + random.pick([0, SECOND, 30 * SECOND, 4 * MINUTE]);
    const ends = random.weighted({ done: 50, next: 12, retry: 12, later: 8, throws: 10, dead: 5, wrong: 3 });
    if (random.chance(0.5)) await pause();
    // The stage's clock moves no timers: a handler that was held beyond its deadline ends as the runtime ends it.
    if (this.stage.clock.now >= ctx.deadline) throw new Error("late");
    switch (ends) {
      case "done":
        return done();
      case "next":
        return nextAt(soon());
      case "retry":
        return retryAt(soon(), "again");
      case "later":
        return retryLater("later", { notBefore: random.chance(0.3) ? now + MINUTE : null });
      case "throws":
        throw new Error("thrown");
      case "dead":
        return dead("hopeless");
      case "wrong":
        return { kind: "nonsense" } as unknown as Outcome;
    }
  }

  /** The faults end: whatever is under way ends, and ticks and deliveries settle the rest. */
  async #calmDown(): Promise<void> {
    const { stage } = this;
    this.#calm = true;
    stage.trace.push("the calm");
    await stage.finish();
    for (const chosen of this.#topics) {
      const path = this.#random.pick(["queue", "drain"] as const);
      await stage.start(`set ${chosen.name} open`, async (runtime) => {
        const invocation = beginInvocation(runtime, stage.clock.now);
        await changeTopic(invocation, chosen, { paused: false }, "sim");
        await changeTopic(invocation, chosen, { path }, "sim");
      });
      await stage.finish();
    }
    for (let round = 0; round < CALM_ROUNDS; round++) {
      await this.#tick(UNBOUNDED);
      await stage.finish();
      stage.clock.now += SECOND;
      while (stage.messages.some(({ notBefore }) => notBefore <= stage.clock.now)) {
        const batch = stage.messages.filter(({ notBefore }) => notBefore <= stage.clock.now);
        stage.messages = stage.messages.filter((one) => !batch.includes(one));
        await this.#consume(batch);
        await stage.finish();
      }
      if (stage.ledger.snapshot.items.length === 0) break;
      stage.clock.now += 6 * MINUTE;
    }
    stage.ledger.checkEnd();
  }
}
