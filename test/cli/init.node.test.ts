import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { unstable_readConfig } from "wrangler";
import { CONFIG, init, WORKER } from "../../src/cli/init.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");

let folder: string;
let said: string;
const say = (text: string) => {
  said += text;
};
const read = (file: string) => readFile(path.join(folder, file), "utf8");

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "duework-init-"));
  said = "";
});
afterEach(() => rm(folder, { recursive: true, force: true }));

describe("what it prints", () => {
  test("is what this repository's own Worker runs on", async () => {
    await init(["--write"], folder, say);
    const of = (config: string) => {
      const { d1_databases, workflows, assets, ...all } = unstable_readConfig({ config }, { hideWarnings: true });
      // Where a Worker lies and what it is called is its own.
      const own = ["configPath", "userConfigPath", "definedEnvironments", "name", "topLevelName", "main", "build"];
      const databases = d1_databases.map((one: { binding: string; database_name?: string }) => [
        one.binding,
        one.database_name,
      ]);
      // Another Workflow than that of runs is for those who bring its job along.
      const runs = workflows.filter(({ binding }: { binding: string }) => binding === "RUN");
      return {
        ...Object.fromEntries(Object.entries(all).filter(([key]) => !own.includes(key))),
        databases,
        runs,
        assets: { ...assets, directory: "" },
      };
    };
    expect(of(path.join(folder, "wrangler.jsonc"))).toEqual(of(path.join(ROOT, "wrangler.jsonc")));
  });

  test("names the migrations that the package ships", async () => {
    await init(["--write"], folder, say);
    const { d1_databases } = unstable_readConfig({ config: path.join(folder, "wrangler.jsonc") });
    const [, shipped] = /^node_modules\/duework\/(.+)$/.exec(d1_databases[0]?.migrations_dir ?? "") ?? [];
    const { files } = JSON.parse(await readFile(path.join(ROOT, "package.json"), "utf8")) as { files: string[] };
    expect(files).toContain(shipped);
  });

  test("names the assets that the package ships", async () => {
    const [, shipped] = /"directory": "node_modules\/duework\/([^"]+)"/.exec(CONFIG) ?? [];
    const [, built] = /"directory": "([^"]+)"/.exec(await readFile(path.join(ROOT, "wrangler.jsonc"), "utf8")) ?? [];
    expect(shipped).toBe(built);
    const { files } = JSON.parse(await readFile(path.join(ROOT, "package.json"), "utf8")) as { files: string[] };
    expect(files).toContain(shipped?.split("/")[0]);
  });

  test("binds the Workflow of runs to a class that the Worker exports", async () => {
    await init(["--write"], folder, say);
    const { workflows } = unstable_readConfig({ config: path.join(folder, "wrangler.jsonc") });
    expect(workflows).toHaveLength(1);
    for (const { class_name } of workflows) expect(WORKER).toContain(`export const ${class_name} = runWorkflow(app);`);
  });

  test("is the configuration, a Worker and the commands, and nothing is written", async () => {
    await init([], folder, say);
    expect(said).toContain(CONFIG);
    expect(said).toContain(WORKER);
    expect(said).toContain("wrangler queues create duework-items-dead");
    await expect(read("wrangler.jsonc")).rejects.toThrow("ENOENT");
  });
});

describe("what it writes", () => {
  test("both files, where there are none", async () => {
    await init(["--write"], folder, say);
    expect([await read("wrangler.jsonc"), await read("src/worker.ts")]).toEqual([CONFIG, WORKER]);
    expect(said).toContain("wrote wrangler.jsonc\nwrote src/worker.ts\n");
  });

  test("a token for this machine that gets in, kept out of the repository and not said, and the same the next time", async () => {
    await init(["--write"], folder, say);
    const token = (await read(".dev.token")).trim();
    const vars = await read(".dev.vars");
    expect(vars).toContain(createHash("sha256").update(token).digest("hex"));
    expect(vars + said).not.toContain(token);
    expect((await read(".gitignore")).split("\n")).toEqual(expect.arrayContaining([".dev.vars", ".dev.token"]));
    await init(["--write"], folder, say);
    expect([(await read(".dev.token")).trim(), await read(".dev.vars")]).toEqual([token, vars]);
    expect(said).toContain("left .dev.vars and .dev.token as they are");
  });

  test.each(["wrangler.jsonc", "wrangler.json", "wrangler.toml"])("nothing beside %s", async (file) => {
    await writeFile(path.join(folder, file), "mine");
    await init(["--write"], folder, say);
    expect(await read(file)).toBe("mine");
    expect(said).toContain(`left ${file} as it is`);
  });

  test("nothing the second time", async () => {
    await init(["--write"], folder, say);
    await writeFile(path.join(folder, "src/worker.ts"), "mine");
    said = "";
    await init(["--write"], folder, say);
    expect(await read("src/worker.ts")).toBe("mine");
    expect(said).not.toContain("wrote");
  });
});
