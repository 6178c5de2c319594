import { readFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { EXIT, UsageError, wholeNumber } from "../flags.ts";
import { FLAGS, type Flags, readArguments, readFlags } from "./arguments.ts";
import { askFor } from "./ask.ts";
import { type Entry, findEntry, loadCatalog } from "./catalog.ts";
import { completionScript, SHELLS, type Shell } from "./completion.ts";
import { connect, type Deployment, RefusedError, readUrl, UnreachableError } from "./deployment.ts";
import { HELP, helpOf, listed, nowhere, usageOf } from "./help.ts";
import type { Screen } from "./screen.ts";
import { readStatus, toldStatus } from "./status.ts";
import { isRow } from "./table.ts";
import { visible, visibleJson } from "./visible.ts";
import { endedByPerson, watch } from "./watch.ts";

/** The part of `duework` that talks to a deployment. */

const USUAL_URL = "http://127.0.0.1:8787";
/** For one request, ms. A tick or a slow command is over long before. */
const REQUEST_MS = 60_000;
/** While a shell waits for its completions, ms. */
const COMPLETION_MS = 3_000;
/** Between two looks of `watch`, s. */
const WATCH_S = 2;

/** First words that are the program's own. */
export const OWN = ["commands", "status", "watch", "completion", "init", "help"] as const;

export interface Surroundings {
  screen: Screen;
  env: NodeJS.ProcessEnv;
  /** For one request, ms. */
  deadlineMs?: number;
}

/** Runs a command line. Answers the exit code; whatever goes wrong is one line on `err`, without the token. */
export async function duework(argv: readonly string[], around: Surroundings): Promise<number> {
  const secrets: string[] = [];
  try {
    return await run(argv, around, secrets);
  } catch (error) {
    const { code, message } = toldError(error);
    const safe = secrets.reduce((text, secret) => text.replaceAll(secret, "…"), message);
    around.screen.err(`duework: ${visible(safe)}\n`);
    if (code === EXIT.usage) around.screen.err("duework: --help says what it takes\n");
    return code;
  }
}

function toldError(error: unknown): { code: number; message: string } {
  if (error instanceof RefusedError) return { code: EXIT.refused, message: error.message };
  if (error instanceof UnreachableError) return { code: EXIT.unreachable, message: error.message };
  if (error instanceof UsageError) return { code: EXIT.usage, message: error.message };
  const { code, message = String(error) } = (error ?? {}) as { code?: unknown; message?: string };
  const isUsage = typeof code === "string" && code.startsWith("ERR_PARSE_ARGS_");
  return { code: isUsage ? EXIT.usage : EXIT.refused, message: message.replace(/\s+/g, " ") };
}

async function run(argv: readonly string[], around: Surroundings, secrets: string[]): Promise<number> {
  const { flags, words } = readFlags(argv);
  const { screen } = around;
  const [first] = words;
  if (first === undefined || first === "help") {
    if (!flags.help && first === undefined) throw new UsageError("a command is needed");
    screen.out(HELP);
    return EXIT.done;
  }
  if (flags.token !== null) secrets.push(flags.token);
  const open: Open = async ({ deadlineMs = around.deadlineMs ?? REQUEST_MS, signal } = {}) => {
    const token = await readToken(flags, around.env);
    secrets.push(token);
    const from = flags.url === null ? "DUEWORK_URL" : "--url";
    const url = readUrl(flags.url ?? (around.env.DUEWORK_URL || USUAL_URL), from);
    const deployment = connect({ url, token, deadlineMs, ...(signal !== undefined && { signal }) });
    if (flags.urlBehind) await recognise(deployment);
    return deployment;
  };
  switch (first) {
    case "commands":
      return listCommands(argv, flags, await open(), screen);
    case "status":
      return status(argv, flags, open, screen);
    case "watch":
      return watchStatus(argv, open, screen);
    case "completion":
      return complete(words, open, screen);
    default:
      return ask(argv, words, flags, await open(), screen);
  }
}

/** Connects to the deployment that the flags and the environment name. */
type Open = (options?: { deadlineMs?: number; signal?: AbortSignal }) => Promise<Deployment>;

const TOKEN = /^[\x21-\x7e]{1,4096}$/;

/** @throws UsageError, which never holds what was given */
async function readToken({ token }: Flags, env: NodeJS.ProcessEnv): Promise<string> {
  const file = env.DUEWORK_TOKEN_FILE;
  const given = token ?? (env.DUEWORK_TOKEN || (file ? await readTokenFile(file) : null));
  if (given === null) {
    throw new UsageError(
      "a token is needed: --token, DUEWORK_TOKEN, or DUEWORK_TOKEN_FILE (of npm run dev: .dev.token)",
    );
  }
  const trimmed = given.trim();
  if (!TOKEN.test(trimmed)) throw new UsageError("the token is empty, or holds characters that no token has");
  return trimmed;
}

async function readTokenFile(file: string): Promise<string> {
  try {
    return await readFile(file, "utf8");
  } catch {
    throw new UsageError(`DUEWORK_TOKEN_FILE: ${file} cannot be read`);
  }
}

/** Sees to it that the token goes to no address that was meant as a command's argument. The look bears no token. */
async function recognise(deployment: Deployment): Promise<void> {
  const { value } = await deployment.health();
  if (isRow(value) && typeof value.status === "string" && "tickAgeSeconds" in value) return;
  throw new UnreachableError(`${deployment.url} is no deployment of duework; a command's own argument is url=…`);
}

/** Flags of a command of the program's own, and nothing beside them. */
function ownFlags<Options extends Record<string, { type: "string" | "boolean" }>>(
  argv: readonly string[],
  words: number,
  options: Options,
) {
  const { values, positionals } = parseArgs({
    args: [...argv],
    options: { ...FLAGS, ...options },
    allowPositionals: true,
  });
  if (positionals.length > words) throw new UsageError(`"${positionals[words]}" is one word too many`);
  return values as Partial<Record<string, string | boolean>>;
}

async function listCommands(argv: readonly string[], flags: Flags, deployment: Deployment, screen: Screen) {
  ownFlags(argv, 1, {});
  const entries = await loadCatalog(deployment);
  const plain = entries.map(({ words, help, grant, positional, args }) => ({ words, help, grant, positional, args }));
  screen.out(flags.json ? `${visibleJson(JSON.stringify({ items: plain }))}\n` : listed(entries, screen));
  return EXIT.done;
}

async function status(argv: readonly string[], flags: Flags, open: Open, screen: Screen) {
  const { check } = ownFlags(argv, 1, { check: { type: "boolean" } });
  if (flags.help) {
    screen.out(HELP);
    return EXIT.done;
  }
  const deployment = await open();
  const now = await readStatus(deployment);
  screen.out(flags.json ? `${visibleJson(JSON.stringify(now))}\n` : toldStatus(now, deployment.url, screen));
  // What could not be looked at may well need a person.
  return check && now.needs.length + now.unseen.length > 0 ? EXIT.refused : EXIT.done;
}

async function watchStatus(argv: readonly string[], open: Open, screen: Screen) {
  const { every, help } = ownFlags(argv, 1, { every: { type: "string" } });
  if (help) {
    screen.out(HELP);
    return EXIT.done;
  }
  const seconds = every === undefined ? WATCH_S : wholeNumber("--every", every, 1, 3_600);
  const { signal, release } = endedByPerson(process);
  try {
    const deployment = await open({ signal });
    await watch(deployment, screen, seconds * 1_000, () => process.stdout.rows ?? 24, signal);
  } finally {
    release();
  }
  return EXIT.done;
}

async function complete(words: readonly string[], open: Open, screen: Screen) {
  const [, shell = ""] = words;
  if (!(SHELLS as readonly string[]).includes(shell)) throw new UsageError(`completion takes ${SHELLS.join(", ")}`);
  const entries = await open({ deadlineMs: COMPLETION_MS })
    .then(loadCatalog)
    .catch((error: unknown): Entry[] => {
      screen.err(`duework: only the program's own words are completed: ${visible(toldError(error).message)}\n`);
      return [];
    });
  screen.out(completionScript(shell as Shell, entries, OWN));
  return EXIT.done;
}

async function ask(
  argv: readonly string[],
  words: readonly string[],
  flags: Flags,
  deployment: Deployment,
  screen: Screen,
): Promise<number> {
  const entries = await loadCatalog(deployment);
  const entry = findEntry(entries, words);
  if (entry === null) {
    const ofNoun = entries.filter(({ words: [noun] }) => noun === words[0]);
    if (!flags.help || ofNoun.length === 0) throw new UsageError(nowhere(words, entries, OWN));
    screen.out(listed(ofNoun, screen));
    return EXIT.done;
  }
  if (flags.help) {
    screen.out(helpOf(entry, screen));
    return EXIT.done;
  }
  if (flags.key !== null && !/^[\x21-\x7e]{1,255}$/.test(flags.key)) {
    throw new UsageError("--idempotency-key takes 1 to 255 visible ASCII characters");
  }
  await askFor(entry, argumentsOf(argv, entry), flags, deployment, screen);
  return EXIT.done;
}

/** The arguments; what is wrong with them is told with what the entry takes. */
function argumentsOf(argv: readonly string[], entry: Entry): Record<string, unknown> {
  try {
    return readArguments(argv, entry);
  } catch (error) {
    const { code, message } = toldError(error);
    throw code === EXIT.usage ? new UsageError(`${message} (${usageOf(entry)})`) : error;
  }
}
