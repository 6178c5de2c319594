import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { fireTick } from "../../src/cli/client.ts";
import { openDatabase } from "../../src/cli/database.ts";
import { freePort, type Local, ROOT, startLocal } from "../../src/cli/local.ts";

/**
 * How fast items go on this machine, under the real local runtime and against no other load. By hand:
 *
 *   node test/bench/load.node.ts [--items N] [--beside N] [--only pump,beside,drain,enqueue,latency,second]
 *
 * These are a simulator's figures: they say how parts compare with each other, not what the platform does.
 */
const { values } = parseArgs({
  options: {
    items: { type: "string", default: "100000" },
    beside: { type: "string", default: "1000000" },
    only: { type: "string", default: "pump,beside,drain,enqueue,latency,second" },
  },
});
const ITEMS = Number(values.items);
const BESIDE = Number(values.beside);
const PARTS = new Set(values.only.split(","));
/** Rows of one request that enqueues: well within an isolate's memory. */
const ENQUEUE_PAGE = 10_000;
/** Longest a part may take, ms. */
const PATIENCE_MS = 300_000;

interface Ran {
  times: number;
  distinct: number;
  late: number[];
  first: number;
  last: number;
  now: number;
}

const dir = await mkdtemp(path.join(tmpdir(), "duework-bench-"));
const local: Local = await startLocal({
  dir,
  root: path.join(ROOT, "test/sim/fixture"),
  port: await freePort(),
  frozen: true,
  flags: ["--var", "SCHEDULED_LIMITS:unbounded"],
});
const results: Record<string, unknown>[] = [];

try {
  if (PARTS.has("enqueue")) await enqueueRate();
  if (PARTS.has("latency")) await latency();
  if (PARTS.has("second")) await second();
  if (PARTS.has("pump")) {
    await pump("bench.one");
    await pump("bench.ten");
    await pump("bench.fifty");
  }
  if (PARTS.has("drain")) await drain();
  if (PARTS.has("beside")) await beside();
} finally {
  await local.stop();
  await rm(dir, { recursive: true, force: true });
}
const machine = {
  cpu: cpus()[0]?.model ?? "unknown",
  cores: cpus().length,
  node: process.version,
  workerd: JSON.parse(await readFile(path.join(ROOT, "node_modules/workerd/package.json"), "utf8")).version as string,
  commit: execFileSync("git", ["-C", ROOT, "rev-parse", "--short", "HEAD"]).toString().trim(),
};
console.table(results.map(({ part, ...rest }) => ({ part, ...rest })));
console.log(JSON.stringify({ machine, results }));

/** 100,000 due items of a topic, from one tick to empty. */
async function pump(topic: string, what = "pumped"): Promise<number> {
  await enqueue(topic, ITEMS);
  const started = performance.now();
  await fireTick(local.url, Date.now());
  await emptied(topic);
  return await report(`${what}: ${topic}`, topic, performance.now() - started);
}

async function drain(): Promise<void> {
  await enqueue("bench.drain", ITEMS);
  const started = performance.now();
  const tick = fireTick(local.url, Date.now()).catch(() => {});
  await emptied("bench.drain");
  await report("drained: bench.drain, settled in hundreds", "bench.drain", performance.now() - started);
  await tick;
}

async function beside(): Promise<void> {
  const alone = await pump("bench.ten", "alone");
  for (const topic of ["bench.ten", "bench.future"]) {
    await get(`/future?topic=${topic}&count=${BESIDE / 2}`);
  }
  const among = await pump("bench.ten", `beside ${BESIDE} future rows`);
  results.push({ part: "beside ÷ alone", ratio: round(among / alone, 2) });
}

async function enqueueRate(): Promise<void> {
  const started = performance.now();
  await enqueue("bench.future", ITEMS, 3_600_000);
  const ms = performance.now() - started;
  results.push({
    part: "enqueued in bulk",
    items: ITEMS,
    seconds: round(ms / 1_000, 2),
    perSecond: Math.round(ITEMS / (ms / 1_000)),
  });
  await get("/clear");
}

/** From the request that enqueues an item to its handler's start, on a runtime that does nothing else. */
async function latency(): Promise<void> {
  for (let n = 0; n < 100; n++) {
    await post({ topic: "bench.now", count: 1, now: true });
    await sleep(60);
  }
  const { late, times } = await ran("bench.now");
  results.push({ part: "enqueueNow to start, ms", items: times, ...spread(late) });
}

/** Items due at seconds of the near future: how long after its instant each starts. */
async function second(): Promise<void> {
  await get("/clear");
  for (let n = 0; n < 40; n++) {
    await post({ topic: "bench.now", count: 1, now: n % 2 === 0, dueIn: 2_000 + 250 * n });
  }
  // Those that were not enqueued at once are found by this tick, as by the one of their minute.
  await fireTick(local.url, Date.now());
  await until(async () => (await ran("bench.now")).times >= 40);
  const { late, times } = await ran("bench.now");
  results.push({ part: "due to start, ms", items: times, ...spread(late) });
}

async function report(part: string, topic: string, ms: number): Promise<number> {
  const { times, distinct } = await ran(topic);
  const database = await openDatabase(dir);
  const { dead } = database.prepare("SELECT count(*) AS dead FROM dead_letters WHERE topic = ?").get(topic) as {
    dead: number;
  };
  database.close();
  results.push({
    part,
    items: ITEMS,
    seconds: round(ms / 1_000, 2),
    perSecond: Math.round(ITEMS / (ms / 1_000)),
    lost: ITEMS - distinct,
    twice: times - distinct,
    dead,
  });
  await get("/clear");
  return ms;
}

async function emptied(topic: string): Promise<void> {
  await until(async () => (await get<{ any: 0 | 1 }>(`/left?topic=${topic}`)).any === 0);
}

async function enqueue(topic: string, count: number, dueIn = 0): Promise<void> {
  for (let left = count; left > 0; left -= ENQUEUE_PAGE) {
    await post({ topic, count: Math.min(left, ENQUEUE_PAGE), dueIn });
  }
}

async function post(body: unknown): Promise<void> {
  const answer = await fetch(`${local.url}/enqueue`, { method: "POST", body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`enqueue answered ${answer.status}: ${await answer.text()}`);
  await answer.arrayBuffer();
}

async function get<Body>(pathAndQuery: string): Promise<Body> {
  const answer = await fetch(local.url + pathAndQuery);
  if (!answer.ok) throw new Error(`${pathAndQuery} answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as Body;
}

async function ran(topic: string): Promise<Ran> {
  return get(`/ran?topic=${topic}`);
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  const end = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not within ${PATIENCE_MS} ms; see ${local.logFile}`);
    await sleep(100);
  }
}

function spread(samples: readonly number[]) {
  const sorted = [...samples].sort((a, b) => a - b);
  const at = (part: number) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
  return { min: sorted[0], p50: at(0.5), p99: at(0.99), max: sorted.at(-1) };
}

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}
