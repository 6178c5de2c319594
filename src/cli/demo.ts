import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { createClient, fireTick } from "./client.ts";
import { openDatabase } from "./database.ts";
import { account, type Evidence, type Report } from "./demo/account.ts";
import { type CheckoutEvidence, expireCheckouts, JOB, putCheckouts, readCheckouts } from "./demo/checkouts.ts";
import { itemsOf, planOf } from "./demo/plan.ts";
import { type Receiver, startReceiver } from "./demo/receiver.ts";
import { readStored, readTicks } from "./demo/record.ts";
import { fireSchedules, addSchedules } from "./demo/schedules.ts";
import { checkoutPlanOf, type Storefront, startStorefront } from "./demo/storefront.ts";
import { drainHalf, feed, workTheRest } from "./demo/work.ts";
import { createEnding } from "./ending.ts";
import { EXIT, runProgram, wholeNumber } from "./flags.ts";
import { freePort, type Local, portIsFree, startLocal } from "./local.ts";
import { startProgress } from "./progress.ts";
import { localVars, newToken } from "./secrets.ts";
import { eachMinute } from "./ticker.ts";

const HELP = `npm run demo [-- FLAGS]: runs real work through the runtime on this machine, and checks what came of it.

  --items N       webhook deliveries, and half as many merchant polls (default 2000)
  --checkouts N   expired checkouts, and their storefront to tell; 0 leaves them out (default 2500)
  --json          one line of JSON last; progress goes to stderr
  --keep          leaves the runtime running until Ctrl-C
  --help          says this`;

const ITEMS = { usual: 2_000, least: 10, most: 100_000 };
const CHECKOUTS = { usual: 2_500, least: 0, most: 100_000 };
/** The whole demo: a base for starting, for retries and for driving time, and a generous while for each item, ms. */
const timeoutMs = (items: number, checkouts: number) => 600_000 + 150 * items + 10 * checkouts;

/** What the command line asks for. */
export interface DemoFlags {
  help: boolean;
  json: boolean;
  keep: boolean;
  items: number;
  checkouts: number;
}

/**
 * Reads the command line.
 * @throws UsageError, or parseArgs's own error, naming the flag
 */
export function readDemoFlags(argv: readonly string[]): DemoFlags {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
      items: { type: "string", default: String(ITEMS.usual) },
      checkouts: { type: "string", default: String(CHECKOUTS.usual) },
    },
  });
  const { json, keep, help, checkouts } = values;
  return {
    ...{ json, keep, help },
    items: wholeNumber("--items", values.items, ITEMS.least, ITEMS.most),
    checkouts: wholeNumber("--checkouts", checkouts, CHECKOUTS.least, CHECKOUTS.most),
  };
}

/** The runtime of one demo, in a folder of its own. */
interface Scene {
  local: Local;
  token: string;
  tokenFile: string;
  /** Starts it anew, where it was, with the job worked by another. */
  restart(by: "workflow" | "route"): Promise<void>;
}

/** The other side of checkout expiry, and what is known of it. */
interface Checkouts {
  storefront: Storefront;
  storefrontToken: string;
  evidence: CheckoutEvidence;
}

async function startCheckouts(count: number): Promise<Checkouts | null> {
  if (count === 0) return null;
  const plan = checkoutPlanOf(count);
  const storefrontToken = newToken();
  const storefront = await startStorefront(plan, storefrontToken);
  return { storefront, storefrontToken, evidence: { plan, seen: storefront.seen, stored: null, instances: [] } };
}

