import { spawnSync } from "node:child_process";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { readDemoFlags } from "../../src/cli/demo.ts";
import { readDevFlags } from "../../src/cli/dev.ts";

const ROOT = path.resolve(import.meta.dirname, "../..");

function run(program: string, ...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [path.join(ROOT, program), ...args], {
    encoding: "utf8",
  });
  return { status, stdout, stderr };
}

describe("dev's flags", () => {
  test("what it knows is read, the rest goes to wrangler as given", () => {
    const given = ["--port", "8080", "--persist-to", "/tmp/x", "--var", "A:http://b:1/c", "--var=D:e", "--no-tick"];
    const rest = ["--log-level", "debug", "--live-reload", "--ip=127.0.0.2", "-c", "other.jsonc"];
    expect(readDevFlags([...given, ...rest])).toEqual({
      help: false,
      port: 8_080,
      dir: "/tmp/x",
      tick: false,
      rest: ["--var", "A:http://b:1/c", "--var", "D:e", ...rest],
    });
  });

  test("without flags: a tick each minute, any port, wrangler's usual folder", () => {
    expect(readDevFlags([])).toEqual({
      help: false,
      port: null,
      dir: path.join(ROOT, ".wrangler/state"),
      tick: true,
      rest: [],
    });
  });

  test.each<[string, string[], string]>([
    ["a port that is no number", ["--port", "x"], "--port takes a whole number from 1 to 65535"],
    ["a port out of range", ["--port", "70000"], "--port takes a whole number"],
    ["a port that is missing", ["--port"], "--port takes a whole number"],
    ["a folder that is missing", ["--persist-to"], "--persist-to takes a value"],
    ["a variable without a value", ["--var", "A"], "--var takes NAME:VALUE"],
    ["a value for a switch", ["--no-tick=yes"], "--no-tick takes no value"],
    ["a bare word", ["8080"], '"8080" belongs to no flag'],
    ["a bare word after a flag that has its value", ["--port", "8080", "x"], '"x" belongs to no flag'],
  ])("%s is refused", (_, argv, message) => {
    expect(() => readDevFlags(argv)).toThrow(message);
  });

  test("a bad flag ends it with 2 before anything is started", () => {
    const { status, stderr } = run("src/cli/dev.ts", "--port", "none");
    expect(status).toBe(2);
    expect(stderr).toContain("--port takes a whole number");
  });
});

describe("demo's flags", () => {
  test("defaults", () => {
    expect(readDemoFlags([])).toEqual({ help: false, json: false, keep: false, items: 2_000, checkouts: 2_500 });
  });

  test("as given", () => {
    expect(readDemoFlags(["--json", "--items", "50", "--checkouts", "0", "--keep"])).toEqual({
      ...{ help: false, json: true, keep: true, items: 50, checkouts: 0 },
    });
  });

  test.each<[string, string[]]>([
    ["too few items", ["--items", "1"]],
    ["items that are no number", ["--items", "-5"]],
    ["a number of checkouts that is none", ["--checkouts", "many"]],
    ["a flag nobody knows", ["--item", "5"]],
    ["a bare word", ["5"]],
  ])("%s ends it with 2", (_, argv) => {
    const { status, stdout, stderr } = run("src/cli/demo.ts", ...argv);
    expect({ status, stdout }).toEqual({ status: 2, stdout: "" });
    expect(stderr).toMatch(/^demo: [\s\S]+\ndemo: --help says what it takes\n$/);
  });
});

describe("duework", () => {
  test.each<[string, string[], number]>([
    ["no command", [], 2],
    ["an unknown command", ["nope"], 2],
    ["a flag that init does not know", ["init", "--nope"], 2],
    ["help", ["--help"], 0],
    ["help for init", ["init", "--help"], 0],
    ["the version", ["--version"], 0],
  ])("%s", (_, argv, expected) => {
    const { status, stdout, stderr } = run("src/cli/main.ts", ...argv);
    expect(status).toBe(expected);
    expect(expected === 0 ? stdout : stderr).not.toBe("");
    expect(expected === 0 ? stderr : stdout).toBe("");
  });
});
