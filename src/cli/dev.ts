import path from "node:path";
import { parseArgs } from "node:util";
import { fireTick } from "./client.ts";
import { createEnding } from "./ending.ts";
import { EXIT, runProgram, UsageError, wholeNumber } from "./flags.ts";
import { freePort, portIsFree, ROOT, StartError, startLocal } from "./local.ts";
import { ensureDevSecrets } from "./secrets.ts";
import { eachMinute } from "./ticker.ts";

const HELP = `npm run dev [-- FLAGS]: runs this repository's Worker on this machine.

  --port P           listens on 127.0.0.1:P (default: 8787, or a free port when that is taken)
  --persist-to DIR   keeps the database there (default: .wrangler/state)
  --var NAME:VALUE   sets a variable; may be given again
  --no-tick          fires no tick each minute
  --help             says this

Any other flag goes to wrangler dev as it is.`;

/** Wrangler's own default, which tools look for. */
const USUAL_PORT = 8787;

/** A runtime that was just ended on the same port may take so long to let it go, ms. */
const PORT_MS = 8_000;

/** What the command line asks for. */
export interface DevFlags {
  help: boolean;
  port: number | null;
  dir: string;
  tick: boolean;
  /** For wrangler, as given. */
  rest: string[];
}

/**
 * Reads the command line.
 * @throws UsageError naming the flag
 */
export function readDevFlags(argv: readonly string[]): DevFlags {
  const { tokens } = parseArgs({
    args: [...argv],
    options: {
      port: { type: "string" },
      "persist-to": { type: "string" },
      var: { type: "string" },
      "no-tick": { type: "boolean" },
      help: { type: "boolean", short: "h" },
    },
    strict: false,
    tokens: true,
  });
  const flags: DevFlags = { help: false, port: null, dir: path.join(ROOT, ".wrangler/state"), tick: true, rest: [] };
  // A bare word belongs to the wrangler flag before it, if that has no value yet.
  let mayTakeWord = false;
  for (const token of tokens) {
    if (token.kind === "option-terminator") continue;
    if (token.kind === "positional") {
      if (!mayTakeWord) throw new UsageError(`"${token.value}" belongs to no flag`);
      flags.rest.push(token.value);
    } else mayTakeWord = takeFlag(flags, token, argv[token.index] ?? token.rawName);
  }
  return flags;
}

function takeFlag(
  flags: DevFlags,
  { name, value }: { name: string; value?: string | undefined },
  raw: string,
): boolean {
  const text = (): string => {
    if (value === undefined || value === "") throw new UsageError(`--${name} takes a value`);
    return value;
  };
  const none = () => {
    if (value !== undefined) throw new UsageError(`--${name} takes no value`);
  };
  switch (name) {
    case "port":
      flags.port = wholeNumber("--port", value, 1, 65_535);
      return false;
    case "persist-to":
      flags.dir = path.resolve(text());
      return false;
    case "var":
      if (!/^[A-Za-z_]\w*:/.test(text())) throw new UsageError(`--var takes NAME:VALUE, not "${value}"`);
      flags.rest.push("--var", text());
      return false;
    case "no-tick":
      none();
      flags.tick = false;
      return false;
    case "help":
      none();
      flags.help = true;
      return false;
    default:
      flags.rest.push(raw);
      return value === undefined;
  }
}

async function dev(): Promise<number> {
  const flags = readDevFlags(process.argv.slice(2));
  if (flags.help) {
    process.stdout.write(`${HELP}\n`);
    return EXIT.done;
  }
  const ending = createEnding();
  if (flags.port !== null && !(await portIsFree(flags.port, PORT_MS))) {
    throw new Error(`port ${flags.port} of 127.0.0.1 is taken`);
  }

  const secrets = await ensureDevSecrets(ROOT);
  const local = await startLocal({
    dir: flags.dir,
    port: flags.port ?? (await freePort(USUAL_PORT)),
    flags: flags.rest,
    misconfigured: (problems) => process.stderr.write(`dev: not ready, the Worker is misconfigured: ${problems}\n`),
    echo: (chunk) => process.stdout.write(chunk),
    signal: ending.signal,
  }).catch((error: unknown) => {
    if (ending.signal.aborted) return null;
    const unknown = error instanceof StartError && /Unknown arguments?:.*/.exec(error.message);
    throw unknown ? new UsageError(`wrangler says: ${unknown[0]}`) : error;
  });
  if (local === null) return EXIT.done;
  process.stdout.write(`${welcome(local.url, secrets, flags)}\n`);

  const fire = (minute: number) => fireTick(local.url, minute, ending.signal);
  const stopTicks = flags.tick ? eachMinute(fire, (error) => ending.signal.aborted || console.error(error)) : () => {};
  const asked = new Promise<null>((resolve) => ending.signal.addEventListener("abort", () => resolve(null)));
  const how = await Promise.race([local.ended, asked]);
  stopTicks();
  await local.stop();
  if (how !== null && !ending.signal.aborted) throw new Error(`wrangler dev ${how}`);
  return EXIT.done;
}

function welcome(url: string, secrets: "made" | "kept" | "own", { tick, dir }: DevFlags): string {
  const token = { made: ".dev.token (new)", kept: ".dev.token", own: "yours, in .dev.vars" }[secrets];
  return [
    "",
    `Ready on ${url} (GET /healthz answers 200)`,
    `  panel     ${url}/panel`,
    `  token     ${token}`,
    `  database  ${dir}`,
    `  ticks     ${tick ? "each minute" : "none (--no-tick)"}`,
    "",
  ].join("\n");
}

if (import.meta.main) await runProgram("dev", dev);
