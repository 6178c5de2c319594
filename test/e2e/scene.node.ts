import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fireTick } from "../../src/cli/client.ts";
import { openDatabase } from "../../src/cli/database.ts";
import { JOB, putCheckouts } from "../../src/cli/demo/checkouts.ts";
import { checkoutPlanOf, startStorefront, workspaceId } from "../../src/cli/demo/storefront.ts";
import { freePort, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";

/** A real local runtime with something to see on every page of the panel. */

/** The workspace in quarantine: none of the demo's own. */
export const QUARANTINED = workspaceId(0xbad);
export const DEAD = "webhooks.deliver~000000000000000000";
/** Dead letters of one reason, more than one part of a replay takes. */
export const MANY = 450;
const ENDPOINT = "endpoint-of-the-test";
const CHECKOUTS = 12;
const STOREFRONT_TOKEN = "the-storefront-s";

export interface Scene {
  url: string;
  token: string;
  /** Event ids that the receiver was told of. */
  told: Set<string>;
  tick(at?: number): Promise<void>;
  stop(): Promise<void>;
}

export async function startScene(): Promise<Scene> {
  const folder = await mkdtemp(path.join(tmpdir(), "duework-e2e-"));
  const token = newToken();
  const told = new Set<string>();
  const receiver = createServer((request, response) => {
    told.add(String(request.headers["webhook-id"]));
    request.resume().on("end", () => response.end());
  });
  await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
  const { port } = receiver.address() as AddressInfo;
  const plan = checkoutPlanOf(CHECKOUTS);
  const storefront = await startStorefront(plan, STOREFRONT_TOKEN);
  const vars = [
    ...Object.values(localVars(token)),
    `ENABLED_JOBS=${JOB}`,
    `WORKER_PROCESSORS=${JOB}`,
    `STOREFRONT_URL=${storefront.url}`,
    `STOREFRONT_TOKEN=${STOREFRONT_TOKEN}`,
  ];
  await writeFile(path.join(folder, "vars"), vars.join("\n"));
  const dir = path.join(folder, "state");
  const prepare = async () => {
    await putCheckouts(dir, plan);
    await putTrouble(dir, `http://127.0.0.1:${port}/`);
  };
  const flags = ["--env-file", path.join(folder, "vars")];
  const local = await startLocal({ dir, port: await freePort(), flags, frozen: true, prepare });
  return {
    url: local.url,
    token,
    told,
    tick: (at = Date.now()) => fireTick(local.url, at),
    async stop() {
      await local.stop();
      await storefront.close();
      receiver.closeAllConnections();
      receiver.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** What time and bad luck bring: an endpoint, dead letters, a workspace in quarantine. */
async function putTrouble(dir: string, url: string): Promise<void> {
  const database = await openDatabase(dir, { readOnly: false });
  const now = Date.now();
  try {
    database.exec("BEGIN");
    database
      .prepare(
        "INSERT INTO webhook_endpoints (id, url, events, secret, state, created_at) VALUES (?, ?, '[\"*\"]', ?, 'active', ?)",
      )
      .run(ENDPOINT, url, `whsec_${Buffer.alloc(32, 7).toString("base64")}`, now);
    const bury = database.prepare(
      `INSERT INTO dead_letters (id, topic, payload, reason, error, attempts, deliveries, born_at, died_at)
       VALUES (?, 'webhooks.deliver', ?, ?, 'Error: it was down', 11, 0, ?, ?)`,
    );
    const payload = (eventId: string) =>
      JSON.stringify({
        endpointId: ENDPOINT,
        eventId,
        type: "order.paid",
        timestamp: new Date(now).toISOString(),
        data: {},
      });
    bury.run(DEAD, payload("the-dead-one"), "attempts_exhausted", now, now);
    for (let n = 0; n < MANY; n += 1) bury.run(`many-${n}`, payload(`many-${n}`), "many", now, now - n);
    database
      .prepare(
        `INSERT INTO obligations (job, workspace, state, version, since, charges, quarantined_at, error)
         VALUES (?, ?, 'quarantined', 3, ?, 3, ?, 'the storefront said no')`,
      )
      .run(JOB, QUARANTINED, now - 3_600_000, now);
    database.exec("COMMIT");
  } finally {
    database.close();
  }
}
