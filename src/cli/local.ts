import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { stripVTControlCharacters } from "node:util";
import { type Group, startGroup } from "./process.ts";

/** This package's own folder. */
export const ROOT = path.resolve(import.meta.dirname, "../..");

export interface LocalOptions {
  /** Where the database lives; made when it is not there. */
  dir: string;
  port: number;
  /** More flags for `wrangler dev`. */
  flags?: readonly string[];
  /** The Worker's folder, the one with `wrangler.jsonc`. Default: this repository. */
  root?: string;
  /** Bundles the Worker once and runs that: an edit to its source restarts nothing, and loses no queue's messages. */
  frozen?: boolean;
  /** Was run in this folder before, by the same code: migrates and bundles nothing anew. */
  again?: boolean;
  /** Runs when the database is migrated and nothing has it open yet. */
  prepare?: () => Promise<void>;
  /** Gets what wrangler prints while the Worker runs, beside the log file. */
  echo?: (chunk: Buffer) => void;
  /**
   * Told of what keeps the Worker from starting work, once for each; it runs on, and is waited for until it is ready.
   * Default: that fails the start.
   */
  misconfigured?: (problems: string) => void;
  /** Ends a start that is under way. */
  signal?: AbortSignal;
}

/** A Worker that runs on this machine, with a database and queues of its own. */
export interface Local {
  readonly url: string;
  readonly port: number;
  readonly dir: string;
  readonly logFile: string;
  /** Settles when the runtime has ended, asked or not, with one sentence that says how. */
  readonly ended: Promise<string>;
  /** Ends it. May be called again. */
  stop(): Promise<void>;
  /** Ends it as a crash would. The database stays; what was in a queue is lost. */
  kill9(): Promise<void>;
}

/** A runtime that did not start: one sentence why. */
export class StartError extends Error {
  override readonly name = "StartError";
}

/** Longest wait until `/healthz` answers, ms: a cold start on a busy machine has taken 24 s. */
const READY_MS = 120_000;
/** Between two looks at `/healthz`, ms. */
const LOOK_MS = 200;
/** For one look, ms. */
const LOOK_DEADLINE_MS = 5_000;

/**
 * Applies the migrations and starts `wrangler dev` without asking anything; answers once `/healthz` says it is ready.
 * @throws StartError when it ends early, is misconfigured, or is not ready in time
 */
export async function startLocal(options: LocalOptions): Promise<Local> {
  const { port, root = ROOT, flags = [], signal } = options;
  const dir = path.resolve(options.dir);
  await mkdir(dir, { recursive: true });
  const logFile = path.join(dir, "wrangler.log");
  if (!options.again) await writeFile(logFile, "");
  const run = (args: readonly string[], echo?: LocalOptions["echo"]) =>
    startGroup(process.execPath, [WRANGLER, ...args], {
      cwd: root,
      env: environment(dir),
      logFile,
      echo,
    });

  const finish = async (what: string, args: readonly string[]) => {
    const how = await unlessAborted(run(args), signal);
    if (how !== "ended with code 0") throw await startError(`${what} ${how}`, logFile);
  };
  const migrate = ["d1", "migrations", "apply", "DB", "--local", "--persist-to", dir];
  if (!options.again) await finish("applying the migrations", migrate);
  await options.prepare?.();
  const bundle = path.join(dir, "worker");
  if (options.frozen && !options.again) await finish("bundling", ["deploy", "--dry-run", "--outdir", bundle]);

  const program = options.frozen
    ? [path.join(bundle, "worker.js"), "--no-bundle", "--config", path.join(root, "wrangler.jsonc")]
    : [];
  const own = [
    ...["dev", ...program, "--persist-to", dir, "--port", String(port), "--show-interactive-dev-session=false"],
    ...absent(flags, "--ip", "127.0.0.1"),
    ...absent(flags, "--inspector-port", "0"),
  ];
  const group = run([...own, ...flags], options.echo);
  const url = `http://127.0.0.1:${port}`;
  try {
    await ready(url, group, logFile, options);
  } catch (error) {
    await group.stop();
    throw error;
  }
  return { url, port, dir, logFile, ended: group.ended, stop: () => group.stop(), kill9: () => group.kill() };
}

