import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { getPlatformProxy } from "wrangler";
import {
  bear,
  begin,
  birthsJson,
  type ClaimedRow,
  claim,
  type Fence,
  finish,
  loadLeased,
  move,
} from "../../../src/outbox/items.ts";

/**
 * Measures how long the local D1 takes for the statements of an item's life, by their size, and writes
 * `test/sim/service-times.json`:
 *
 *   node test/sim/platform/measure.ts
 *
 * Each figure is D1's own `meta.duration`, which has whole milliseconds: the mean of a round's statements has not, and
 * the median of the rounds is kept.
 */
const ROOT = path.resolve(import.meta.dirname, "../../..");
const SIZES = [1, 10, 100, 1_000, 5_000];
const ROUNDS = 9;
/** Statements of a round: more of the small ones, which take less than a millisecond. */
const repeats = (size: number) => Math.max(2, Math.min(40, Math.ceil(2_000 / size)));
const LEASE = { topic: "sim.work", leaseMs: 300_000, defaultPath: "queue" } as const;
const NOW = Date.UTC(2026, 0, 1, 12);
const PAYLOAD = JSON.stringify({ order: "a0b1c2d3", text: "x".repeat(200) });
/** Rows beside those that are measured, so that no table is empty. */
const BESIDE = 50_000;

const dir = mkdtempSync(path.join(tmpdir(), "duework-measure-"));
const configPath = path.join(dir, "wrangler.json");
const binding = { binding: "DB", database_name: "measure", database_id: "measure" };
writeFileSync(
  configPath,
  JSON.stringify({ name: "measure", compatibility_date: "2026-08-01", d1_databases: [binding] }),
);
const { env, dispose } = await getPlatformProxy<{ DB: D1Database }>({
  configPath,
  persist: { path: path.join(dir, "state") },
});
const db = env.DB;

let seqs = 0;
const seq = () => String(seqs++).padStart(18, "0");
const births = (count: number, dueAt: number) =>
  birthsJson(Array.from({ length: count }, () => ({ seq: seq(), dueAt, key: null, payload: PAYLOAD })));
const fences = (rows: readonly ClaimedRow[], lane: 1 | 2): Fence[] =>
  rows.map(({ at, seq, turn }) => ({ topic: LEASE.topic, lane, at, seq, turn }));

type Kind = "insert" | "claim" | "begin" | "load" | "finish" | "move";
const taken = new Map<string, number[]>();

/** Runs each part of one life over `size` rows, `repeats` times, and keeps the mean of each. */
async function round(size: number): Promise<void> {
  const sums: Record<Kind, number> = { insert: 0, claim: 0, begin: 0, load: 0, finish: 0, move: 0 };
  const timed = async <T>(kind: Kind, statement: D1PreparedStatement): Promise<T[]> => {
    const { meta, results } = await statement.all<T>();
    sums[kind] += meta.duration;
    return results;
  };
  const times = repeats(size);
  for (let nth = 0; nth < times; nth += 1) {
    await timed("insert", bear(db, LEASE, births(size, NOW), { keyed: false, now: NOW, sendBefore: null }));
    const limits = { now: NOW, ahead: NOW, limit: size, path: "queue", load: false } as const;
    const claimed = await timed<ClaimedRow>("claim", claim(db, LEASE, limits));
    await timed("load", loadLeased(db, fences(claimed, 1)));
    const leads = fences(claimed, 1).map((fence): [Fence, number] => [fence, 70_000]);
    const begun = await timed<ClaimedRow>("begin", begin(db, leads, NOW));
    const moves = fences(begun, 2).map((fence) => ({
      move: { fence, kind: "release", dueAt: NOW, error: null, near: true, lead: null } as const,
      lease: LEASE,
    }));
    const moved = await timed<ClaimedRow>("move", move(db, moves, NOW));
    await timed("finish", finish(db, fences(moved, 1)));
  }
  for (const [kind, sum] of Object.entries(sums)) {
    const all = taken.get(`${kind} ${size}`) ?? [];
    taken.set(`${kind} ${size}`, [...all, sum / times]);
  }
}

const median = (all: readonly number[]) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)] ?? 0;

try {
  const migrations = path.join(ROOT, "src/db/migrations");
  for (const file of readdirSync(migrations).sort()) {
    const sql = readFileSync(path.join(migrations, file), "utf8").replace(/--.*$/gm, "");
    for (const statement of sql.split(/;\s*\n/).filter((one) => one.trim() !== "")) await db.prepare(statement).run();
  }
  for (let done = 0; done < BESIDE; done += 5_000) {
    await bear(db, LEASE, births(5_000, NOW + 86_400_000), { keyed: false, now: NOW, sendBefore: null }).run();
  }
  for (const size of SIZES) {
    await round(size);
    for (const kind of ["insert", "claim", "begin", "load", "finish", "move"]) taken.delete(`${kind} ${size}`);
    for (let nth = 0; nth < ROUNDS; nth += 1) await round(size);
  }
  const version = (name: string) =>
    JSON.parse(readFileSync(path.join(ROOT, "node_modules", name, "package.json"), "utf8")).version as string;
  const kinds = ["insert", "claim", "begin", "load", "finish", "move"].map((kind) => [
    kind,
    SIZES.map((size) => [size, Number(median(taken.get(`${kind} ${size}`) ?? []).toFixed(3))]),
  ]);
  const written = {
    measured: {
      what: "ms of the local D1 for one statement over so many rows: its own meta.duration, the median of nine rounds' means",
      on: new Date().toISOString().slice(0, 10),
      machine: `${cpus()[0]?.model ?? "unknown"}, ${cpus().length} cores, shared with other work`,
      versions: { node: process.version, wrangler: version("wrangler"), workerd: version("workerd") },
      payloadBytes: PAYLOAD.length,
      statements: Object.fromEntries(kinds),
    },
  };
  const file = path.join(ROOT, "test/sim/service-times.json");
  const { assumed } = JSON.parse(readFileSync(file, "utf8"));
  writeFileSync(file, `${JSON.stringify({ ...written, assumed }, null, 2)}\n`);
  console.log(JSON.stringify(written.measured.statements));
} finally {
  await dispose();
  rmSync(dir, { recursive: true, force: true });
}
