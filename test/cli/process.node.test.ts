import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { startGroup } from "../../src/cli/process.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "duework-process-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

/** A shell with a child of its own; prints both ids. */
const TWO = "sleep 60 & echo $$ $!; wait";

const group = (script: string) =>
  startGroup("sh", ["-c", script], { cwd: folder, env: process.env, logFile: path.join(folder, "log") });

async function ids(): Promise<number[]> {
  const both = async () => /^(\d+) (\d+)$/m.exec(await readFile(path.join(folder, "log"), "utf8").catch(() => ""));
  await expect.poll(both, { timeout: 10_000 }).not.toBeNull();
  const [, ...found] = (await both()) ?? [];
  return found.map(Number);
}

/** Neither runs. One that has ended and was not yet reaped by its parent does not run. */
async function expectGone(group: readonly number[]): Promise<void> {
  const runs = async (id: number) => {
    const stat = await readFile(`/proc/${id}/stat`, "utf8").catch(() => null);
    return stat !== null && !/\) [ZX] /.test(stat);
  };
  await expect.poll(async () => (await Promise.all(group.map(runs))).some(Boolean), { timeout: 10_000 }).toBe(false);
}

test("stopping a group ends what it has started, and may be done twice", async () => {
  const two = group(TWO);
  const both = await ids();
  await two.stop();
  await two.stop();
  await expectGone(both);
  expect(await two.ended).toBe("ended by SIGTERM");
});

test("a group that does not listen is killed", async () => {
  const deaf = group(`trap '' TERM; ${TWO}; ${TWO}`);
  const both = await ids();
  await deaf.stop(100);
  await expectGone(both);
  expect(await deaf.ended).toBe("ended by SIGKILL");
});

test("when its leader ends, the rest of the group ends too", async () => {
  const two = group("sleep 60 & echo $$ $!; exit 3");
  const both = await ids();
  expect(await two.ended).toBe("ended with code 3");
  await expectGone(both);
});

test("when the process that started it is killed, the group ends", async () => {
  const module = path.resolve(import.meta.dirname, "../../src/cli/process.ts");
  const program = `
    const { startGroup } = await import(${JSON.stringify(module)});
    startGroup("sh", ["-c", ${JSON.stringify(TWO)}], { cwd: ".", env: process.env, logFile: "log" });
    setInterval(() => {}, 1000);`;
  const starter: ChildProcess = spawn(process.execPath, ["--input-type=module", "-e", program], { cwd: folder });
  try {
    const both = await ids();
    starter.kill("SIGKILL");
    await expectGone(both);
  } finally {
    starter.kill("SIGKILL");
  }
});

test("a program that is not there is told of", async () => {
  const none = startGroup("duework-no-such-program", [], {
    cwd: folder,
    env: process.env,
    logFile: path.join(folder, "log"),
  });
  expect(await none.ended).toContain("could not start");
  await none.stop();
});
