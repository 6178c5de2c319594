#!/usr/bin/env node
import { readFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { EXIT, runProgram, UsageError } from "./flags.ts";
import { init } from "./init.ts";

const HELP = `duework <command>

  init [--write]   prints, or writes, what a Worker that imports duework needs
  --version        says this package's version
  --help           says this`;

async function main(): Promise<number> {
  const [command, ...rest] = process.argv.slice(2);
  switch (command) {
    case "init":
      return init(rest, process.cwd(), (text) => process.stdout.write(text));
    case "--version":
    case "-v":
      process.stdout.write(`${await version()}\n`);
      return EXIT.done;
    case "--help":
    case "-h":
      process.stdout.write(`${HELP}\n`);
      return EXIT.done;
    case undefined:
      throw new UsageError(`a command is needed\n\n${HELP}\n`);
    default:
      throw new UsageError(`there is no command "${command}"\n\n${HELP}\n`);
  }
}

/** The version in the nearest `package.json` above this file, which stands deeper once it is compiled. */
async function version(): Promise<string> {
  const here = path.dirname(fileURLToPath(import.meta.url));
  for (const up of ["../../package.json", "../../../package.json"]) {
    const text = await readFile(path.join(here, up), "utf8").catch(() => null);
    if (text !== null) return (JSON.parse(text) as { version: string }).version;
  }
  return "unknown";
}

await runProgram("duework", main);
