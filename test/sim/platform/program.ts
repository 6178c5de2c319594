import path from "node:path";
import { parseArgs } from "node:util";
import { EXIT, runProgram, UsageError, wholeNumber } from "../../../src/cli/flags.ts";
import { writeTables } from "../../../src/cli/page-tables.ts";
import { type Plan, simulate, USUAL_PLAN } from "./simulate.ts";
import { SHARDING, SIMULATION_TABLES, summary, table } from "./tables.ts";

const HELP = `npm run simulate [-- FLAGS]: the runtime's decisions at the platform's limits, at a size no machine here holds.

  --rows N          rows that fall due in a minute (default 1000000)
  --minutes N       how long they come (default 1440)
  --topics N, --queues N, --databases N
  --per-message N   items a message (default 10)
  --handler-ms N    a handler's time (default 50)
  --slower N        D1 takes so many times as long as measured here (default 1)
  --stalls N        stalls of a minute (default 4)
  --seed S          the same seed gives the same answer (default 1)
  --no-tables       only the one run
  --write           the tables of docs/simulation.md anew, at the defaults
  --json            one line of JSON, of the one run
  --help            says this`;

const FLAGS = {
  rows: ["rowsAMinute", 60, 100_000_000],
  minutes: ["minutes", 1, 10_080],
  topics: ["topics", 1, 1_000],
  queues: ["queues", 1, 1_000],
  databases: ["databases", 1, 1_000],
  "per-message": ["itemsPerMessage", 1, 100],
  "handler-ms": ["handlerMs", 0, 30_000],
  slower: ["slower", 1, 1_000],
  stalls: ["stalls", 0, 1_000],
  seed: ["seed", 0, 2 ** 32 - 1],
} as const satisfies Record<string, readonly [keyof Plan, number, number]>;

interface Asked {
  plan: Plan;
  json: boolean;
  tables: boolean;
  write: boolean;
  help: boolean;
}

/**
 * Reads the command line.
 * @throws UsageError, or parseArgs's own error, naming the flag
 */
export function readPlan(argv: readonly string[]): Asked {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      ...(Object.fromEntries(Object.keys(FLAGS).map((name) => [name, { type: "string" }])) as {
        [Name in keyof typeof FLAGS]: { type: "string" };
      }),
      json: { type: "boolean", default: false },
      "no-tables": { type: "boolean", default: false },
      write: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  const plan: Plan = { ...USUAL_PLAN };
  for (const [flag, [name, least, most]] of Object.entries(FLAGS)) {
    const text = values[flag as keyof typeof FLAGS];
    if (text !== undefined) Object.assign(plan, { [name]: wholeNumber(`--${flag}`, text, least, most) });
  }
  if (plan.databases > plan.queues || plan.databases > plan.topics) {
    throw new UsageError("--databases is at most --queues and --topics: each database has some of its own");
  }
  const { json, write, help } = values;
  return { plan, json, write, help, tables: !values["no-tables"] && !json };
}

async function program(): Promise<number> {
  const { plan, json, tables, write, help } = readPlan(process.argv.slice(2));
  if (help) {
    console.log(HELP);
    return EXIT.done;
  }
  if (write) {
    const made = Object.entries(SIMULATION_TABLES).map(([name, make]) => [name, make()]);
    writeTables(path.resolve(import.meta.dirname, "../../../docs/simulation.md"), Object.fromEntries(made));
    return EXIT.done;
  }
  const report = simulate(plan);
  console.log(json ? JSON.stringify(report) : summary(report));
  if (tables) {
    const of = { rowsAMinute: plan.rowsAMinute, handlerMs: plan.handlerMs, failing: plan.failing, seed: plan.seed };
    console.log(`\nWhat more queues and databases give, a quarter of an hour of it:\n\n${table(SHARDING, of)}`);
  }
  return EXIT.done;
}

if (import.meta.main) await runProgram("simulate", program);