/** @param ended is told how the runtime has ended when nobody asked it to */
async function start(
  dir: string,
  checkouts: Checkouts | null,
  signal: AbortSignal,
  ended: (how: string, logFile: string) => void,
): Promise<Scene> {
  const token = newToken();
  const tokenFile = path.join(dir, "token");
  const varsFile = path.join(dir, "vars");
  await writeFile(tokenFile, `${token}\n`, { mode: 0o600 });
  const port = await freePort();
  const run = async (by: "workflow" | "route", again: boolean) => {
    const vars = [...Object.values(localVars(token)), ...(checkouts === null ? [] : jobVars(checkouts, by))];
    await writeFile(varsFile, `${vars.join("\n")}\n`, { mode: 0o600 });
    // A file of variables stands in for `.dev.vars`, so that a developer's own settings do not change the demo.
    const flags = ["--env-file", varsFile];
    const state = path.join(dir, "state");
    const prepare = async () => {
      if (checkouts !== null && !again) await putCheckouts(state, checkouts.evidence.plan);
    };
    return startLocal({ dir: state, port, flags, frozen: true, again, prepare, signal });
  };
  const watch = (local: Local) => {
    local.ended.then((how) => scene.local === local && !restarting && ended(how, local.logFile));
  };
  let restarting = false;
  const scene: Scene = {
    local: await run("route", false),
    token,
    tokenFile,
    async restart(by) {
      restarting = true;
      await scene.local.stop();
      if (!(await portIsFree(port, PORT_WAIT_MS))) throw new Error(`the port ${port} was taken meanwhile`);
      scene.local = await run(by, true);
      restarting = false;
      watch(scene.local);
    },
  };
  watch(scene.local);
  return scene;
}

/** For the port of a runtime that was stopped, ms. */
const PORT_WAIT_MS = 10_000;

/** The variables that turn the job on, and say who works it. */
function jobVars({ storefront, storefrontToken }: Checkouts, by: "workflow" | "route"): string[] {
  return [
    `ENABLED_JOBS=${JOB}`,
    `WORKER_PROCESSORS=${by === "workflow" ? JOB : ""}`,
    `CHECKOUT_EXPIRY_ROUTE_URL=${storefront.routeUrl}`,
    `CHECKOUT_EXPIRY_ROUTE_SECRET=${storefrontToken}`,
    `STOREFRONT_URL=${storefront.url}`,
    `STOREFRONT_TOKEN=${storefrontToken}`,
  ];
}

/** Does the work and gathers what is known. `evidence` is filled in as it goes, so that a failure can be told too. */
async function work(
  { local, token, restart }: Scene,
  receiver: Receiver,
  checkouts: Checkouts | null,
  evidence: Evidence,
  signal: AbortSignal,
  phase: (name: string) => void,
): Promise<void> {
  const began = Date.now();
  const client = createClient(local.url, token, signal);
  const database = await openDatabase(local.dir);
  const common = { url: local.url, client, database, signal, phase };
  try {
    const stage = { ...common, plan: evidence.plan, began, receiver };
    evidence.enqueued = await feed(stage);
    evidence.drained = await drainHalf(stage);
    const { evidence: fired, driven } = await fireSchedules(common, await workTheRest(stage));
    evidence.schedules = fired;
    if (checkouts !== null) {
      const { storefront, evidence: known } = checkouts;
      known.instances = await expireCheckouts({ ...common, plan: known.plan, storefront, restart }, driven);
    }
    phase("check");
    evidence.ticks = await readTicks(client);
  } finally {
    evidence.stored = readStored(database, began);
    if (checkouts !== null) checkouts.evidence.stored = readCheckouts(database);
    database.close();
  }
}

