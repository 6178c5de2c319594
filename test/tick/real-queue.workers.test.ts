import { env, exports } from "cloudflare:workers";
import { afterEach, expect, test, vi } from "vitest";
import { SECOND } from "../../src/core/time.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { configure } from "../../src/outbox/configure.ts";
import { beginInvocation, contextFor } from "../../src/outbox/runtime.ts";
import { platformPorts } from "../../src/platform.ts";
import { DB } from "../outbox/world.ts";

/** The local runtime's own queue, and this repository's Worker as its consumer. */

const { ITEMS } = env as unknown as { ITEMS: Queue };
const { runtime } = configure([merchants], { DB, ITEMS }, platformPorts);
const [poll] = merchants.topics;
const worker = (exports as unknown as { default: { scheduled(event: object): Promise<void> } }).default;

afterEach(() => vi.restoreAllMocks());

/** Answers when the account's poll has begun, ms. */
function polls(): Map<string, number> {
  const began = new Map<string, number>();
  vi.spyOn(globalThis, "fetch").mockImplementation(async (input) => {
    began.set(String(input), Date.now());
    return Response.json({});
  });
  return began;
}

const item = (id: string, dueAt?: number) => ({
  payload: { accountId: id, url: `https://example.com/${id}`, everySeconds: 86_400, from: Date.now() },
  ...(dueAt !== undefined && { dueAt }),
});

function context() {
  if (runtime === null || poll === undefined) throw new Error("misconfigured");
  return { ctx: contextFor(beginInvocation(runtime, Date.now()), "merchants"), poll };
}

test("an item enqueued now starts at once, without a tick", async () => {
  const began = polls();
  const latencies: number[] = [];
  for (let i = 0; i < 15; i += 1) {
    const { ctx, poll } = context();
    const from = Date.now();
    await ctx.outbox.enqueueNow(poll, [item(`now-${i}`)]);
    const url = `https://example.com/now-${i}`;
    await vi.waitFor(() => expect(began.has(url)).toBe(true), { timeout: 5 * SECOND, interval: 2 });
    latencies.push((began.get(url) ?? 0) - from);
  }
  const median = latencies.sort((a, b) => a - b)[7];
  console.log(`enqueueNow to start: median ${median} ms, longest ${latencies.at(-1)} ms`);
  expect(median).toBeLessThan(SECOND);
});

test("an item due in three seconds is sent by the tick with its delay, and starts within two seconds of it", async () => {
  const began = polls();
  const dueAt = Date.now() + 3 * SECOND;
  const { ctx, poll } = context();
  await ctx.db.batch(ctx.outbox.enqueue(poll, [item("later", dueAt)]));
  await worker.scheduled({ scheduledTime: Date.now(), cron: "* * * * *" });
  const row = await DB.prepare("SELECT report FROM ticks ORDER BY id DESC LIMIT 1").first<{ report: string }>();
  expect(JSON.parse(row?.report ?? "")).toMatchObject({ claimed: 1, sent: 1 });
  await vi.waitFor(() => expect(began.size).toBe(1), { timeout: 10 * SECOND, interval: 5 });
  const late = (began.get("https://example.com/later") ?? 0) - dueAt;
  console.log(`due to start: ${late} ms`);
  expect(late).toBeGreaterThanOrEqual(0);
  expect(late).toBeLessThan(2 * SECOND);
});
