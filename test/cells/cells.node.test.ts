import path from "node:path";
import { readD1Migrations } from "@cloudflare/vitest-plugin";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createTestHarness } from "wrangler";
import { cellOf } from "../../src/cells.ts";

const TENANT_MAX = 512;

const name = fc.stringMatching(/^[a-z0-9][a-z0-9-]{0,11}$/);
const cellNames = fc.uniqueArray(name, { minLength: 1, maxLength: 12 });
const tenantName = fc
  .string({ unit: "grapheme", minLength: 1, maxLength: 40 })
  .filter((text) => text.isWellFormed() && !text.includes("\0"));

/** The cell of a tenant that must have one. */
function cell(tenant: string, cells: readonly string[], pinned?: ReadonlyMap<string, string>): string {
  const answer = cellOf(tenant, cells, pinned);
  if (!answer.ok) throw new Error(answer.message);
  return answer.cell;
}

const tenants = (count: number, form: (n: number) => string) => Array.from({ length: count }, (_, n) => form(n));

describe("a tenant's cell", () => {
  test("is one of the cells, the same at each call and in whatever order they are given", () => {
    const shuffled = cellNames.chain((cells) =>
      fc.tuple(fc.constant(cells), fc.shuffledSubarray(cells, { minLength: cells.length })),
    );
    fc.assert(
      fc.property(tenantName, shuffled, (tenant, [cells, others]) => {
        const found = cell(tenant, cells);
        expect(cells).toContain(found);
        expect(cell(tenant, others)).toBe(found);
      }),
    );
  });

  test("changes only to a cell that was added, and only from a cell that was taken away", () => {
    fc.assert(
      fc.property(fc.array(tenantName, { maxLength: 50 }), cellNames, name, (some, cells, added) => {
        fc.pre(!cells.includes(added));
        for (const tenant of some) {
          const [before, after] = [cell(tenant, cells), cell(tenant, [...cells, added])];
          if (after !== before) expect(after).toBe(added);
        }
      }),
    );
  });

  test.each([
    ["numbers", String],
    ["padded numbers", (n: number) => `tenant-${String(n).padStart(6, "0")}`],
    ["domains", (n: number) => `${n.toString(36)}.shop.example`],
    ["ids that differ in front", (n: number) => `${(n * 2_654_435_761).toString(16)}-0000-4000-8000-000000000000`],
  ])("10,000 %s: each cell has its share within a tenth, and a cell that is added takes its share", (_, form) => {
    const all = tenants(10_000, form);
    for (const cells of [["a", "b"], ["eu-1", "eu-2", "us-1"], tenants(8, (n) => `cell-${n}`)]) {
      const shares = new Map(cells.map((each) => [each, 0]));
      for (const tenant of all) {
        const found = cell(tenant, cells);
        shares.set(found, shares.get(found)! + 1);
      }
      const even = all.length / cells.length;
      for (const [each, share] of shares) expect(Math.abs(share / even - 1), `${each}: ${share}`).toBeLessThan(0.1);

      const moved = all.filter((tenant) => cell(tenant, [...cells, "new"]) !== cell(tenant, cells)).length;
      expect(Math.abs((moved * (cells.length + 1)) / all.length - 1), `${moved} moved`).toBeLessThan(0.1);
    }
  });

  test("never changes with a version of the package", () => {
    const some = [
      "acme",
      "globex",
      "tyrell",
      "wayne",
      "hooli",
      "7",
      "Übel & Söhne",
      "株式会社",
      "🙂",
      "x".repeat(TENANT_MAX),
    ];
    expect(some.map((each) => cell(each, ["a", "b", "c", "d"])).join("")).toBe("abdcdaabaa");
  });

  test("is the one that is pinned, whichever cells there are beside it", () => {
    fc.assert(
      fc.property(tenantName, cellNames, fc.nat(), (tenant, cells, n) => {
        const pin = cells[n % cells.length]!;
        expect(cell(tenant, cells, new Map([[tenant, pin]]))).toBe(pin);
        // Somebody else's pin changes nothing.
        expect(cell(tenant, cells, new Map([[`${tenant}x`, pin]]))).toBe(cell(tenant, cells));
      }),
    );
  });

  test("pinned to a cell that is not there: that tenant has none, and the others keep theirs", () => {
    const pinned = new Map([["acme", "c"]]);
    expect(cellOf("acme", ["a", "b"], pinned)).toMatchObject({ ok: false, code: "unknown_cell", field: "pinned" });
    expect(cell("globex", ["a", "b"], pinned)).toBe(cell("globex", ["a", "b"]));
  });

  test.each([
    ["empty", ""],
    ["too long", "x".repeat(TENANT_MAX + 1)],
    ["a megabyte", "x".repeat(1_000_000)],
    ["with a lone surrogate", "acme\uD800"],
    ["with NUL", "acme\0"],
  ])("is refused to a name that is %s, pinned or not, and the refusal does not repeat it", (_, tenant) => {
    const answer = cellOf(tenant, ["a", "b"], new Map([[tenant, "a"]]));
    expect(answer).toMatchObject({ ok: false, code: "bad_tenant", field: "tenant" });
    expect(JSON.stringify(answer).length).toBeLessThan(200);
  });

  test("is found for names that objects have by themselves", () => {
    for (const tenant of ["__proto__", "constructor", "toString"])
      expect(["a", "b"]).toContain(cell(tenant, ["a", "b"]));
  });

  test.each([
    ["none", []],
    ["one twice", ["a", "b", "a"]],
    ["one that is no name", ["a", "B"]],
    ["one without a name", [""]],
  ])("cannot be asked for among cells of which there is %s", async (_, cells) => {
    expect(() => cellOf("acme", cells)).toThrow(expect.objectContaining({ code: "bad_cells", field: "cells" }));
  });
});

