import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { loadavg, tmpdir } from "node:os";
import path from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { createClient, fireTick } from "../../src/cli/client.ts";
import { openDatabase } from "../../src/cli/database.ts";
import { JOB } from "../../src/cli/demo/checkouts.ts";
import { hookPath, startReceiver } from "../../src/cli/demo/receiver.ts";
import { addSchedules } from "../../src/cli/demo/schedules.ts";
import { startStorefront, workspaceId } from "../../src/cli/demo/storefront.ts";
import { freePort, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";
import { heapMiB, residentMiB } from "./memory.node.ts";

/**
 * `npm run soak`: an hour of ticks, driven, over a local runtime with a storefront and with receivers that are good,
 * slow, failing and hanging; what is kept, a tick's time and the memory must not grow.
 */

const HELP = `npm run soak [-- FLAGS]: an hour's ticks under load, and what grows meanwhile.

  --minutes N  driven minutes, 8 at least (default 90)
  --pace MS    real time between two of them (default 4000)
  --events N   events a minute, each to four endpoints (default 8)
  --help       says this

Prints one JSON object. Exit 0: nothing grew; 1: something did; 2: it could not be run.`;

const MINUTE = 60_000;
const DAY = 86_400_000;
/** Rows that are too old when it begins: more than the ticks of a run can forget, and no more than retention may a tick. */
const OLD_TICKS = 4_000;
const OLD_DELIVERIES = 60_000;
const FORGOTTEN_A_TICK = { ticks: 20, deliveries: 500 };
/** Checkouts that end in each minute, over so many workspaces. */
const CHECKOUTS_A_MINUTE = 20;
const WORKSPACES = 40;
/** Every so many minutes one event goes to the endpoint that hangs: it holds the one local consumer for its whole limit. */
const HANGS_EACH = 10;
/**
 * What the last quarter may be over the first, for noise: a factor and a floor. The local runtime collects its garbage
 * late: its process that runs nothing of ours grows as the other does, so the resident memory has the widest room, and
 * the Worker's own heap the narrowest.
 */
const MAY_GROW = { kept: [1.5, 200], tickMs: [1.5, 60], heapMiB: [1.2, 1], memoryMiB: [2, 200] } as const;
/** Of all minutes, those that fill the pipes and are not measured: retries of five minutes have begun to come back. */
const WARM_UP = 1 / 6;

/** One driven minute. */
interface Sample {
  minute: number;
  /** What is at work: items, their keys, live runs, open slots, owed workspaces. */
  kept: number;
  tickMs: number;
  /** The Worker's own heap, garbage apart. */
  heapMiB: number;
  /** Resident memory of the runtime's processes, those that run nothing of ours too. */
  memoryMiB: number;
  oldTicks: number;
  oldDeliveries: number;
}

/** Receivers that are not good. Each fails an event's first tries in its own way, and takes the next. */
async function startTroubles() {
  const tries = new Map<string, number>();
  const answered = { slow: 0, failing: 0, hanging: 0, dropping: 0 };
  const server = createServer((request, response) => {
    const kind = (request.url ?? "").slice(1) as keyof typeof answered;
    const event = `${kind} ${request.headers["webhook-id"]}`;
    const nth = (tries.get(event) ?? 0) + 1;
    tries.set(event, nth);
    request.resume().on("end", async () => {
      // Until the caller gives up.
      if (kind === "hanging" && nth === 1) return;
      if (kind === "dropping" && nth === 1) return void request.socket.destroy();
      if (kind === "slow") await sleep(700);
      if (kind === "failing" && nth <= 2) response.writeHead(500);
      else answered[kind] += 1;
      response.end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url, answered, close };
}

/** Checkouts that end as time is driven, and rows that are too old. */
async function prepare(dir: string, start: number, minutes: number): Promise<void> {
  const database = await openDatabase(dir, { readOnly: false });
  try {
    database.exec("BEGIN");
    const checkout = database.prepare(
      "INSERT INTO checkouts (id, workspace, status, expires_at) VALUES (?, ?, 'reserved', ?)",
    );
    for (let n = 0; n < minutes * CHECKOUTS_A_MINUTE; n += 1) {
      // The first two workspaces of the storefront fail on purpose.
      const workspace = workspaceId(2 + (n % (WORKSPACES - 2)));
      checkout.run(`soak-${n}`, workspace, start + Math.floor(n / CHECKOUTS_A_MINUTE) * MINUTE);
    }
    const tick = database.prepare(
      "INSERT INTO ticks (at, started_at, wall_until, modules, ended_at) VALUES (?1, ?1, ?1, '[]', ?1)",
    );
    for (let n = 0; n < OLD_TICKS; n += 1) tick.run(start - 30 * DAY + n * MINUTE);
    const delivery = database.prepare(
      `INSERT INTO webhook_deliveries (day, event_id, at, item, endpoint_id, attempt, outcome, status, ms)
       VALUES (?, 'old', ?, ?, 'old', 1, 'delivered', 200, 1)`,
    );
    const day = Math.floor(start / DAY) - 60;
    for (let n = 0; n < OLD_DELIVERIES; n += 1) delivery.run(day, day * DAY + n, `old-${n}`);
    database.exec("COMMIT");
  } finally {
    database.close();
  }
}

async function lookAt(database: DatabaseSync, minute: number, start: number, inspector: number): Promise<Sample> {
  const row = database
    .prepare(
      `SELECT (SELECT count(*) FROM items) + (SELECT count(*) FROM item_keys)
         + (SELECT count(*) FROM runs WHERE ended_at IS NULL) + (SELECT count(*) FROM slots WHERE result IS NULL)
         + (SELECT count(*) FROM obligations) AS kept,
         (SELECT count(*) FROM ticks WHERE started_at < ?1) AS oldTicks,
         (SELECT count(*) FROM webhook_deliveries WHERE day < ?2) AS oldDeliveries,
         (SELECT max(ended_at - started_at) FROM ticks WHERE id = (SELECT max(id) FROM ticks WHERE ended_at IS NOT NULL)) AS tickMs`,
    )
    .get(start - 7 * DAY, Math.floor(start / DAY) - 30) as unknown as Omit<Sample, "minute" | "heapMiB" | "memoryMiB">;
  const heap = Math.round(100 * (await heapMiB(inspector))) / 100;
  return { minute, ...row, heapMiB: heap, memoryMiB: Math.round(residentMiB()) };
}

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;

/** What grew, one sentence each; and the medians of the first and the last quarter. */
function judge(samples: readonly Sample[]) {
  const measured = samples.slice(Math.floor(samples.length * WARM_UP));
  const quarter = Math.max(1, Math.floor(measured.length / 4));
  const found: string[] = [];
  const figures: Record<string, { first: number; last: number; most: number }> = {};
  for (const what of ["kept", "tickMs", "heapMiB", "memoryMiB"] as const) {
    const of = (some: readonly Sample[]) => median(some.map((one) => one[what]));
    const first = of(measured.slice(0, quarter));
    const last = of(measured.slice(-quarter));
    const [factor, floor] = MAY_GROW[what];
    if (last > first * factor && last > first + floor) found.push(`${what} grew from ${first} to ${last}`);
    figures[what] = { first, last, most: Math.max(...samples.map((one) => one[what])) };
  }
  const forgotten = { ticks: 0, deliveries: 0 };
  for (const [nth, { oldTicks, oldDeliveries }] of samples.entries()) {
    const before = samples[nth - 1];
    if (before === undefined) continue;
    forgotten.ticks = Math.max(forgotten.ticks, before.oldTicks - oldTicks);
    forgotten.deliveries = Math.max(forgotten.deliveries, before.oldDeliveries - oldDeliveries);
  }
  for (const what of ["ticks", "deliveries"] as const) {
    if (forgotten[what] === 0) found.push(`no old ${what} were forgotten`);
    if (forgotten[what] > FORGOTTEN_A_TICK[what]) found.push(`a tick forgot ${forgotten[what]} ${what}`);
  }
  return { found, figures, forgottenATick: forgotten };
}

async function soak(minutes: number, paceMs: number, events: number): Promise<number> {
  const dir = await mkdtemp(path.join(tmpdir(), "duework-soak-"));
  const token = newToken();
  const storefrontToken = newToken();
  const storefront = await startStorefront({ checkouts: 0, workspaces: WORKSPACES }, storefrontToken);
  const good = await startReceiver({ endpoints: 1, events: minutes * events + 1, merchants: 0 });
  const troubles = await startTroubles();
  const start = Math.ceil(Date.now() / MINUTE) * MINUTE;
  const vars = [
    ...Object.values(localVars(token)),
    `ENABLED_JOBS=${JOB}`,
    `WORKER_PROCESSORS=${JOB}`,
    `STOREFRONT_URL=${storefront.url}`,
    `STOREFRONT_TOKEN=${storefrontToken}`,
  ];
  await writeFile(path.join(dir, "vars"), `${vars.join("\n")}\n`, { mode: 0o600 });
  const state = path.join(dir, "state");
  const inspector = await freePort();
  const local = await startLocal({
    dir: state,
    port: await freePort(),
    frozen: true,
    flags: ["--env-file", path.join(dir, "vars"), "--inspector-port", String(inspector)],
    prepare: () => prepare(state, start, minutes),
  });
  try {
    const client = createClient(local.url, token);
    const database = await openDatabase(state);
    const add = (url: string, type = "order.paid") =>
      client.command<{ secret: string }>("webhooks.endpoint-add", { url, events: [type] });
    good.trust(0, (await add(good.url + hookPath(0))).secret);
    for (const kind of ["slow", "failing", "dropping"]) await add(`${troubles.url}/${kind}`);
    await add(`${troubles.url}/hanging`, "order.held");
    await addSchedules(client);

    const samples: Sample[] = [];
    let failedTicks = 0;
    for (let minute = 0; minute < minutes; minute += 1) {
      const until = Date.now() + paceMs;
      for (let n = 0; n < events; n += 1) {
        // Number 0 is the one that the good receiver never takes.
        await client.command("webhooks.publish", { type: "order.paid", data: { order: 1 + minute * events + n } });
      }
      if (minute % HANGS_EACH === 1) await client.command("webhooks.publish", { type: "order.held", data: {} });
      await fireTick(local.url, start + minute * MINUTE).catch(() => {
        failedTicks += 1;
      });
      await sleep(Math.max(0, until - Date.now()));
      const sample = await lookAt(database, minute, start, inspector);
      samples.push(sample);
      if (minute % 5 === 4) console.error(JSON.stringify(sample));
    }
    const { found, ...judged } = judge(samples);
    if (failedTicks > 0) found.push(`${failedTicks} ticks failed`);
    if (good.seen.complaints.length > 0) found.push(`the good receiver complains: ${good.seen.complaints[0]}`);
    const expired = database.prepare("SELECT count(*) AS n FROM checkouts WHERE status = 'expired'").get();
    const dead = database.prepare("SELECT reason, count(*) AS n FROM dead_letters GROUP BY reason").all();
    database.close();
    const did = {
      delivered: { good: good.seen.succeeded.size, ...troubles.answered },
      checkoutsExpired: Number(expired?.n),
      workspacesShown: storefront.seen.revalidated.size,
      dead,
    };
    const load = loadavg().map((one) => Number(one.toFixed(1)));
    const report = { ok: found.length === 0, grew: found, minutes, paceMs, events, load, ...judged, did };
    console.log(JSON.stringify(report, null, 2));
    return found.length === 0 ? 0 : 1;
  } finally {
    await local.stop();
    await Promise.all([storefront.close(), good.close()]);
    troubles.close();
    await rm(dir, { recursive: true, force: true });
  }
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      minutes: { type: "string", default: "90" },
      pace: { type: "string", default: "4000" },
      events: { type: "string", default: "8" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) {
    console.log(HELP);
    return 0;
  }
  const [minutes, pace, events] = [values.minutes, values.pace, values.events].map(Number);
  if (!(minutes! >= 8 && pace! >= 0 && events! >= 1)) throw new Error(HELP);
  return soak(minutes!, pace!, events!);
}

process.exitCode = await main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  return 2;
});
