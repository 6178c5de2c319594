import { type ChildProcess, spawn } from "node:child_process";
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/**
 * A child process in a process group of its own, together with all that it starts. However this process ends, even by
 * SIGKILL, the group ends too: a local runtime is three processes deep, and none of them may stay behind on a port.
 */
export interface Group {
  /** The group's id, which is its leader's process id. */
  readonly pid: number;
  /** Settles when the leader has ended, with one sentence that says how. Never rejects. */
  readonly ended: Promise<string>;
  /** Ends all of the group: asks (TERM), and after `graceMs` no longer asks (KILL). May be called again. */
  stop(graceMs?: number): Promise<void>;
  /** Ends all of the group as a crash would: at once and without a word. */
  kill(): Promise<void>;
}

export interface GroupOptions {
  cwd: string;
  env: NodeJS.ProcessEnv;
  /** The file that what it prints is appended to. */
  logFile: string;
  /** Also gets what it prints. */
  echo?: ((chunk: Buffer) => void) | undefined;
}

/** Time a group has to end when asked, ms. */
const GRACE_MS = 5_000;
/** Time the kernel has to end what was killed, ms: what is still listed then waits for a parent that does not reap. */
const REAP_MS = 500;

/** Starts a group. */
export function startGroup(command: string, args: readonly string[], options: GroupOptions): Group {
  const child = spawn(command, args, {
    cwd: options.cwd,
    env: options.env,
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  collect(child, options);
  const ended = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(`could not start: ${error.message}`));
    child.once("close", (code, signal) => resolve(signal === null ? `ended with code ${code}` : `ended by ${signal}`));
  });
  const { pid } = child;
  if (pid === undefined) return { pid: 0, ended, stop: async () => {}, kill: async () => {} };
  const guard = watchOver(pid);
  let over = false;
  // Its leader gone, the rest of the group serves nobody, and holds the pipes open.
  child.once("exit", () => {
    over = true;
    signalGroup(pid, "SIGKILL");
    guard.kill("SIGKILL");
  });
  const finish = async (graceMs: number) => {
    if (!over && graceMs > 0 && signalGroup(pid, "SIGTERM")) {
      await Promise.race([ended, sleep(graceMs, undefined, { ref: false })]);
    }
    if (!over) signalGroup(pid, "SIGKILL");
    await gone(pid, REAP_MS);
  };
  return { pid, ended, stop: (graceMs = GRACE_MS) => finish(graceMs), kill: () => finish(0) };
}

/**
 * A shell that waits for the end of a pipe whose other end only this process holds, then kills the group. It is in a
 * group of its own, so that what is sent to ours does not reach it.
 */
function watchOver(pid: number): ChildProcess {
  const guard = spawn("sh", ["-c", 'read -r _; kill -s KILL -- "-$0"', String(pid)], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  guard.on("error", () => {});
  guard.stdin?.on("error", () => {});
  guard.unref();
  (guard.stdin as { unref?(): void } | null)?.unref?.();
  return guard;
}

function collect(child: ChildProcess, { logFile, echo }: GroupOptions): void {
  const take = (chunk: Buffer) => {
    appendFileSync(logFile, chunk);
    echo?.(chunk);
  };
  child.stdout?.on("data", take);
  child.stderr?.on("data", take);
}

/** False: there is no such group any more. */
function signalGroup(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(-pid, signal);
    return true;
  } catch {
    return false;
  }
}

async function gone(pid: number, withinMs: number): Promise<void> {
  const until = Date.now() + withinMs;
  while (signalGroup(pid, 0) && Date.now() < until) await sleep(25);
}
