import { describe, expect, test } from "vitest";
import { createWorker, recordsRetention } from "../../src/index.ts";
import { checkoutExpiry } from "../../src/checkout/job.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

const TOKEN = "the-token-of-ann";
const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(TOKEN)));
const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const env = {
  DB,
  ITEMS: new HeldQueue(),
  DUEWORK_TOKENS: JSON.stringify([{ subject: "ann", sha256, grants: { actions: "all" } }]),
  ENABLED_JOBS: "records-retention,no-such-job",
  WORKER_PROCESSORS: "records-retention",
};
const worker = createWorker({ modules: [], jobs: [recordsRetention, checkoutExpiry] });

async function call(path: string, args?: unknown) {
  const init = args === undefined ? {} : { method: "POST", body: JSON.stringify(args) };
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  const request = new Request(`https://duework.test${path}`, { ...init, headers });
  const response = await worker.fetch(request as never, env as never, {} as ExecutionContext);
  return { status: response.status, json: (await response.json()) as never as Record<string, never> };
}

const workspace = (n: number) => `00000000-0000-4000-8000-${String(n).padStart(12, "0")}`;

describe("jobs over HTTP", () => {
  test("a job that is on, one that is off, and a mistake that stops neither the Worker nor its neighbour", async () => {
    const { json } = await call("/api/jobs");
    expect(json.items).toMatchObject([
      { id: "records-retention", enabled: true, processor: "module", stopped: false, cron: "17 * * * *" },
      { id: "inventory-checkout-expiry", enabled: false, processor: null },
    ]);
    const health = await call("/healthz");
    expect(health).toMatchObject({
      status: 200,
      json: { problems: [{ code: "unknown_job", setting: "ENABLED_JOBS" }] },
    });
    expect((await call("/api/jobs/no-such-job")).status).toBe(404);
  });

  test("fired → its slot is listed, and fired again in its minute it is refused", async () => {
    expect(await call("/api/commands/job.fire", { id: "records-retention" })).toMatchObject({ status: 200 });
    const { json } = await call("/api/jobs/records-retention/slots?limit=1");
    expect(json.items).toMatchObject([{ generation: 1, processor: "module", result: null }]);
    const again = await call("/api/commands/job.fire", { id: "records-retention" });
    expect(again).toMatchObject({ status: 409, json: { code: "slot_not_claimed" } });
  });

  test("quarantined work is listed by pages, and settled by a person who says why", async () => {
    const insert = DB.prepare(
      `INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at, error)
       VALUES ('inventory-checkout-expiry', ?1, 'quarantined', 1, ?2, 3, 5, '<img src=x onerror=alert(1)>')`,
    );
    await DB.batch([1, 2, 3].map((n) => insert.bind(workspace(n), n)));
    const list = "/api/jobs/inventory-checkout-expiry/obligations?state=quarantined";
    const first = (await call(`${list}&limit=2`)).json;
    expect(first.items).toMatchObject([{ workspace: workspace(1), charges: 3 }, { workspace: workspace(2) }]);
    const second = (await call(`${list}&limit=2&cursor=${first.nextCursor}`)).json;
    expect([second.items, second.nextCursor]).toMatchObject([[{ workspace: workspace(3) }], null]);
    expect((await call(`${list}&cursor=elsewhere`)).status).toBe(400);

    const settle = { job: "inventory-checkout-expiry", items: [workspace(2)], reason: "shown anew by hand" };
    expect(await call("/api/commands/quarantine.settle", { ...settle, reason: " " })).toMatchObject({ status: 400 });
    expect((await call("/api/commands/quarantine.settle", settle)).json).toMatchObject({
      result: { settled: [workspace(2)] },
    });
    const row = await DB.prepare("SELECT settled_by, reason, how FROM settlements").first();
    expect(row).toEqual({ settled_by: "http:ann", reason: "shown anew by hand", how: "by hand" });
    expect(await call("/api/commands/quarantine.revalidate", settle)).toMatchObject({
      status: 409,
      json: { code: "no_storefront" },
    });
  });
});