async function demo(): Promise<number> {
  const flags = readDemoFlags(process.argv.slice(2));
  if (flags.help) {
    process.stdout.write(`${HELP}\n`);
    return EXIT.done;
  }
  const ending = createEnding();
  const plan = planOf(flags.items);
  const since = Date.now();
  const seconds = () => Math.round((Date.now() - since) / 100) / 10;
  const limitMs = timeoutMs(itemsOf(plan), flags.checkouts);
  const late = setTimeout(() => ending.abort(new Error(`not done within ${limitMs / 1_000} s`)), limitMs);

  const dir = await mkdtemp(path.join(tmpdir(), "duework-demo-"));
  const receiver = await startReceiver(plan);
  const checkouts = await startCheckouts(flags.checkouts);
  const evidence: Evidence = {
    plan,
    seen: receiver.seen,
    enqueued: 0,
    drained: 0,
    stored: null,
    ticks: null,
    schedules: null,
    checkouts: checkouts?.evidence ?? null,
    seconds: 0,
  };
  let phase = "start";
  const progress = startProgress(flags.json ? process.stderr : process.stdout, () => {
    const { succeeded, requests } = receiver.seen;
    const shown = checkouts === null ? "" : ` ${checkouts.storefront.seen.revalidated.size} workspaces revalidated,`;
    return `${phase}: ${succeeded.size} of ${itemsOf(plan)} items settled, ${requests} requests seen,${shown} ${seconds()} s`;
  });

  let scene: Scene | null = null;
  let failure: unknown = null;
  try {
    scene = await start(dir, checkouts, ending.signal, (how, logFile) =>
      ending.abort(new Error(`the runtime ${how}; its log: ${logFile}`)),
    );
    await work(scene, receiver, checkouts, evidence, ending.signal, (name) => {
      phase = name;
    });
  } catch (error) {
    failure = ending.signal.aborted ? ending.signal.reason : error;
  }
  clearTimeout(late);
  progress.end();

  const report = account({ ...evidence, seconds: seconds() });
  if (failure !== null) report.reason = `${phase}: ${failure instanceof Error ? failure.message : String(failure)}`;
  tell(report, flags.json);
  if (flags.keep && scene !== null && !ending.signal.aborted) await keep(scene, ending.signal, flags.json);
  await scene?.local.stop();
  await receiver.close();
  await checkouts?.storefront.close();
  if (report.ok || ending.signal.aborted) await rm(dir, { recursive: true, force: true });
  else process.stderr.write(`What is left of it, for a look: ${dir}\n`);
  return report.ok ? EXIT.done : EXIT.refused;
}

/** Leaves the runtime running, with its schedules added anew and a tick each minute, until a signal comes. */
async function keep({ local, token, tokenFile }: Scene, signal: AbortSignal, json: boolean): Promise<void> {
  const out = json ? process.stderr : process.stdout;
  await addSchedules(createClient(local.url, token, signal)).catch((error) => console.error(error));
  out.write(`Running: the panel is at ${local.url}/panel, its token in ${tokenFile}. Ctrl-C ends it.\n`);
  const stop = eachMinute(
    (minute) => fireTick(local.url, minute, signal),
    (error) => signal.aborted || console.error(error),
  );
  await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
  stop();
}

function tell(report: Report, json: boolean): void {
  const { items, paths, checkouts, workflows, firings, ticks, maxPerTick, seconds } = report;
  const fired = firings.map(({ schedule, outcome }) => `${schedule} ${outcome}`);
  const lines = [
    report.ok ? `All settled and checked in ${seconds} s.` : `Failed after ${seconds} s: ${report.reason}`,
    `  items   ${items.enqueued} enqueued, ${items.settled} settled, ${items.dead} dead, ${items.lost} lost, ${items.repeated} repeated`,
    `  paths   ${paths.drain} drained in the tick, ${paths.queue} by the queue`,
    `  expiry  ${checkouts.expired} checkouts expired, ${checkouts.revalidated} workspaces revalidated, ${checkouts.owed} owed, ${checkouts.quarantined} quarantined`,
    `  fired   ${fired.join(", ") || "nothing"}; ${workflows.length} Workflow instances in all`,
    `  ticks   ${ticks}, none with more than ${maxPerTick.subrequests} subrequests and ${maxPerTick.queries} queries`,
  ];
  (json ? process.stderr : process.stdout).write(`${lines.join("\n")}\n`);
  if (json) process.stdout.write(`${JSON.stringify(report)}\n`);
}

if (import.meta.main) await runProgram("demo", demo);
