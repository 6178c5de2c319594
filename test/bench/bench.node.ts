import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { loadavg, tmpdir } from "node:os";
import path from "node:path";
import { parseArgs, promisify } from "node:util";
import { ROOT } from "../../src/cli/local.ts";
import { type Case, cases, type Sizes } from "./cases.node.ts";
import { contenders } from "./contenders.node.ts";
import { describeMachine } from "./machine.node.ts";
import type { Figures } from "./measure.node.ts";
import { startReceiver } from "./receiver.node.ts";
import { type Measured, type Report, tables, writePage } from "./report.node.ts";
import { type Runner, startOurs } from "./runner.node.ts";
import { ensureServers, startPostgres, startRedis } from "./servers.node.ts";

/**
 * Ours beside graphile-worker, pg-boss and BullMQ, on this machine, in turn:
 *
 *   npm run bench [-- --json FILE] [--write] [--quick] [--rounds N] [--only case,…] [--systems name,…]
 *
 * `--write` puts the figures in docs/benchmarks.md.
 */
const { values } = parseArgs({
  options: {
    json: { type: "string" },
    write: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    rounds: { type: "string" },
    only: { type: "string" },
    systems: { type: "string" },
  },
});

const FULL: Sizes = {
  enqueued: 100_000,
  sent: 20_000,
  drained: 50_000,
  drainedSlowly: 20_000,
  posted: 20_000,
  beside: 1_000_000,
  singles: 100,
  killed: 2_000,
  windowMs: 400_000,
  peerWindowMs: 120_000,
};
const QUICK: Sizes = {
  enqueued: 10_000,
  sent: 2_000,
  drained: 5_000,
  drainedSlowly: 2_000,
  posted: 1_000,
  beside: 20_000,
  singles: 20,
  killed: 500,
  windowMs: 150_000,
  peerWindowMs: 10_000,
};

await ensureServers();
await installPeers();
const rounds = Number(values.rounds ?? (values.quick ? 1 : 3));
const dir = await mkdtemp(path.join(tmpdir(), "duework-bench-"));
const stops: (() => unknown)[] = [];
let ended = false;
for (const signal of ["SIGINT", "SIGTERM"] as const)
  process.once(signal, () => void end().then(() => process.exit(130)));

try {
  const report = await run();
  for (const { title, head, rows } of tables(report)) {
    console.log(`\n${title}`);
    console.table(rows.map((row) => Object.fromEntries(head.map((name, index) => [name, row[index]]))));
  }
  if (values.json !== undefined) await writeFile(values.json, `${JSON.stringify(report, null, 2)}\n`);
  if (values.write) await writePage(report);
} finally {
  await end();
}

async function run(): Promise<Report> {
  // Its server's folder must be open to the server's own user.
  await promisify(execFile)("chmod", ["755", dir]);
  const started = <T extends { stop(): unknown }>(one: T): T => {
    stops.push(() => one.stop());
    return one;
  };
  const postgres = started(await startPostgres(dir));
  const redis = started(await startRedis(dir));
  const receiver = started(await startReceiver());
  const ours = started(await startOurs(path.join(dir, "ours")));
  const machine = describeMachine({ postgresql: postgres.version, redis: redis.version });
  const only = values.only?.split(",");
  const systems = values.systems?.split(",");
  const chosen = cases(contenders({ dir, ours, postgres, redis }), values.quick ? QUICK : FULL)
    .filter(({ name }) => only === undefined || only.includes(name))
    .map((one) => ({
      ...one,
      contenders: one.contenders.filter(({ system }) => systems === undefined || systems.includes(system)),
    }));
  const measured: Measured[] = [];
  for (const one of chosen) measured.push(...(await inTurn(one, receiver)));
  return {
    machine: { ...machine, loadAfter: loadavg().map((each) => Number(each.toFixed(2))) },
    rounds,
    quick: values.quick,
    measured,
  };
}

/** Every contender once, then every one again: what the machine does meanwhile hits all of them. */
async function inTurn(one: Case, receiver: Awaited<ReturnType<typeof startReceiver>>): Promise<Measured[]> {
  const rows = one.contenders.map(({ system, setting, source }): Measured & { rounds: Figures[] } => ({
    case: one.name,
    system,
    setting,
    source,
    rounds: [],
  }));
  for (let round = 0; round < (one.once ? 1 : rounds); round++) {
    for (const [index, contender] of one.contenders.entries()) {
      let runner: Runner | null = null;
      try {
        runner = await contender.open();
        const opened = runner;
        stops.push(() => opened.stop());
        await runner.clear();
        const figures = await one.measure(runner, receiver, contender);
        rows[index]?.rounds.push(figures);
        console.error(one.name, contender.system, contender.setting, JSON.stringify(figures));
        await runner.clear();
      } catch (error) {
        // The others are measured all the same, and the run ends as a failure.
        console.error(one.name, contender.system, contender.setting, error);
        process.exitCode = 1;
      } finally {
        await runner?.stop();
      }
    }
  }
  return rows;
}

async function installPeers(): Promise<void> {
  const folder = path.join(ROOT, "test/bench/peers");
  if (existsSync(path.join(folder, "node_modules/.package-lock.json"))) return;
  await promisify(execFile)("npm", ["ci", "--no-audit", "--no-fund"], { cwd: folder });
}

async function end(): Promise<void> {
  if (ended) return;
  ended = true;
  for (const stop of stops.toReversed()) await Promise.resolve(stop()).catch((error: unknown) => console.error(error));
  await rm(dir, { recursive: true, force: true });
}
