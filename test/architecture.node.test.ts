import { existsSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";

const root = path.resolve(import.meta.dirname, "..");
const read = (file: string) => readFileSync(path.join(root, file), "utf8");
const filesIn = (folder: string, ending: string) =>
  readdirSync(path.join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(ending))
    .map((name) => `${folder}/${name.replaceAll(path.sep, "/")}`)
    .sort();

const page = read("docs/architecture.md");
const sources = ["src", "consumers", "workflows"]
  .filter((folder) => existsSync(path.join(root, folder)))
  .flatMap((folder) => [...filesIn(folder, ".ts"), ...filesIn(folder, ".tsx")]);
/** A file without its comments. What stands in a string stays, and `//` in a string is no loss here. */
const code = (file: string) =>
  read(file)
    .replace(/\/\*[\s\S]*?\*\//g, "")
    .replace(/(^|\s)\/\/.*$/gm, "$1");

/** The rows of the table under a heading, a list of cells each, without the head. */
function tableUnder(heading: string): string[][] {
  const section = page.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "";
  const rows = section.split("\n").filter((line) => line.startsWith("|"));
  return rows.slice(2).map((row) =>
    row
      .split("|")
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
}

const words = (cell = "") => [...cell.matchAll(/`([^`]+)`/g)].map((match) => match[1] ?? "");

const rooms = new Map(
  tableUnder("Rooms").map(([name, , imports, packages]) => [
    words(name)[0] ?? "",
    { imports: words(imports), packages: packages === "any" ? null : words(packages) },
  ]),
);

/** The room of a file; null for the files that stand in `src` itself and compose the rooms. */
const roomOf = (file: string) => [...rooms.keys()].find((room) => file.startsWith(`${room}/`)) ?? null;

/** Each import of a file: a path from the root, or a package's name. */
function importsOf(file: string): string[] {
  return [...code(file).matchAll(/\b(?:from|import)\s*\(?\s*"([^"]+)"/g)].map(([, target = ""]) =>
    target.startsWith(".") ? path.posix.join(path.posix.dirname(file), target) : target,
  );
}

const packageOf = (target: string) =>
  target
    .split("/")
    .slice(0, target.startsWith("@") ? 2 : 1)
    .join("/");

describe("rooms", () => {
  test("every source file is in a room of the table, or composes the rooms from src itself", () => {
    expect(sources.filter((file) => roomOf(file) === null && !/^src\/[^/]+\.ts$/.test(file))).toEqual([]);
  });

  test("a room imports only what its row names", () => {
    const strays = sources.flatMap((file) => {
      const room = rooms.get(roomOf(file) ?? "");
      if (room === undefined) return [];
      return importsOf(file)
        .filter((target) => {
          if (!/^(?:src|consumers|workflows)\//.test(target)) {
            return room.packages !== null && !room.packages.includes(packageOf(target));
          }
          return target !== file && roomOf(target) !== roomOf(file) && !room.imports.some((one) => within(target, one));
        })
        .map((target) => `${file} imports ${target}`);
    });
    expect(strays).toEqual([]);
  });

  test("a module sees no other module's folder", () => {
    const strays = filesIn("src/modules", ".ts").flatMap((file) => {
      const own = file.split("/").slice(0, 3).join("/");
      return importsOf(file)
        .filter((target) => target.startsWith("src/modules/") && !target.startsWith(`${own}/`))
        .map((target) => `${file} imports ${target}`);
    });
    expect(strays).toEqual([]);
  });

  test("consumers are thin: no SQL, no catch, one short file a queue", () => {
    for (const file of filesIn("consumers", ".ts")) {
      expect(code(file), file).not.toMatch(/\b(prepare|batch)\(|\bcatch\b/);
      expect(code(file).split("\n").length, file).toBeLessThan(60);
    }
  });
});

function within(target: string, room: string): boolean {
  return target === room || target.startsWith(`${room}/`);
}

describe("tables", () => {
  const listed = new Map(tableUnder("Tables").map(([table, , file]) => [words(table)[0] ?? "", words(file)[0] ?? ""]));
  const migrations = filesIn("src/db/migrations", ".sql").map(read).join("\n");

  test("every table of the migrations is listed, and no other", () => {
    const made = [...migrations.matchAll(/^CREATE TABLE (\w+)/gm)].map((match) => match[1] ?? "");
    const dropped = [...migrations.matchAll(/^DROP TABLE (\w+)/gm)].map((match) => match[1] ?? "");
    expect([...listed.keys()].sort()).toEqual(made.filter((table) => !dropped.includes(table)).sort());
  });

  test("each is written by the SQL of the one file that is listed, and by no other", () => {
    const writers = new Map<string, Set<string>>();
    // The demo plays the app whose checkouts they are: it puts rows into that one table, before a runtime runs.
    const app = "src/cli/demo/checkouts.ts";
    expect([...code(app).matchAll(/\b(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)/g)].map(([, table]) => table)).toEqual([
      "checkouts",
    ]);
    for (const file of sources.filter((file) => file !== app)) {
      for (const [, inserted, deleted, updated] of code(file).matchAll(
        /\bINSERT\s+(?:OR\s+\w+\s+)?INTO\s+(\w+)|\bDELETE\s+FROM\s+(\w+)|\bUPDATE\s+(\w+)\s+SET\b/g,
      )) {
        const table = inserted ?? deleted ?? updated ?? "";
        writers.set(table, (writers.get(table) ?? new Set()).add(file));
      }
    }
    const found = Object.fromEntries([...writers].map(([table, files]) => [table, [...files].sort()]));
    expect(found).toEqual(Object.fromEntries([...listed].map(([table, file]) => [table, [file]])));
  });

  test("the migrations name the same writers", () => {
    for (const file of new Set(listed.values())) expect(migrations).toContain(file);
  });
});

describe("what no file may do", () => {
  const forbidden = (pattern: RegExp, exempt: (file: string) => boolean = () => false) =>
    sources.filter((file) => !exempt(file) && pattern.test(code(file)));

  test("nothing is put on an alarm, or left to run after its invocation", () => {
    expect(forbidden(/\bsetAlarm\b|\bwaitUntil\s*\(/)).toEqual([]);
  });

  test("time and randomness are read in one place", () => {
    const ports = (file: string) => file === "src/platform.ts" || file.startsWith("src/cli/");
    const readers =
      /\bDate\.now\b|\bnew Date\(\s*\)|\bperformance\.now\b|\bMath\.random\b|\brandomUUID\b|\bgetRandomValues\b/;
    expect(forbidden(readers, ports)).toEqual([]);
    expect(readers.test(code("src/platform.ts"))).toBe(true);
  });

  test("no SQL reads a clock", () => {
    const clocks =
      /\b(?:datetime|date|time|julianday|unixepoch|strftime)\s*\([^)]*'now'|\bCURRENT_(?:TIMESTAMP|TIME|DATE)\b/i;
    expect(forbidden(clocks)).toEqual([]);
    expect(filesIn("src/db/migrations", ".sql").filter((file) => clocks.test(read(file)))).toEqual([]);
  });
});

test("a file of more than 300 lines is listed with its reason", () => {
  const listed = words(page.split("\n## Long files\n")[1]).filter((word) => word.endsWith(".ts"));
  const long = sources.filter((file) => read(file).split("\n").length - 1 > 300);
  expect(long.filter((file) => !listed.includes(file))).toEqual([]);
  expect(listed.filter((file) => !sources.includes(file))).toEqual([]);
});
