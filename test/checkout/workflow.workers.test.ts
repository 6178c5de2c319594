import { env } from "cloudflare:workers";
import { afterEach, expect, it, vi } from "vitest";
import { checkoutExpiry } from "../../src/checkout/job.ts";
import { runSweep } from "../../src/checkout/run.ts";
import { connect, readCheckoutSettings } from "../../src/checkout/settings.ts";
import { WORKFLOW } from "../../src/checkout/sweep.ts";
import { MINUTE } from "../../src/core/time.ts";
import { handOver } from "../../src/jobs/hand-over.ts";
import { selectJobs } from "../../src/jobs/selection.ts";
import { claimSlots, instanceIdOf, type Slot } from "../../src/jobs/slots.ts";
import { listSteps, type StepRow } from "../../src/jobs/steps.ts";
import { createWorld } from "../outbox/world.ts";
import { DB, Stage, Steps, workspace } from "./stage.ts";

const ON = { ENABLED_JOBS: checkoutExpiry.id, WORKER_PROCESSORS: checkoutExpiry.id };
const bindings = env as unknown as Record<string, unknown> & { CHECKOUT_EXPIRY: Workflow };
let minutes = 0;

/** Claims the job as a tick of this very moment would. */
async function claim(): Promise<Slot> {
  minutes += 1;
  const now = Date.now();
  const slot = (Math.floor(now / MINUTE) + minutes) * MINUTE;
  await DB.prepare("UPDATE jobs SET claimed = 0 WHERE id = ?1").bind(checkoutExpiry.id).run();
  const due = { job: checkoutExpiry.id, slot, missed: 0, processor: "workflow" as const };
  const [claim] = await claimSlots(DB, [due], now);
  if (claim?.kind !== "claimed") throw new Error(`not claimed: ${JSON.stringify(claim)}`);
  return claim.slot;
}

async function give(...slots: Slot[]): Promise<number> {
  const [active] = selectJobs([checkoutExpiry], { ...bindings, ...ON }).active;
  if (active === undefined) throw new Error("the job is off");
  return (
    await handOver(
      createWorld([]).invocation(),
      null,
      slots.map((slot) => ({ slot, active })),
    )
  ).failed;
}