const WRANGLER = path.join(ROOT, "node_modules/wrangler/bin/wrangler.js");

/** No questions, no telemetry, no tracing store, no traffic of its own; runtimes side by side do not know each other. */
function environment(dir: string): NodeJS.ProcessEnv {
  return {
    ...process.env,
    CI: "1",
    WRANGLER_SEND_METRICS: "false",
    WRANGLER_REGISTRY_PATH: path.join(dir, "registry"),
    X_LOCAL_OBSERVABILITY: "false",
    CLOUDFLARE_CF_FETCH_ENABLED: "false",
  };
}

function absent(flags: readonly string[], flag: string, value: string): string[] {
  return flags.some((given) => given === flag || given.startsWith(`${flag}=`)) ? [] : [flag, value];
}

async function unlessAborted(group: Group, signal: AbortSignal | undefined): Promise<string> {
  const stop = () => void group.stop();
  signal?.addEventListener("abort", stop, { once: true });
  if (signal?.aborted) stop();
  const how = await group.ended;
  signal?.removeEventListener("abort", stop);
  signal?.throwIfAborted();
  return how;
}

async function ready(url: string, group: Group, logFile: string, options: LocalOptions): Promise<void> {
  let ended: string | null = null;
  group.ended.then((how) => {
    ended = how;
  });
  let told: string | null = null;
  let until = Date.now() + READY_MS;
  while (Date.now() < until) {
    options.signal?.throwIfAborted();
    if (ended !== null) throw await startError(`wrangler dev ${ended}`, logFile);
    const health = await look(url);
    if (health === "ready") return;
    if (health !== null) {
      if (options.misconfigured === undefined) throw new StartError(`the Worker is misconfigured: ${health}`);
      if (health !== told) options.misconfigured(health);
      told = health;
      until = Date.now() + READY_MS;
    }
    await sleep(LOOK_MS);
  }
  throw await startError(`${url}/healthz was not ready within ${READY_MS / 1_000} s`, logFile);
}

/** The first error that wrangler has printed says more than how it ended. */
async function startError(what: string, logFile: string): Promise<StartError> {
  const log = stripVTControlCharacters(await readFile(logFile, "utf8").catch(() => ""));
  const error = /\[ERROR\]\s*(.+)/.exec(log)?.[1];
  return new StartError(error === undefined ? `${what}; see ${logFile}` : `${what}: ${error}`);
}

/** `ready`, what is misconfigured, or null: no answer yet. */
async function look(url: string): Promise<string | null> {
  try {
    const answer = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(LOOK_DEADLINE_MS) });
    if (answer.ok) return "ready";
    if (answer.status !== 503) return null;
    const body = (await answer.json()) as { status?: unknown; problems?: { setting?: string; detail?: string }[] };
    if (body.status !== "misconfigured") return null;
    return (body.problems ?? []).map(({ setting, detail }) => `${setting}: ${detail}`).join("; ") || "no reason given";
  } catch {
    return null;
  }
}

/** Waits until nothing listens on a port of 127.0.0.1. False: something still does after `withinMs`. */
export async function portIsFree(port: number, withinMs: number): Promise<boolean> {
  const until = Date.now() + withinMs;
  while ((await listenOnce(port)) === null) {
    if (Date.now() >= until) return false;
    await sleep(LOOK_MS);
  }
  return true;
}

/** A port of 127.0.0.1 that nothing listens on now; `wanted` itself when it is free. */
export async function freePort(wanted = 0): Promise<number> {
  if (wanted === 0) return (await listenOnce(0)) ?? 0;
  return (await listenOnce(wanted)) ?? (await listenOnce(0)) ?? 0;
}

/** The port, after it was bound and let go; null: it is taken. */
function listenOnce(port: number): Promise<number | null> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(null));
    server.listen({ port, host: "127.0.0.1", exclusive: true }, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : null));
    });
  });
}
