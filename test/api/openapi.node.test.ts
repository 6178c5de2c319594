import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { promisify } from "node:util";
import { Validator } from "@seriousme/openapi-schema-validator";
import { afterAll, beforeAll, expect, test } from "vitest";
import { fireTick } from "../../src/cli/client.ts";
import { freePort, type Local, startLocal } from "../../src/cli/local.ts";
import { localVars, newToken } from "../../src/cli/secrets.ts";

/** The OpenAPI document as others use it: a public validator, and a client that a public generator makes of it. */

const root = path.resolve(import.meta.dirname, "../..");
const token = newToken();
let folder: string;
let local: Local;
let document: Record<string, unknown>;

const get = (pathname: string, headers: Record<string, string> = { authorization: `Bearer ${token}` }) =>
  fetch(`${local.url}${pathname}`, { headers });

beforeAll(async () => {
  // Inside the repository: what is generated finds the runtime that it imports.
  mkdirSync(path.join(root, ".wrangler"), { recursive: true });
  folder = mkdtempSync(path.join(root, ".wrangler/openapi-"));
  const vars = path.join(folder, "vars");
  const all = Object.entries(localVars(token)).map(([, line]) => line);
  writeFileSync(vars, all.join("\n"));
  local = await startLocal({
    dir: path.join(folder, "state"),
    port: await freePort(),
    flags: ["--env-file", vars],
    frozen: true,
  });
  const answer = await get("/openapi.json");
  expect(answer.status).toBe(200);
  document = (await answer.json()) as Record<string, unknown>;
});
afterAll(async () => {
  await local?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("the document passes a public validator, as OpenAPI 3.1", async () => {
  const validator = new Validator();
  const { valid, errors } = await validator.validate(structuredClone(document));
  expect(errors).toBeUndefined();
  expect(valid).toBe(true);
  expect(validator.version).toBe("3.1");
});

test("each operation has a name of its own, and each reference leads somewhere", () => {
  const paths = document.paths as Record<string, Record<string, { operationId: string }>>;
  const names = Object.values(paths).flatMap((one) => Object.values(one).map(({ operationId }) => operationId));
  expect(names.length).toBeGreaterThan(50);
  expect(new Set(names).size).toBe(names.length);
  for (const [, ref = ""] of JSON.stringify(document).matchAll(/"\$ref":"#\/([^"]+)"/g)) {
    const found = ref.split("/").reduce<unknown>((at, part) => (at as Record<string, unknown>)?.[part], document);
    expect(found, ref).toBeDefined();
  }
});

/** What a caller writes: answers and arguments are typed. */
const USES = `import * as client from "./client.ts";

export async function uses(): Promise<string | null> {
  const topics = await client.readTopics({ limit: 5 });
  if (topics.status !== 200) return topics.data.code;
  const [first] = topics.data.items;
  await client.topicPath({ module: "a", topic: "b", path: "drain" }, { idempotencyKey: "k" });
  // @ts-expect-error there is no such path
  await client.topicPath({ module: "a", topic: "b", path: "pipe" });
  // @ts-expect-error a page has no such size
  await client.readTopics({ limit: "many" });
  return first?.oldestDueAt ?? null;
}
`;

test("a client that a public generator makes of it compiles, and completes a call of each kind", async () => {
  const file = path.join(folder, "client.ts");
  writeFileSync(path.join(folder, "openapi.json"), JSON.stringify(document));
  const generator = path.join(root, "node_modules/.bin/oazapfts");
  await promisify(execFile)(generator, [path.join(folder, "openapi.json"), file], { cwd: root });
  writeFileSync(path.join(folder, "uses.ts"), USES);
  const compilerOptions = {
    ...{ strict: true, target: "es2024", lib: ["es2024", "dom", "dom.iterable"], types: [], noEmit: true },
    ...{ module: "esnext", moduleResolution: "bundler", allowImportingTsExtensions: true, skipLibCheck: true },
  };
  const config = { compilerOptions, include: ["client.ts", "uses.ts"] };
  writeFileSync(path.join(folder, "tsconfig.json"), JSON.stringify(config));
  const tsc = path.join(root, "node_modules/typescript/bin/tsc");
  const complaints = await promisify(execFile)(process.execPath, [tsc], { cwd: folder }).then(
    () => "",
    ({ stdout }: { stdout: string }) => stdout,
  );
  expect(complaints).toBe("");

  // biome-ignore lint/suspicious/noExplicitAny: it was typed by the compiler just now
  const client: any = await import(file);
  Object.assign(client.defaults, { baseUrl: local.url, headers: { authorization: `Bearer ${token}` } });
  await fireTick(local.url, Date.now());

  const topics = await client.readTopics({ limit: 1 });
  expect(topics).toMatchObject({ status: 200, data: { items: [expect.any(Object)], nextCursor: expect.any(String) } });
  expect(await client.readJobsId("records-retention")).toMatchObject({
    status: 200,
    data: { id: "records-retention" },
  });
  expect(await client.readTicks()).toMatchObject({ data: { items: [{ state: "closed" }] } });

  const topic = { module: "merchants", topic: "poll" };
  const paused = await client.topicPause(topic, { idempotencyKey: "once" });
  expect(paused).toMatchObject({ status: 200, data: { ok: true, result: { paused: true, changed: true } } });
  // Under the same key, the first answer: asked anew, nothing would have changed.
  expect(await client.topicPause(topic, { idempotencyKey: "once" })).toMatchObject({ data: paused.data });
  expect(await client.webhooksDrainNow({}, {})).toMatchObject({ status: 200, data: { ok: true } });
  expect(await client.schedulePreview({ cron: "0 3 * * *" })).toMatchObject({ status: 200, data: { ok: true } });

  expect(await client.readJobsId("no-such-job")).toMatchObject({ status: 404, data: { code: "not_found" } });
  expect(await client.topicPause({ module: "no", topic: "such" })).toMatchObject({
    status: 404,
    data: { code: "unknown_topic", field: "topic" },
  });
  expect(await client.readTopics({ limit: 0 })).toMatchObject({ status: 400, data: { code: "bad_arguments" } });
});

test("/docs is served by the Worker itself, behind the sign-in, and nothing in it may run or load from elsewhere", async () => {
  expect((await get("/docs", {})).status).toBe(401);
  for (const [path, to] of [
    ["/docs", "/panel/sign-in?next=%2Fdocs"],
    ["/docs/", "/panel/sign-in?next=%2Fdocs%2F"],
    ["/", "/panel"],
  ]) {
    const browser = await fetch(`${local.url}${path}`, { headers: { accept: "text/html" }, redirect: "manual" });
    expect([browser.status, browser.headers.get("location")]).toEqual([302, to]);
  }
  const page = await get("/docs");
  expect(page.status).toBe(200);
  expect(page.headers.get("content-security-policy")).toMatch(/default-src 'none'; script-src 'self';/);
  expect(page.headers.get("content-security-policy")).not.toMatch(/unsafe|https?:|\*/);
  const html = await page.text();
  expect(html).not.toMatch(/https?:|<style|style=|<script>|\son\w+=/);
  const files = [...html.matchAll(/(?:src|href)="(\/docs\/[^"]+)"/g)].map(([, file = ""]) => file);
  expect(files).toHaveLength(3);
  for (const file of files) {
    expect((await get(file, {})).status, file).toBe(401);
    const answer = await get(file);
    expect(answer.status, file).toBe(200);
    expect(answer.headers.get("content-type")).toMatch(file.endsWith(".css") ? /^text\/css/ : /^text\/javascript/);
    expect((await answer.text()).length).toBeGreaterThan(100);
  }
  for (const name of ["LICENSE", "docs.js/x", "..%2fpanel.css", "swagger-ui-bundle.js.LICENSE.txt", "constructor"]) {
    expect((await get(`/docs/${name}`)).status, name).toBe(404);
  }
});
