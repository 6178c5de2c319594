import * as v from "valibot";
import { expect, test } from "vitest";
import { MINUTE } from "../../src/core/time.ts";
import { createMeter } from "../../src/db/meter.ts";
import { DEFAULT_LIMITS, defineModule, nextAt, done, topic } from "../../src/index.ts";
import { changeTopic } from "../../src/outbox/paths.ts";
import { createWorld, DB, type SentMessage } from "../outbox/world.ts";

/** A small generator, so that a failure can be run again: mulberry32. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

const SEEDS = [1, 2, 3, Date.now() % 1_000_000];

test.for(SEEDS)(
  "overlapping ticks, flips, drains, consumers, lost, late and doubled messages (seed %i): each item settles once, none is lost, none runs twice while its lease is held",
  async (seed) => {
    await DB.batch(["items", "ticks", "pumps", "topics"].map((table) => DB.prepare(`DELETE FROM ${table}`)));
    const random = randomOf(seed);
    const ran = new Map<string, number>();
    const asked = new Map<string, number>();
    let running = new Set<string>();
    const clashes: string[] = [];
    const modules = ["x", "y"].map((name) =>
      defineModule(name, {
        topics: [
          topic(`${name}.work`, {
            schema: v.object({ moves: v.boolean() }),
            cost: { queries: 1 },
            async handle({ id, payload }, { now }) {
              if (running.has(id)) clashes.push(id);
              running.add(id);
              await scheduler.wait(Math.floor(random() * 2));
              running.delete(id);
              const runs = (ran.get(id) ?? 0) + 1;
              ran.set(id, runs);
              // A move is a settle too: the second run is another delivery, which the item asked for.
              return payload.moves && runs === 1 ? nextAt(now + Math.floor(random() * 3 * MINUTE)) : done();
            },
          }),
        ],
      }),
    );
    const world = createWorld(modules);
    const works = [...world.runtime.topics.values()];
    const put = async () => {
      const ctx = world.context();
      for (const work of works) {
        const items = Array.from({ length: 1 + Math.floor(random() * 20) }, () => ({
          payload: { moves: random() < 0.2 },
          dueAt: world.clock.now + Math.floor(random() * 2 * MINUTE),
        }));
        const statements = ctx.outbox.enqueue(work, items);
        await ctx.db.batch(statements);
        for (const [index, id] of statements.ids.entries()) asked.set(id, items[index]?.payload.moves ? 2 : 1);
      }
    };
    const flip = async () => {
      const work = works[Math.floor(random() * works.length)];
      if (work === undefined) return;
      await changeTopic(world.invocation(), work, { path: random() < 0.5 ? "queue" : "drain" }, "test");
    };
    let kept: SentMessage[] = [];
    const consume = async (faults: boolean) => {
      const waiting = [...kept, ...world.queue.take()];
      kept = faults ? waiting.filter(() => random() < 0.1) : [];
      const now = waiting.filter((message) => !kept.includes(message) && !(faults && random() < 0.1));
      const doubled = faults ? now.filter(() => random() < 0.1) : [];
      const half = now.length / 2;
      await Promise.all(
        [now.slice(0, half), now.slice(half), doubled].map((part) => world.deliver(part, createMeter())),
      );
    };

    for (let round = 0; round < 15; round += 1) {
      await put();
      world.queue.mode = random() < 0.2 ? "refuse" : "take";
      const ticks = Array.from({ length: random() < 0.5 ? 2 : 3 }, () => world.tick(DEFAULT_LIMITS));
      await Promise.all([...ticks, flip(), flip(), consume(true)]);
      world.clock.now += MINUTE;
    }
    world.queue.mode = "take";
    const left = () => DB.prepare("SELECT count(*) AS n FROM items").first<number>("n");
    for (let round = 0; round < 60 && (await left()) !== 0; round += 1) {
      running = new Set();
      await Promise.all([world.tick(DEFAULT_LIMITS), world.tick(DEFAULT_LIMITS)]);
      await consume(false);
      world.clock.now += MINUTE;
    }

    expect(await left()).toBe(0);
    expect(clashes).toEqual([]);
    expect(ran).toEqual(asked);
    expect(world.logs.filter(({ level }) => level === "error")).toEqual([]);
  },
);
