#!/usr/bin/env node
import { readFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { duework } from "./duework/program.ts";
import { processScreen } from "./duework/screen.ts";
import { EXIT, runProgram } from "./flags.ts";
import { init } from "./init.ts";

async function main(): Promise<number> {
  const argv = process.argv.slice(2);
  switch (argv[0]) {
    case "init":
      return init(argv.slice(1), process.cwd(), (text) => process.stdout.write(text));
    case "--version":
    case "-v":
      process.stdout.write(`${await version()}\n`);
      return EXIT.done;
    default:
      return duework(argv, { screen: processScreen(process), env: process.env });
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

// Whoever reads the answer may have read enough: `duework items | head`.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  process.exit(EXIT.done);
});

await runProgram("duework", main);
