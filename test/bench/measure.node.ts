import { setTimeout as sleep } from "node:timers/promises";
import type { Receiver } from "./receiver.node.ts";
import type { Runner } from "./runner.node.ts";

/** One round's figures, by name. */
export type Figures = Record<string, number>;

/** Longest a drain is watched, ms: what is slower is measured by what it did until then. */
const DRAIN_CAP_MS = 30_000;
const LOOK_MS = 20;
/** How long a receiver's answer takes while a worker is killed, ms. */
const SLOW_ANSWER_MS = 5;

export async function enqueueRate(runner: Runner, count: number): Promise<Figures> {
  return timed(runner, count, () => runner.enqueue(count));
}

/** What is put in is also handed on; it runs afterwards, outside of the time. */
export async function sentRate(runner: Runner, count: number): Promise<Figures> {
  const figures = await timed(runner, count, () => runner.enqueueSent(count));
  while ((await runner.ran()).times < count) await sleep(200);
  return figures;
}

async function timed(runner: Runner, count: number, work: () => Promise<void>): Promise<Figures> {
  const cpu = runner.cpu();
  const started = performance.now();
  await work();
  const seconds = (performance.now() - started) / 1_000;
  return { perSecond: count / seconds, cpuPer1000: ((runner.cpu() - cpu) * 1_000) / count };
}

/** From the start of work to the last item's settle. */
export async function drain(runner: Runner, count: number, receiver: Receiver | null): Promise<Figures> {
  receiver?.forget();
  await runner.enqueue(count, receiver?.url);
  const cpu = runner.cpu();
  const started = performance.now();
  await runner.begin();
  let over = false;
  for (; !over && performance.now() - started < DRAIN_CAP_MS; await sleep(over ? 0 : LOOK_MS)) {
    over = !(await runner.left());
  }
  const seconds = (performance.now() - started) / 1_000;
  const used = runner.cpu() - cpu;
  await runner.rest();
  const { times, distinct } = await runner.ran();
  const figures: Figures = {
    perSecond: distinct / seconds,
    cpuPer1000: (used * 1_000) / distinct,
    twice: times - distinct,
  };
  if (over) figures.lost = count - (receiver?.received.size ?? distinct);
  return figures;
}

/** Single items, one after another, on a system that does nothing else. */
export async function latency(runner: Runner, count: number): Promise<Figures> {
  await runner.begin();
  await sleep(1_000);
  for (let n = 0; n < count; n++) {
    await runner.one();
    await sleep(60);
  }
  for (const until = Date.now() + DRAIN_CAP_MS; Date.now() < until && (await runner.ran()).times < count; ) {
    await sleep(LOOK_MS);
  }
  const { late } = await runner.ran();
  await runner.rest();
  const sorted = late.sort((a, b) => a - b);
  const at = (part: number) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? Number.NaN;
  return { p50: at(0.5), p99: at(0.99), max: at(1) };
}

/**
 * Kills the worker when a quarter of its items has come, starts it again at once, and watches until all are settled or
 * the window ends. What had come and was not settled comes twice.
 */
export async function crash(runner: Runner, count: number, receiver: Receiver, windowMs: number): Promise<Figures> {
  receiver.forget();
  receiver.answerAfter(SLOW_ANSWER_MS);
  try {
    await runner.enqueue(count, receiver.url);
    await runner.begin();
    while (receiver.received.size < count / 4) await sleep(5);
    const killedAt = Date.now();
    const sinceKill = () => Date.now() - killedAt;
    await runner.crash();
    let left = true;
    for (; left && sinceKill() < windowMs; await sleep(LOOK_MS)) left = await runner.left();
    const settledAfter = sinceKill() / 1_000;
    await runner.rest();
    const came = [...receiver.received.values()];
    return {
      recoveredAfter: (receiver.lastNew() - killedAt) / 1_000,
      ...(!left && { settledAfter }),
      missing: count - came.length,
      twice: came.reduce((sum, times) => sum + times - 1, 0),
    };
  } finally {
    receiver.answerAfter(0);
  }
}
