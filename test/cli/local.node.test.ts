import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { createClient, fireTick } from "../../src/cli/client.ts";
import { openDatabase } from "../../src/cli/database.ts";
import { freePort, type Local, portIsFree, StartError, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";

let folder: string;
let started: Local[];

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "duework-local-"));
  started = [];
});
afterEach(async () => {
  await Promise.all(started.map((local) => local.stop()));
  await rm(folder, { recursive: true, force: true });
});

/** This repository's Worker with variables of its own, whatever a developer has in `.dev.vars`. */
async function start(port: number, ...vars: string[]): Promise<Local> {
  const file = path.join(folder, "vars");
  await writeFile(file, vars.join("\n"));
  const local = await startLocal({ dir: path.join(folder, "state"), port, flags: ["--env-file", file], frozen: true });
  started.push(local);
  return local;
}

interface Topics {
  items: { topic: string; ready: { value: number } }[];
}

test("a runtime serves, ticks, keeps its rows through a crash, and lets go of its port", async () => {
  const token = newToken();
  const vars = Object.values(localVars(token));
  const port = await freePort();
  const first = await start(port, ...vars);
  const client = createClient(first.url, token);
  await client.command("topic.pause", { module: "merchants", topic: "poll" });
  const account = { id: "m", url: "http://127.0.0.1:1/", everySeconds: 3_600 };
  await client.command("merchants.add", { accounts: [account] });
  await fireTick(first.url, Date.now());
  await expect(createClient(first.url, "another").read("/api/topics")).rejects.toThrow("401");

  await first.kill9();
  expect(await first.ended).toBe("ended by SIGKILL");
  expect(await portIsFree(port, 2_000)).toBe(true);

  const second = await start(port, ...vars);
  const { items } = await createClient(second.url, token).read<Topics>("/api/topics");
  expect(items.find(({ topic }) => topic === "poll")?.ready.value).toBe(1);
  const database = await openDatabase(second.dir);
  expect(database.prepare("SELECT count(*) AS n FROM items").get()).toEqual({ n: 1 });
  expect(() => database.exec("DELETE FROM items")).toThrow("readonly");
  database.close();

  await second.stop();
  expect(await portIsFree(port, 2_000)).toBe(true);
});

test("a runtime that is misconfigured does not start, and says why", async () => {
  const starting = start(await freePort(), "DUEWORK_NONSENSE=1");
  await expect(starting).rejects.toThrow(StartError);
  await expect(starting).rejects.toThrow("DUEWORK_NONSENSE");
});
