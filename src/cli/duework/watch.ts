import { setTimeout as sleep } from "node:timers/promises";
import { type Deployment, UnreachableError } from "./deployment.ts";
import type { Screen } from "./screen.ts";
import { readStatus, statusLine, toldStatus } from "./status.ts";

/** Home, and everything behind the cursor cleared: what stays the same does not flicker. */
const HOME = "\u001b[H";
const CLEAR_LINE = "\u001b[K";
const CLEAR_REST = "\u001b[J";
/** A page of its own, so that what stood on the terminal is there again at the end. */
const OPEN = "\u001b[?1049h\u001b[?25l";
const CLOSE = "\u001b[?25h\u001b[?1049l";

/**
 * Shows the status again and again until the signal aborts; on a pipe as a line each. A deployment that cannot be
 * reached is shown as that, and asked again.
 * @throws RefusedError when the token is refused
 */
export async function watch(
  deployment: Deployment,
  screen: Screen,
  everyMs: number,
  rows: () => number,
  signal: AbortSignal,
): Promise<void> {
  const live = screen.columns !== null;
  if (live) screen.out(OPEN);
  try {
    while (!signal.aborted) {
      screen.out(await frame(deployment, screen, rows));
      await sleep(everyMs, undefined, { signal }).catch(() => {});
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    if (live) screen.out(CLOSE);
  }
}

async function frame(deployment: Deployment, screen: Screen, rows: () => number): Promise<string> {
  const at = new Date().toISOString();
  try {
    const status = await readStatus(deployment);
    if (screen.columns === null) return statusLine(status, at);
    return drawn(`${toldStatus(status, deployment.url, screen)}\n${at}  q ends\n`, rows());
  } catch (error) {
    if (!(error instanceof UnreachableError)) throw error;
    return screen.columns === null
      ? `${at} unreachable: ${error.message}\n`
      : drawn(`${error.message}\n${at}\n`, rows());
  }
}

function drawn(text: string, rows: number): string {
  const lines = text.trimEnd().split("\n");
  const shown = lines.length < rows ? lines : [...lines.slice(0, Math.max(1, rows - 2)), "…"];
  return HOME + shown.map((line) => `${line}${CLEAR_LINE}\n`).join("") + CLEAR_REST;
}

/** What ends it, when it is typed: q, Q, ctrl-c, ctrl-d. */
const ENDS = [0x71, 0x51, 0x03, 0x04];

/** Aborts when a person ends it: q or ctrl-c on a terminal, else a signal. Undo by `release`. */
export function endedByPerson({ stdin }: NodeJS.Process): { signal: AbortSignal; release(): void } {
  const ending = new AbortController();
  const end = () => ending.abort();
  const key = (chunk: Buffer) => {
    if (chunk.some((byte) => ENDS.includes(byte))) end();
  };
  process.once("SIGINT", end).once("SIGTERM", end);
  const raw = stdin.isTTY === true;
  if (raw) stdin.setRawMode(true).resume().on("data", key);
  const release = () => {
    process.off("SIGINT", end).off("SIGTERM", end);
    if (raw) stdin.off("data", key).setRawMode(false).pause();
  };
  return { signal: ending.signal, release };
}