async function statusOf(slot: Slot): Promise<string> {
  const instance = await bindings.CHECKOUT_EXPIRY.get(instanceIdOf(slot));
  for (let n = 0; n < 200; n += 1) {
    const { status } = await instance.status();
    if (["complete", "errored", "terminated"].includes(status)) return status;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return "still at work";
}

const stepsOf = async (slot: Slot) =>
  (await listSteps(DB, WORKFLOW, instanceIdOf(slot)).all<StepRow>()).results.map(({ name }) => name);

afterEach(() => void vi.restoreAllMocks());

it("runs a slot as a real instance, once however often it is handed over, and keeps its steps", async () => {
  const stage = await Stage.create("d1");
  await stage.reserve(2_300, 150);
  const requests: { authorization: string | null; ids: number }[] = [];
  vi.spyOn(globalThis, "fetch").mockImplementation(async (input, init) => {
    const request = new Request(input as string, init as RequestInit);
    const { workspaceIds } = await request.json<{ workspaceIds: string[] }>();
    requests.push({ authorization: request.headers.get("authorization"), ids: workspaceIds.length });
    return Response.json({ results: workspaceIds.map((wsId) => ({ wsId, ok: wsId !== workspace(3) })) });
  });
  const slot = await claim();
  expect(await give(slot)).toBe(0);
  expect(await give(slot)).toBe(0);
  expect(await statusOf(slot)).toBe("complete");
  expect(await stepsOf(slot)).toEqual(["reconcile", "batch-1", "complete"]);
  expect(requests.map(({ ids }) => ids)).toEqual([100, 50]);
  expect(requests[0]?.authorization).toBe("Bearer a token of the tests");
  expect(await stage.slot(slot)).toMatchObject({
    result: "degraded",
    detail: { expired: 1_000, revalidated: 149, owed: 1, stoppedBy: "owed" },
  });

  vi.mocked(fetch).mockImplementation(async (_, init) => {
    const { workspaceIds } = JSON.parse(String(init?.body)) as { workspaceIds: string[] };
    return Response.json({ results: workspaceIds.map((wsId) => ({ wsId, ok: true })) });
  });
  const next = await claim();
  // One that exists already in the same call is no failure, and the new one is made.
  expect(await give(slot, next)).toBe(0);
  expect(await statusOf(next)).toBe("complete");
  expect(await stepsOf(next)).toEqual(["reconcile", "owed", "batch-1", "batch-2", "complete"]);
  expect(await stage.slot(next)).toMatchObject({ result: "succeeded", detail: { expired: 1_300, revalidated: 301 } });
  expect(await stage.expiredCount()).toBe(2_300);
});

it("makes no call when it begins after its deadline, and refuses parameters that are no slot", async () => {
  const fetched = vi.spyOn(globalThis, "fetch");
  const slot = { ...(await claim()), claimedAt: Date.now() - 300_000, deadline: Date.now() - 60_000 };
  await give(slot);
  expect(await statusOf(slot)).toBe("complete");
  expect(await stepsOf(slot)).toEqual([]);
  const bad = { ...slot, generation: slot.generation + 100 };
  await bindings.CHECKOUT_EXPIRY.createBatch([{ id: instanceIdOf(bad), params: { job: "x" } }]);
  expect(await statusOf(bad)).toBe("errored");
  expect(fetched).not.toHaveBeenCalled();
});

it("is off, and says which setting is missing, while it is selected without its storefront", () => {
  const problemsOf = (settings: Record<string, unknown>) =>
    selectJobs([checkoutExpiry], { ...bindings, ...ON, ...settings }).problems.map(({ setting }) => setting);
  expect(problemsOf({})).toEqual([]);
  expect(problemsOf({ STOREFRONT_URL: "", STOREFRONT_TOKEN: "" })).toEqual(["STOREFRONT_URL"]);
  expect(problemsOf({ STOREFRONT_TOKEN: "" })).toEqual(["STOREFRONT_TOKEN"]);
  expect(problemsOf({ STOREFRONT_URL: "ftp://x" })).toEqual(["STOREFRONT_URL"]);
  expect(problemsOf({ SUPABASE_URL: "https://db.test" })).toEqual(["SUPABASE_SERVICE_KEY"]);
  expect(problemsOf({ SUPABASE_SERVICE_KEY: "x" })).toEqual(["SUPABASE_URL"]);
  expect(selectJobs([checkoutExpiry], { ...bindings, STOREFRONT_URL: "" }).problems).toEqual([]);
});

it("asks the database that the settings name", () => {
  const kindOf = (settings: Record<string, unknown>) => {
    const read = readCheckoutSettings({ ...bindings, ...settings });
    return read.settings === null ? read.problems : connect(read.settings, fetch).expiry.kind;
  };
  expect(kindOf({})).toBe("d1");
  expect(kindOf({ SUPABASE_URL: "https://db.test", SUPABASE_SERVICE_KEY: "x" })).toBe("supabase");
});

it("expires the rows of an app's own table, by the app's own statements", async () => {
  await DB.exec(
    "CREATE TABLE orders (no TEXT PRIMARY KEY, shop TEXT NOT NULL, held_until INTEGER, open INTEGER NOT NULL)",
  );
  await DB.prepare("INSERT INTO orders VALUES ('a', ?1, 5, 1), ('b', ?1, 9, 1), ('c', ?2, 5, 0), ('d', ?2, 1e15, 1)")
    .bind(workspace(1), workspace(2))
    .run();
  const stage = await Stage.create("d1");
  const slot = await stage.claim();
  const { expiry } = connect({ storefront: { url: "https://storefront.test", secret: "x" }, supabase: null }, fetch, {
    candidates:
      "SELECT no AS id, shop AS workspace FROM orders WHERE open = 1 AND held_until <= ?2 ORDER BY held_until LIMIT ?3",
    expire: (ids) => `UPDATE orders SET open = 0, held_until = ?2 WHERE open = 1 AND no IN (${ids})`,
  });
  await runSweep({ ...stage.sweep(slot), expiry }, new Steps().run);
  expect(await stage.slot(slot)).toMatchObject({ result: "succeeded", detail: { expired: 2, revalidated: 1 } });
  const { results } = await DB.prepare("SELECT no FROM orders WHERE open = 1").all();
  expect(results).toEqual([{ no: "d" }]);
});
