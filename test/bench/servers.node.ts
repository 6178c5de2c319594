import { execFile, execFileSync } from "node:child_process";
import { chown, mkdir } from "node:fs/promises";
import { existsSync, readdirSync } from "node:fs";
import { connect } from "node:net";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { freePort } from "../../src/cli/local.ts";
import { type Group, startGroup } from "../../src/cli/process.ts";

/** A database server of the benchmark's own, on loopback, in a fresh folder, with its makers' default durability. */
export interface Server {
  readonly address: string;
  /** The process whose tree is the server, for its processor time. */
  readonly pid: number;
  readonly version: string;
  stop(): Promise<void>;
}

/** For a server to answer, ms. */
const PATIENCE_MS = 30_000;
const POSTGRES_FOLDER = "/usr/lib/postgresql";

/** Installs from Debian what is missing. */
export async function ensureServers(): Promise<void> {
  const missing = [
    ...(existsSync("/usr/bin/redis-server") ? [] : ["redis-server"]),
    ...(existsSync(POSTGRES_FOLDER) ? [] : ["postgresql"]),
  ];
  if (missing.length === 0) return;
  if (process.getuid?.() !== 0) throw new Error(`install ${missing.join(" and ")} (Debian: apt-get install)`);
  const run = promisify(execFile);
  // Policy 101: packages start no service of their own.
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive", RUNLEVEL: "1" };
  await run("apt-get", ["update"], { env });
  await run("apt-get", ["install", "-y", "--no-install-recommends", ...missing], { env });
}

/** A fresh PostgreSQL cluster: `fsync` and all else as its makers ship it. */
export async function startPostgres(dir: string): Promise<Server> {
  const newest = readdirSync(POSTGRES_FOLDER).sort((a, b) => Number(b) - Number(a))[0];
  const bin = path.join(POSTGRES_FOLDER, newest ?? "", "bin");
  const folder = path.join(dir, "postgres");
  const port = await freePort();
  const data = path.join(folder, "data");
  const as = await ownFolder("postgres", folder);
  const [command, args] = as(path.join(bin, "initdb"), ["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]);
  await promisify(execFile)(command, args, { cwd: folder });
  const settings = ["listen_addresses=127.0.0.1", `port=${port}`, `unix_socket_directories=${folder}`];
  const group = start(as(path.join(bin, "postgres"), ["-D", data, ...settings.flatMap((one) => ["-c", one])]), folder);
  await listening(group, port, "PostgreSQL");
  return {
    address: `postgres://postgres@127.0.0.1:${port}/postgres`,
    pid: group.pid,
    version: versionOf(path.join(bin, "postgres")),
    stop: () => group.stop(),
  };
}

/** A fresh Redis with its built-in configuration: snapshots, and no append-only file. */
export async function startRedis(dir: string): Promise<Server> {
  const folder = path.join(dir, "redis");
  const port = await freePort();
  const as = await ownFolder("redis", folder);
  const group = start(
    as("/usr/bin/redis-server", ["--bind", "127.0.0.1", "--port", String(port), "--dir", folder]),
    folder,
  );
  await listening(group, port, "Redis");
  return {
    address: `redis://127.0.0.1:${port}`,
    pid: group.pid,
    version: versionOf("/usr/bin/redis-server"),
    stop: () => group.stop(),
  };
}

type Command = readonly [command: string, args: string[]];

/** Makes a folder; root gives it to Debian's user for the server, and has the server run as that user. */
async function ownFolder(user: string, folder: string): Promise<(command: string, args: string[]) => Command> {
  await mkdir(folder, { recursive: true });
  if (process.getuid?.() !== 0) return (command, args) => [command, args];
  const id = (flag: string) => Number(execFileSync("id", [flag, user], { encoding: "utf8" }));
  await chown(folder, id("-u"), id("-g"));
  return (command, args) => [
    "setpriv",
    ["--reuid", user, "--regid", String(id("-g")), "--init-groups", command, ...args],
  ];
}

function start([command, args]: Command, folder: string): Group {
  return startGroup(command, args, {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: folder, LC_ALL: "C", TZ: "UTC" },
    logFile: path.join(path.dirname(folder), `${path.basename(folder)}.log`),
  });
}

async function listening(group: Group, port: number, what: string): Promise<void> {
  let ended: string | null = null;
  group.ended.then((how) => {
    ended = how;
  });
  for (const until = Date.now() + PATIENCE_MS; ; await sleep(50)) {
    const answers = await new Promise<boolean>((resolve) => {
      const socket = connect(port, "127.0.0.1");
      socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
      socket.once("connect", () => socket.destroy());
    });
    if (answers) break;
    if (ended !== null || Date.now() > until) {
      await group.stop();
      throw new Error(`${what} did not start: ${ended ?? "it does not answer"}`);
    }
  }
  // A PostgreSQL that listens may still refuse its first sessions.
  await sleep(500);
}

function versionOf(program: string): string {
  const told = execFileSync(program, ["--version"], { encoding: "utf8" });
  return /\d+\.\d+(\.\d+)?/.exec(told)?.[0] ?? told.trim();
}
