import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { cpus, loadavg, totalmem } from "node:os";
import path from "node:path";
import { ROOT } from "../../src/cli/local.ts";

/** What a figure was taken on. */
export interface Machine {
  takenAt: string;
  cpu: string;
  cores: number;
  memoryGiB: number;
  /** Load averages over 1, 5 and 15 minutes before the run. */
  load: number[];
  versions: Record<string, string>;
}

export function describeMachine(versions: Record<string, string>): Machine {
  const of = (folder: string, name: string) =>
    JSON.parse(readFileSync(path.join(folder, "node_modules", name, "package.json"), "utf8")).version as string;
  const peers = path.join(ROOT, "test/bench/peers");
  const commit = execFileSync("git", ["-C", ROOT, "rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
  return {
    takenAt: new Date().toISOString(),
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    load: loadavg().map((one) => Number(one.toFixed(2))),
    versions: {
      duework: commit,
      node: process.version,
      workerd: of(ROOT, "workerd"),
      wrangler: of(ROOT, "wrangler"),
      ...Object.fromEntries(["graphile-worker", "pg-boss", "bullmq"].map((name) => [name, of(peers, name)])),
      ...versions,
    },
  };
}

/** Clock ticks of `/proc` in a second: 100 on every Linux that Node runs on. */
const TICKS = 100;

/** Seconds of processor time that process trees have used, their ended and awaited children too. */
export function cpuSeconds(roots: readonly number[]): number {
  const all = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => statOf(Number(name)));
  const family = new Set(roots);
  for (let grown = true; grown; ) {
    const more = all.filter(({ pid, parent }) => family.has(parent) && !family.has(pid));
    for (const { pid } of more) family.add(pid);
    grown = more.length > 0;
  }
  return all.filter(({ pid }) => family.has(pid)).reduce((sum, { ticks }) => sum + ticks, 0) / TICKS;
}

/** The first process whose command line holds `marker`, children of it aside. */
export function findProcess(marker: string): number {
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const line = read(`/proc/${name}/cmdline`) ?? "";
    if (line.includes(marker)) return Number(name);
  }
  throw new Error(`no process was started with ${marker}`);
}

function statOf(pid: number): { pid: number; parent: number; ticks: number }[] {
  const stat = read(`/proc/${pid}/stat`);
  if (stat === null) return [];
  // The name in parentheses may hold anything; what follows it is numbers.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const ticks = fields.slice(11, 15).reduce((sum, one) => sum + Number(one), 0);
  return [{ pid, parent: Number(fields[1]), ticks }];
}

function read(file: string): string | null {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return null;
  }
}
