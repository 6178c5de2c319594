import { beforeEach, describe, expect, test } from "vitest";
import { checkoutExpiry } from "../../src/checkout/job.ts";
import { isoInstant, MINUTE } from "../../src/core/time.ts";
import { job } from "../../src/index.ts";
import { instanceIdOf } from "../../src/jobs/slots.ts";
import { putStep } from "../../src/jobs/steps.ts";
import { DB } from "../outbox/world.ts";
import { createStage } from "./stage.ts";

const TABLES = ["slots", "jobs", "workflow_steps", "settlements", "runs"];
beforeEach(() => DB.batch(TABLES.map((table) => DB.prepare(`DELETE FROM ${table}`))));

const EXPIRY = "inventory-checkout-expiry";
const other = job({ id: "other", cron: "0 * * * *", processor: { kind: "workflow", binding: "OTHER_WORK" } });
const plain = job({ id: "plain", cron: "0 * * * *", processor: { kind: "module", handle: async () => {} } });

/** A Workflow's binding that remembers what it was asked for. */
class HeldWorkflow {
  asked: string[] = [];
  answer: () => Promise<unknown> = async () => ({ status: "complete" });

  async createBatch() {
    return { errors: [] };
  }

  async get(id: string) {
    this.asked.push(id);
    return { status: this.answer };
  }
}

/** Only checkout expiry is on: the other jobs are off, and their Workflow is not bound. */
function stage() {
  const workflow = new HeldWorkflow();
  const env = {
    ENABLED_JOBS: EXPIRY,
    WORKER_PROCESSORS: EXPIRY,
    CHECKOUT_EXPIRY: workflow,
    STOREFRONT_URL: "https://storefront.test",
    STOREFRONT_TOKEN: "a-token",
  };
  return { workflow, ...createStage([], { catalog: [checkoutExpiry, other, plain], env }) };
}

/** A slot of `job` that was claimed 5 ms into its minute, and completed 4 ms later where it has a result. */
async function slotOf(
  name: string,
  minute: number,
  generation: number,
  result: string | null = "succeeded",
  processor: "workflow" | "route" = "workflow",
): Promise<string> {
  const id = instanceIdOf({ job: name, slot: minute * MINUTE, generation });
  await DB.prepare(
    `INSERT INTO slots (job, slot, generation, processor, missed, claimed_at, deadline, result, completed_at, instance_id)
     VALUES (?1, ?2, ?3, ?4, 0, ?2 + 5, ?2 + 99, ?5, iif(?5 IS NULL, NULL, ?2 + 9), iif(?4 = 'workflow', ?6, NULL))`,
  )
    .bind(name, minute * MINUTE, generation, processor, result, id)
    .run();
  return id;
}

describe("the list of Workflow instances", () => {
  test("has the instances of all jobs, newest first, with their slots, and not what a route worked", async () => {
    const on = stage();
    await slotOf(EXPIRY, 10, 1);
    await slotOf(EXPIRY, 20, 2, "succeeded", "route");
    await slotOf(EXPIRY, 30, 3);
    const last = await slotOf("other", 25, 1, null);
    const { json } = await on.get("/api/workflows");
    expect(json).toEqual({
      items: [
        {
          workflow: "checkout-expiry",
          id: `${EXPIRY}-30-3`,
          status: "succeeded",
          startedAt: isoInstant(30 * MINUTE + 5),
          job: EXPIRY,
          slot: isoInstant(30 * MINUTE),
        },
        expect.objectContaining({ workflow: "other-work", id: last, status: "running" }),
        expect.objectContaining({ id: `${EXPIRY}-10-1` }),
      ],
      nextCursor: null,
    });
    expect(on.workflow.asked).toEqual([]);
  });

  test("goes by pages, each once, though two start in one instant and many slots are none", async () => {
    const on = stage();
    const insert = DB.prepare(
      `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
       INSERT INTO slots (job, slot, generation, processor, missed, claimed_at, deadline, instance_id)
       SELECT ?1, i * 60000, i, 'workflow', 0, i * 60000 + 5, 0, iif(i % ?3 = 0, ?1 || '-' || i || '-' || i, NULL) FROM n`,
    );
    await DB.batch([insert.bind(EXPIRY, 3_000, 700), insert.bind("other", 3_000, 1_400)]);
    const listed = await on.pages("/api/workflows?limit=2");
    expect(listed.map(({ id }) => id)).toEqual([
      `other-2800-2800`,
      `${EXPIRY}-2800-2800`,
      `${EXPIRY}-2100-2100`,
      `other-1400-1400`,
      `${EXPIRY}-1400-1400`,
      `${EXPIRY}-700-700`,
    ]);
    const before = { ...on.meter };
    await on.get("/api/workflows?limit=200");
    expect(on.meter.rowsRead - before.rowsRead).toBeLessThan(2_500);
  });
});

