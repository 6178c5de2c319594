import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { fireTick } from "../../src/cli/client.ts";
import { openDatabase } from "../../src/cli/database.ts";
import { freePort, type Local, startLocal } from "../../src/cli/local.ts";

/**
 * A real local runtime, killed without a word in the middle of a consumer's batch and of a drain at once, and started
 * again on the same folder. Its queue is gone with it; what is left is the database.
 */

const QUEUED = 12;
const DRAINED = 8;
const SECOND = 1_000;
/** How long before the first lease's end the restarted runtime's clock stands, ms. */
const BEFORE_LEASE_END = 3 * SECOND;

interface Told {
  what: "start" | "end";
  id: string;
  topic: string;
  /** By the runtime's clock, ms. */
  at: number;
}

interface LeasedRow {
  id: string;
  lane: number;
  at: number;
}

const told: Told[] = [];
let handlerMs = 1_000;
let recorder: Server;
let dir: string;
let local: Local | null = null;

beforeAll(async () => {
  dir = await mkdtemp(path.join(tmpdir(), "duework-restart-"));
  recorder = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      told.push(JSON.parse(Buffer.concat(chunks).toString()) as Told);
      response.end(String(handlerMs));
    });
  });
  await new Promise<void>((resolve) => recorder.listen(0, "127.0.0.1", resolve));
});

afterAll(async () => {
  await local?.stop();
  recorder.closeAllConnections();
  recorder.close();
  await rm(dir, { recursive: true, force: true });
});

test("killed in mid-batch and mid-drain: every item settles, and none starts again before its lease has ended", async () => {
  local = await start();
  await enqueue(local, "sim.drain", DRAINED, false);
  const drain = fireTick(local.url, Date.now()).catch(() => {});
  await enqueue(local, "sim.batch", QUEUED, true);
  const of = (topic: string, what: Told["what"]) => told.filter((one) => one.topic === topic && one.what === what);
  await until("both paths are in the middle", 20 * SECOND, () =>
    ["sim.batch", "sim.drain"].every(
      (topic) => of(topic, "end").length > 0 && of(topic, "start").length > of(topic, "end").length,
    ),
  );
  await local.kill9();
  await drain;

  const leases = await readLeases();
  const firstStarts = told.filter(({ what }) => what === "start");
  told.length = 0;
  handlerMs = 10;
  local = await start();
  const running = firstStarts.flatMap(({ id }) => leases.get(id)?.at ?? []);
  // The restart comes when it pleases: the runtime's clock goes on shortly before the first lease ends.
  const ahead = Math.max(0, Math.min(...running) - BEFORE_LEASE_END - Date.now());
  await fetch(`${local.url}/clock?ahead=${ahead}`);
  await until("every item has settled", 60 * SECOND, async () => {
    if (local === null) return true;
    await fireTick(local.url, Date.now() + ahead);
    await sleep(500);
    const { items } = await count();
    return items === 0;
  });

  const repeated = told
    .filter(({ id, what }) => what === "start" && firstStarts.some((first) => first.id === id))
    .map(({ id, topic, at }) => ({ id, topic, leaseEnd: leases.get(id)?.at ?? Number.NaN, secondStart: at }));
  console.table(repeated.map((one) => ({ ...one, after: one.secondStart - one.leaseEnd })));
  expect(new Set(repeated.map(({ topic }) => topic))).toEqual(new Set(["sim.batch", "sim.drain"]));
  for (const { id, leaseEnd, secondStart } of repeated) expect(secondStart, id).toBeGreaterThanOrEqual(leaseEnd);
  // What was leased and had not started waits for its lease too.
  for (const { id, what, at } of told) {
    const lease = leases.get(id);
    if (what === "start" && lease !== undefined && lease.lane > 0) expect(at, id).toBeGreaterThanOrEqual(lease.at);
  }
  const starts = told.filter(({ what }) => what === "start").map(({ id }) => id);
  expect(new Set(starts).size, "no item started twice after the restart").toBe(starts.length);
  expect(new Set([...firstStarts.map(({ id }) => id), ...starts]).size).toBe(QUEUED + DRAINED);
  expect(await count()).toEqual({ items: 0, dead: 0 });
}, 120_000);

async function start(): Promise<Local> {
  const root = path.join(import.meta.dirname, "fixture");
  return startLocal({
    dir,
    root,
    port: await freePort(),
    frozen: true,
    flags: ["--var", "SCHEDULED_LIMITS:unbounded"],
  });
}

async function enqueue({ url }: Local, topic: string, items: number, now: boolean): Promise<void> {
  const { port } = recorder.address() as AddressInfo;
  const body = JSON.stringify({ topic, count: items, now, payload: { recorder: `http://127.0.0.1:${port}/` } });
  const answer = await fetch(`${url}/enqueue`, { method: "POST", body });
  expect(answer.status, await answer.text()).toBe(200);
}

/** Every row as the crash has left it. */
async function readLeases(): Promise<Map<string, LeasedRow>> {
  const database = await openDatabase(dir);
  const rows = database
    .prepare("SELECT topic || '~' || seq AS id, lane, at FROM items")
    .all() as unknown as LeasedRow[];
  database.close();
  return new Map(rows.map((row) => [row.id, row]));
}

async function count(): Promise<{ items: number; dead: number }> {
  const database = await openDatabase(dir);
  const counted = database
    .prepare("SELECT (SELECT count(*) FROM items) AS items, (SELECT count(*) FROM dead_letters) AS dead")
    .get();
  database.close();
  return { ...(counted as { items: number; dead: number }) };
}

async function until(what: string, withinMs: number, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + withinMs;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`within ${withinMs} ms: not ${what}`);
    await sleep(50);
  }
}
