import path from "node:path";
import { parseArgs } from "node:util";
import { costOf, idleUsage, perMillion, peersAt, plus, rowsOf, usageOf, type Workload } from "../cost/cost.ts";
import { PEERS, PRICES, READ_AT } from "../cost/prices.ts";
import {
  addedTable,
  COST_TABLES,
  monthTable,
  peersSources,
  peersTable,
  perMillionTable,
  SIZES,
  type Way,
  WAYS,
} from "./cost-tables.ts";
import { writeTables } from "./page-tables.ts";
import { EXIT, runProgram, UsageError, wholeNumber } from "./flags.ts";

const HELP = `npm run cost [-- FLAGS]: what items cost in a month, by the measured envelope and list prices of ${READ_AT}.

  --items N          items a month (default: 10,000 to 1,000,000,000)
  --path WAY         queue or drain (default: both)
  --due WHEN         now (enqueueNow) or later (claimed by the tick)
  --per-message N    items a message, 1 to 100
  --batch N          messages in a batch that the consumer gets (default 100: a bulk)
  --key              each item has a unique key
  --payload BYTES    of an item's payload, as stored (default 200)
  --wait-days N      that an item stands in the table
  --retries N        runs of an item that fail, or move on, before its last
  --cpu-ms N         CPU of a run, ms (default 1: assumed, measure your own)
  --write            the tables of docs/costs.md anew
  --json             one line of JSON
  --help             says this`;

const options = {
  items: { type: "string" },
  path: { type: "string" },
  due: { type: "string" },
  "per-message": { type: "string" },
  batch: { type: "string" },
  key: { type: "boolean", default: false },
  payload: { type: "string" },
  "wait-days": { type: "string" },
  retries: { type: "string" },
  "cpu-ms": { type: "string" },
  write: { type: "boolean", default: false },
  json: { type: "boolean", default: false },
  help: { type: "boolean", short: "h", default: false },
} as const;

interface Asked {
  help: boolean;
  write: boolean;
  json: boolean;
  sizes: number[];
  ways: Way[];
}

/**
 * Reads the command line.
 * @throws UsageError, or parseArgs's own error, naming the flag
 */
export function readCostFlags(argv: readonly string[]): Asked {
  const { values } = parseArgs({ args: [...argv], options });
  const way = oneOf("--path", values.path, ["queue", "drain"] as const);
  const due = oneOf("--due", values.due, ["now", "later"] as const);
  const whole = (flag: keyof typeof options, least: number, most: number) =>
    values[flag] === undefined ? undefined : wholeNumber(`--${flag}`, values[flag], least, most);
  const items = whole("items", 1, 10 ** 12);
  const itemsPerMessage = whole("per-message", 1, 100);
  const given: Partial<Workload> = Object.fromEntries(
    Object.entries({
      due,
      itemsPerMessage,
      messagesABatch: whole("batch", 1, 100),
      payloadBytes: whole("payload", 0, 1_000_000),
      waitDays: whole("wait-days", 0, 3_650),
      retries: whole("retries", 0, 1_000),
      cpuMsAnItem: whole("cpu-ms", 0, 300_000),
      ...(values.key && { keyed: true }),
    }).filter(([, value]) => value !== undefined),
  );
  const ways = WAYS.filter(
    ({ workload }) =>
      (way === undefined || workload.path === way) &&
      (workload.path === "drain" ||
        ((due === undefined || workload.due === due) &&
          (itemsPerMessage === undefined || workload.itemsPerMessage === 1))),
  ).map(({ name, workload, target }) => ({
    name: itemsPerMessage === undefined ? name : name.replace("one a message", `${itemsPerMessage} a message`),
    workload: { ...workload, ...given },
    target: Object.keys(given).length > 0 ? null : target,
  }));
  return {
    help: values.help,
    write: values.write,
    json: values.json,
    sizes: items === undefined ? SIZES : [items],
    ways,
  };
}

function oneOf<const Word extends string>(flag: string, text: string | undefined, words: readonly Word[]) {
  if (text === undefined) return undefined;
  const word = words.find((one) => one === text);
  if (word === undefined) throw new UsageError(`${flag} takes ${words.join(" or ")}, not "${text}"`);
  return word;
}

/** The same figures for a program to read. */
export function costReport(sizes: readonly number[], ways: readonly Way[]) {
  return {
    pricesReadAt: READ_AT,
    ways: ways.map(({ name, workload }) => ({
      name,
      ...workload,
      items: undefined,
      rows: rowsOf(workload),
      dollarsAMillion: perMillion(workload),
      months: sizes.map((items) => ({
        items,
        dollars: costOf(plus(usageOf({ ...workload, items }), idleUsage()), { allowances: true }).dollars,
        withoutAllowances: costOf(usageOf({ ...workload, items }), { allowances: false }),
      })),
    })),
    peers: sizes.map((items) => ({ items, listPrices: peersAt(items) })),
    sources: { platform: PRICES, peers: PEERS },
  };
}

async function program(): Promise<number> {
  const { help, write, json, sizes, ways } = readCostFlags(process.argv.slice(2));
  if (help) {
    console.log(HELP);
  } else if (write) {
    const tables = Object.entries(COST_TABLES).map(([name, make]) => [name, make()]);
    writeTables(path.resolve(import.meta.dirname, "../../docs/costs.md"), Object.fromEntries(tables));
  } else if (json) {
    console.log(JSON.stringify(costReport(sizes, ways)));
  } else {
    const parts = [
      `The measured envelope at list prices of ${READ_AT}; an estimate, not a bill. CPU is assumed.`,
      "Every unit paid, without free allowances:",
      perMillionTable(ways),
      "With the Paid plan, its allowances and a month's ticks:",
      monthTable(sizes, ways),
      "List prices of others, for comparison: what each leaves out is said below.",
      peersTable(sizes),
      peersSources(),
      addedTable(),
    ];
    console.log(parts.join("\n\n"));
  }
  return EXIT.done;
}

if (import.meta.main) await runProgram("cost", program);
