import { type ChildProcess, execFile, execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { promisify } from "node:util";
import pg from "pg";

const BIN = process.env.POSTGRES_BIN ?? "/usr/lib/postgresql/15/bin";
const SQL = path.resolve(import.meta.dirname, "../../src/checkout/postgres");
/** For the server to answer, and for it to end, ms. */
const PATIENCE_MS = 30_000;

export interface Postgres {
  /** A new, empty database, and how to connect to it. */
  createDatabase(name: string): Promise<pg.PoolConfig>;
  stop(): Promise<void>;
}

/**
 * A PostgreSQL of this test's own: a fresh cluster in a temporary folder, reached by a socket in it and by nothing else.
 * PostgreSQL refuses to run as root, so for root it runs as Debian's own user for it.
 */
export async function startPostgres(): Promise<Postgres> {
  if (!existsSync(path.join(BIN, "initdb"))) {
    throw new Error(
      `PostgreSQL 15 is missing: there is no ${BIN}/initdb. Install it (Debian: apt-get install postgresql-15), ` +
        "or name the folder of its programs in POSTGRES_BIN.",
    );
  }
  const folder = mkdtempSync(path.join(tmpdir(), "duework-pg-"));
  const user = process.getuid?.() === 0 ? owner(folder) : {};
  const as = { ...user, cwd: folder, env: { PATH: process.env.PATH, HOME: folder, LC_ALL: "C", TZ: "UTC" } };
  const data = path.join(folder, "data");
  let server: ChildProcess | null = null;
  const kill = () => server?.kill("SIGQUIT");
  const stop = async () => {
    process.off("exit", kill);
    if (server !== null) await end(server);
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const cluster = ["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"];
    await promisify(execFile)(path.join(BIN, "initdb"), cluster, as);
    const settings = ["listen_addresses=", `unix_socket_directories=${folder}`, "fsync=off", "max_connections=40"];
    server = spawn(path.join(BIN, "postgres"), ["-D", data, ...settings.flatMap((one) => ["-c", one])], {
      ...as,
      stdio: ["ignore", "ignore", "pipe"],
    });
    process.on("exit", kill);
    await ready(server, folder);
  } catch (error) {
    await stop();
    throw error;
  }
  const createDatabase = async (name: string) => {
    await once({ host: folder, user: "postgres", database: "postgres" }, `create database ${name}`);
    return { host: folder, user: "postgres", database: name };
  };
  return { createDatabase, stop };
}

/** Loads the SQL that ships, in its order. */
export async function loadSql(database: pg.PoolConfig): Promise<void> {
  const files = readdirSync(SQL).filter((file) => file.endsWith(".sql"));
  for (const file of files.sort()) await once(database, readFileSync(path.join(SQL, file), "utf8"));
}

/** Runs one statement, or several as one transaction, on a connection of its own. Answers how many rows came back. */
export async function once(database: pg.PoolConfig, sql: string): Promise<number> {
  const client = new pg.Client(database);
  await client.connect();
  try {
    const result = await client.query(sql);
    return result.rowCount ?? 0;
  } finally {
    await client.end();
  }
}

/** Debian's user for PostgreSQL, to whom the folder is given. */
function owner(folder: string): { uid: number; gid: number } {
  const id = (flag: string) => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }));
  const user = { uid: id("-u"), gid: id("-g") };
  chownSync(folder, user.uid, user.gid);
  return user;
}

async function ready(server: ChildProcess, host: string): Promise<void> {
  let log = "";
  server.stderr?.on("data", (chunk: Buffer) => {
    log = (log + chunk.toString()).slice(-4_000);
  });
  const until = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      await once({ host, user: "postgres", database: "postgres" }, "select 1");
      return;
    } catch (error) {
      const gone = server.exitCode !== null || server.signalCode !== null;
      if (gone || Date.now() > until) throw new Error(`PostgreSQL did not start: ${error}\n${log}`);
      await wait(50);
    }
  }
}

async function end(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  const gone = new Promise((resolve) => server.once("exit", resolve));
  // Waits for sessions that are closing, then ends them, then itself.
  server.kill("SIGTERM");
  const steps = [
    setTimeout(() => server.kill("SIGINT"), PATIENCE_MS / 6),
    setTimeout(() => server.kill("SIGKILL"), PATIENCE_MS),
  ];
  await gone;
  for (const step of steps) clearTimeout(step);
}
