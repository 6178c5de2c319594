import type { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, fireTick } from "../client.ts";
import { itemsOf, type Plan } from "./plan.ts";
import { hookPath, merchantPath, type Receiver } from "./receiver.ts";
import { DELIVER, POLL, POLL_EVERY_S, readOutbox } from "./record.ts";

/** What the parts of a demo's work need. */
export interface Stage {
  plan: Plan;
  /** When the demo began, ms. */
  began: number;
  /** The runtime. */
  url: string;
  client: Client;
  database: DatabaseSync;
  receiver: Receiver;
  signal: AbortSignal;
  /** Says which part is under way. */
  phase(name: string): void;
}

/** Accounts in one call. */
const ACCOUNTS_A_CALL = 500;
/** Ticks in a row that drain nothing although much is due. */
const FRUITLESS_MOST = 50;
/** Time into a tick at which the paths are flipped, ms: while it has items in hand. */
const FLIP_AFTER_MS = 30;
/** Between two looks at the outbox, ms. */
const LOOK_MS = 200;
/** Between two ticks while the queue works, ms. */
const TICK_EVERY_MS = 5_000;

/** Puts everything on the outbox while both topics are on the drain and no tick is fired. Answers how much is stored. */
export async function feed({ plan, began, client, receiver, database, signal, phase }: Stage): Promise<number> {
  phase("enqueue");
  await flip(client, "drain");
  for (let index = 0; index < plan.endpoints; index += 1) {
    const endpoint = { url: receiver.url + hookPath(index), events: ["*"] };
    const { secret } = await client.command<{ secret: string }>("webhooks.endpoint-add", endpoint);
    receiver.trust(index, secret);
  }
  for (let order = 0; order < plan.events; order += 1) {
    signal.throwIfAborted();
    await client.command("webhooks.publish", { type: "order.paid", data: { order } });
  }
  const accounts = Array.from({ length: plan.merchants }, (_, index) => ({
    id: `merchant-${index}`,
    url: receiver.url + merchantPath(index),
    everySeconds: POLL_EVERY_S,
  }));
  for (let first = 0; first < accounts.length; first += ACCOUNTS_A_CALL) {
    await client.command("merchants.add", { accounts: accounts.slice(first, first + ACCOUNTS_A_CALL) });
  }
  const { ready, leased } = readOutbox(database, Date.now(), began);
  if (leased > 0) throw new Error(`${leased} items were sent although their topics are on the drain`);
  return ready;
}

/**
 * Fires ticks back to back until half of the items have succeeded, then flips both topics to the queue while a tick
 * has items in hand. Answers how many had succeeded when that tick ended: no item had gone by the queue yet.
 */
export async function drainHalf({ plan, url, client, receiver, signal, phase }: Stage): Promise<number> {
  phase("drain");
  const { succeeded } = receiver.seen;
  const half = itemsOf(plan) / 2;
  let fruitless = 0;
  while (succeeded.size < half) {
    const before = succeeded.size;
    await fireTick(url, Date.now(), signal);
    fruitless = succeeded.size > before ? 0 : fruitless + 1;
    if (fruitless >= FRUITLESS_MOST) throw new Error(`${fruitless} ticks in a row have drained nothing`);
  }
  phase("flip");
  const tick = fireTick(url, Date.now(), signal);
  await sleep(FLIP_AFTER_MS);
  await flip(client, "queue");
  await tick;
  return succeeded.size;
}

/**
 * Lets the queue work what is left, retries too. A retry that is hours away is brought near by driving time forward,
 * and only while nothing is sent or running, a job's slot neither: a jump would lapse those leases. Answers how far time
 * was driven, ms.
 */
export async function workTheRest({ began, url, database, signal, phase }: Stage): Promise<number> {
  phase("queue");
  /** How far time was driven. It does not go back: leases count from it. */
  let driven = 0;
  let lastTick = 0;
  const tick = async (time: number) => {
    await fireTick(url, time, signal);
    lastTick = Date.now();
  };
  for (;;) {
    signal.throwIfAborted();
    const now = Math.max(Date.now(), driven);
    const { due, leased, nextDue, slots } = readOutbox(database, now, began);
    if (nextDue === null && leased === 0 && slots === 0) return now;
    if (due > 0 && leased === 0) await tick(now);
    else if (leased === 0 && slots === 0 && nextDue !== null) {
      phase("drive time");
      driven = nextDue;
      await tick(driven);
    } else if (Date.now() - lastTick >= TICK_EVERY_MS) await tick(now);
    await sleep(LOOK_MS);
  }
}

async function flip(client: Client, path: "queue" | "drain"): Promise<void> {
  const flips = [DELIVER, POLL].map((name) => {
    const [module, topic] = name.split(".");
    return client.command("topic.path", { module, topic, path });
  });
  await Promise.all(flips);
}
