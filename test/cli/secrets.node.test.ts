import { createHash } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ensureDevSecrets } from "../../src/cli/secrets.ts";

let folder: string;
const read = (file: string) => readFile(path.join(folder, file), "utf8");

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "duework-secrets-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

async function hashOfToken(): Promise<string> {
  return createHash("sha256")
    .update((await read(".dev.token")).trim())
    .digest("hex");
}

test("the first run makes a token for its owner only, and the second keeps it", async () => {
  expect(await ensureDevSecrets(folder)).toBe("made");
  const [vars, token] = [await read(".dev.vars"), await read(".dev.token")];
  expect(vars).toContain(await hashOfToken());
  expect(vars).not.toContain(token.trim());
  expect(vars).toContain("WEBHOOKS_ALLOW_PRIVATE=true");
  for (const file of [".dev.vars", ".dev.token"])
    expect((await stat(path.join(folder, file))).mode & 0o777).toBe(0o600);
  expect(await ensureDevSecrets(folder)).toBe("kept");
  expect([await read(".dev.vars"), await read(".dev.token")]).toEqual([vars, token]);
});

test("first runs at the same time agree", async () => {
  await Promise.all(Array.from({ length: 8 }, () => ensureDevSecrets(folder)));
  expect(await read(".dev.vars")).toContain(await hashOfToken());
  expect((await readdir(folder)).sort()).toEqual([".dev.token", ".dev.vars"]);
});

test("a developer's own variables stay, and only what is missing is added", async () => {
  await writeFile(path.join(folder, ".dev.vars"), "WEBHOOKS_ALLOW_PRIVATE=false\nMINE=1");
  expect(await ensureDevSecrets(folder)).toBe("made");
  const lines = (await read(".dev.vars")).trim().split("\n");
  expect(lines.slice(0, 2)).toEqual(["WEBHOOKS_ALLOW_PRIVATE=false", "MINE=1"]);
  expect(lines.filter((line) => line.startsWith("WEBHOOKS_ALLOW_PRIVATE"))).toHaveLength(1);
  expect(lines.at(-1)).toContain(await hashOfToken());
});

test("a developer's own tokens stay", async () => {
  await writeFile(path.join(folder, ".dev.vars"), "DUEWORK_TOKENS='[]'\n");
  expect(await ensureDevSecrets(folder)).toBe("own");
  expect(await readdir(folder)).toEqual([".dev.vars"]);
});