describe("one Workflow instance", () => {
  test("has its steps in order, and both states where the platform's is another", async () => {
    const on = stage();
    const id = await slotOf(EXPIRY, 10, 1, null);
    const step = (position: number, name: string) => ({ workflow: "checkout-expiry", instance: id, position, name });
    await DB.batch([putStep(DB, step(2, "batch-1"), { expired: 3 }, 7), putStep(DB, step(0, "reconcile"), {}, 6)]);
    on.workflow.answer = async () => ({ status: "errored", error: { name: "Error", message: "it died" } });
    expect((await on.get(`/api/workflows/checkout-expiry/${id}`)).json).toEqual({
      workflow: "checkout-expiry",
      id,
      status: "running",
      platformStatus: "errored",
      platformError: "Error: it died",
      startedAt: isoInstant(10 * MINUTE + 5),
      endedAt: null,
      job: EXPIRY,
      slot: isoInstant(10 * MINUTE),
      steps: [
        { position: 0, name: "reconcile", startedAt: isoInstant(6), updatedAt: isoInstant(6), progress: {} },
        { position: 2, name: "batch-1", startedAt: isoInstant(7), updatedAt: isoInstant(7), progress: { expired: 3 } },
      ],
    });
  });

  test("is shown as our rows say when the platform does not answer, or the job is off", async () => {
    const on = stage();
    const done = await slotOf(EXPIRY, 10, 1);
    on.workflow.answer = async () => Promise.reject(new Error("(instance.not_found)"));
    expect((await on.get(`/api/workflows/checkout-expiry/${done}`)).json).toMatchObject({
      status: "succeeded",
      platformStatus: null,
      platformError: "Error: (instance.not_found)",
      endedAt: isoInstant(10 * MINUTE + 9),
    });
    const id = await slotOf("other", 10, 1);
    expect((await on.get(`/api/workflows/other-work/${id}`)).json).toMatchObject({ platformStatus: null });
  });

  test("that no row knows is 404, and the platform is never asked for it", async () => {
    const on = stage();
    await slotOf(EXPIRY, 10, 1);
    await slotOf(EXPIRY, 11, 2, "succeeded", "route");
    for (const path of [
      `checkout-expiry/${EXPIRY}-10-2`,
      `checkout-expiry/${EXPIRY}-11-2`,
      `checkout-expiry/nope`,
      `other-work/${EXPIRY}-10-1`,
      `nope/${EXPIRY}-10-1`,
      `checkout-expiry/${encodeURIComponent("' OR 1=1 --")}`,
    ]) {
      expect(await on.get(`/api/workflows/${path}`), path).toMatchObject({ status: 404, json: { code: "not_found" } });
    }
    expect(on.workflow.asked).toEqual([]);
  });
});

test("settlements are listed newest first, by pages, with who and why", async () => {
  const on = stage();
  const workspace = (n: number) => `00000000-0000-4000-8000-${String(n).padStart(12, "0")}`;
  const insert = DB.prepare(
    `INSERT INTO settlements (job, settled_at, workspace, version, since, how, settled_by, reason, error)
     VALUES ('${EXPIRY}', ?1, ?2, 2, 1, 'by hand', 'http:ann', 'seen <b>fresh</b>', 'no')`,
  );
  await DB.batch([insert.bind(5, workspace(1)), insert.bind(5, workspace(2)), insert.bind(9, workspace(3))]);
  const list = `/api/jobs/${EXPIRY}/settlements`;
  const listed = await on.pages(`${list}?limit=1`);
  expect(listed.map((one) => one.workspace)).toEqual([3, 2, 1].map(workspace));
  expect(listed[0]).toEqual({
    workspace: workspace(3),
    version: 2,
    since: isoInstant(1),
    settledAt: isoInstant(9),
    settledBy: "http:ann",
    how: "by hand",
    reason: "seen <b>fresh</b>",
    error: "no",
  });
  expect((await on.get(`${list}?cursor=9`)).status).toBe(400);
});

test.for(["", "/slots", "/obligations", "/settlements"])("a job that is none has no page%s", async (page) => {
  expect(await stage().get(`/api/jobs/nope${page}`)).toMatchObject({ status: 404, json: { code: "not_found" } });
});

test("jobs go by pages in the catalog's order", async () => {
  const listed = await stage().pages("/api/jobs?limit=2");
  expect(listed.map(({ id }) => id)).toEqual([EXPIRY, "other", "plain"]);
});