describe("two cells behind a front, in a real local runtime", () => {
  const folder = path.join(import.meta.dirname, "fixture");
  const workers = [
    { configPath: "front.jsonc" },
    { configPath: "cell.jsonc", env: "a" },
    { configPath: "cell.jsonc", env: "b" },
  ];
  const server = createTestHarness({ root: folder, workers });
  const cells = { a: server.getWorker<{ DB: D1 }>("shop-a"), b: server.getWorker<{ DB: D1 }>("shop-b") };

  beforeAll(async () => {
    await server.listen();
    for (const worker of Object.values(cells)) await migrate((await worker.getEnv()).DB);
  });
  afterAll(() => server.close());

  const enqueue = (tenant: string) =>
    server.fetch(`/${tenant}/notes`, { method: "POST", body: JSON.stringify({ tenant }) });
  /** The tenants whose items are in a cell's database. */
  const held = async (worker: (typeof cells)["a"]) => {
    const { DB } = await worker.getEnv();
    const { results } = await DB.prepare("SELECT payload FROM items ORDER BY seq").all<{ payload: string }>();
    return results.map(({ payload }) => (JSON.parse(payload) as { tenant: string }).tenant);
  };

  test("an item of a tenant is in its cell's database only, and its cell's tick works it; a cell that is down answers for its own tenants only", async () => {
    for (const tenant of ["acme", "globex", "moved"]) expect((await enqueue(tenant)).status, tenant).toBe(201);
    expect(await held(cells.a)).toEqual(["acme", "moved"]);
    expect(await held(cells.b)).toEqual(["globex"]);

    await cells.a.scheduled({ cron: "* * * * *", scheduledTime: new Date() });
    expect(await held(cells.a)).toEqual([]);
    expect(await held(cells.b)).toEqual(["globex"]);

    for (const [tenant, code, field] of [
      ["tyrell", "cell_not_bound", "cells.c"],
      ["astray", "unknown_cell", "pinned"],
    ] as const) {
      const answer = await enqueue(tenant);
      expect([answer.status, await answer.json()], tenant).toEqual([503, expect.objectContaining({ code, field })]);
    }

    // A version of one cell that throws before anything else, unbundled: wrangler's own wrapper would answer for it.
    await server.update({ root: folder, workers: [...workers.slice(0, 2), { config: DOWN }] });
    const answer = await enqueue("globex");
    expect([answer.status, await answer.json()]).toEqual([
      503,
      { ok: false, code: "cell_failed", field: "cells.b", message: 'cell "b" gave no answer: Error: down' },
    ]);
    expect(await held(cells.a)).toEqual([]);
    expect((await enqueue("acme")).status).toBe(201);
    expect(await held(cells.a)).toEqual(["acme"]);

    await server.update({ root: folder, workers });
    expect((await enqueue("globex")).status).toBe(201);
    expect(await held(cells.b)).toEqual(["globex", "globex"]);
  });
});

/** Takes the place of cell b. */
const DOWN = { name: "shop-b", main: "down.mjs", compatibility_date: "2026-08-01", no_bundle: true };

/** As much of D1 as is asked from outside. */
interface D1 {
  prepare(sql: string): { run(): Promise<unknown>; all<T>(): Promise<{ results: T[] }> };
}

async function migrate(db: D1): Promise<void> {
  const migrations = await readD1Migrations(path.resolve(import.meta.dirname, "../../src/db/migrations"));
  for (const query of migrations.flatMap(({ queries }) => queries)) await db.prepare(query).run();
}
