import { spawn } from "node:child_process";
import { availableParallelism } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

/** `npm run sim`: many seeds of the crash simulators, several runtimes side by side. */

const HELP = `npm run sim [-- FLAGS]: runs the crash simulators of the outbox, of slots and of firings over many seeds, and
the model of leases with a fault in each of its orders.

  --seeds N    seeds of each (default 1000)
  --from S     the first seed (default 1)
  --only NAME  outbox, slots, firings or lease-model
  --jobs N     runtimes side by side (default: one a core)
  --json       one line of JSON last
  --help       says this`;

const ROOT = path.resolve(import.meta.dirname, "../..");
const VITEST = path.join(ROOT, "node_modules/vitest/vitest.mjs");
/** Seeds of one run of each: short enough that several runs share the work, long enough that starting one is little. */
const SHARES = { outbox: 250, slots: 500, firings: 25 } as const;
type Simulator = keyof typeof SHARES;
/** What has no seeds: it follows every order, here with one fault in each. */
const MODEL = "lease-model";
/** Of a run that failed: what is shown of it, lines. */
const SHOWN_LINES = 60;

interface Share {
  simulator: Simulator | typeof MODEL;
  first: number;
  /** 0: all orders. */
  seeds: number;
}

interface Ran extends Share {
  ok: boolean;
  ms: number;
  /** The seeds that the run names as failed. */
  failed: number[];
  output: string;
}

/** Cuts the seeds into shares, those of the slowest simulator first. Pure. */
function sharesOf(only: readonly Simulator[], first: number, seeds: number): Share[] {
  return only.flatMap((simulator) => {
    const most = SHARES[simulator];
    return Array.from({ length: Math.ceil(seeds / most) }, (_, nth) => ({
      simulator,
      first: first + nth * most,
      seeds: Math.min(most, seeds - nth * most),
    }));
  });
}

const settingsOf = ({ first, seeds }: Share): Record<string, string> =>
  seeds === 0 ? { VITE_SIM_FAULTS: "1" } : { VITE_SIM_FIRST: String(first), VITE_SIM_SEEDS: String(seeds) };

function commandOf(share: Share): string {
  const settings = Object.entries(settingsOf(share)).map(([name, value]) => `${name}=${value}`);
  return `${settings.join(" ")} npm test -- --project workers test/sim/${share.simulator}.workers.test.ts`;
}

/** Runs one share in a process of its own. */
function run(share: Share): Promise<Ran> {
  const began = performance.now();
  const args = ["run", "--config", "test/config/vitest.config.ts", "--project", "workers"];
  const child = spawn(process.execPath, [VITEST, ...args, `test/sim/${share.simulator}.workers.test.ts`], {
    cwd: ROOT,
    env: { ...process.env, NO_COLOR: "1", ...settingsOf(share) },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += String(chunk)));
  return new Promise((resolve) => {
    child.once("close", (code) => {
      const named = [...output.matchAll(/(?:seed (\d+):|\(seed (\d+)\).*\n(?=[\s\S]*Error))/g)];
      const failed = code === 0 ? [] : [...new Set(named.map(([, a, b]) => Number(a ?? b)))];
      resolve({ ...share, ok: code === 0, ms: Math.round(performance.now() - began), failed, output });
    });
  });
}

function whole(name: string, text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`${name} takes a whole number from 1, not ${text}`);
  return value;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seeds: { type: "string", default: "1000" },
      from: { type: "string", default: "1" },
      only: { type: "string" },
      jobs: { type: "string", default: String(availableParallelism()) },
      json: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) {
    console.log(HELP);
    return 0;
  }
  const all = Object.keys(SHARES) as Simulator[];
  const chosen = (name: string) => values.only === undefined || values.only === name;
  const only = all.filter(chosen);
  const model: Share[] = chosen(MODEL) ? [{ simulator: MODEL, first: 0, seeds: 0 }] : [];
  if (only.length + model.length === 0) throw new Error(`--only takes one of ${[...all, MODEL].join(", ")}`);
  const seeds = whole("--seeds", values.seeds);
  const waiting = [...model, ...sharesOf(only, whole("--from", values.from), seeds)];
  const ran: Ran[] = [];
  const say = (line: string) => (values.json ? console.error(line) : console.log(line));
  const worker = async () => {
    for (let share = waiting.shift(); share !== undefined; share = waiting.shift()) {
      const one = await run(share);
      ran.push(one);
      const range = one.seeds === 0 ? "every order" : `seeds ${one.first} to ${one.first + one.seeds - 1}`;
      say(`${one.ok ? "held  " : "BROKEN"} ${one.simulator}, ${range}, ${(one.ms / 1_000).toFixed(1)} s`);
      if (one.ok) continue;
      say(one.output.trimEnd().split("\n").slice(-SHOWN_LINES).join("\n"));
      for (const seed of one.failed) say(`run seed ${seed} again: ${commandOf({ ...one, first: seed, seeds: 1 })}`);
      if (one.failed.length === 0) say(`run it again: ${commandOf(one)}`);
    }
  };
  await Promise.all(Array.from({ length: whole("--jobs", values.jobs) }, worker));
  const broken = ran.filter(({ ok }) => !ok);
  if (values.json) {
    const failed = broken.map(({ simulator, first, seeds: count, failed: of }) => ({
      simulator,
      first,
      count,
      seeds: of,
    }));
    console.log(JSON.stringify({ ok: broken.length === 0, simulators: only, seeds, failed }));
  } else console.log(broken.length === 0 ? `every promise held: ${seeds} seeds of each` : "a promise is broken");
  return broken.length === 0 ? 0 : 1;
}

process.exitCode = await main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  return 2;
});
