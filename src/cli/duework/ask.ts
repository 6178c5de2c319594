import { UsageError } from "../flags.ts";
import type { Flags } from "./arguments.ts";
import type { Entry } from "./catalog.ts";
import type { Body, Deployment } from "./deployment.ts";
import { type Screen, styled } from "./screen.ts";
import { isRow, shown } from "./table.ts";
import { visible, visibleJson } from "./visible.ts";

/** Asks for one thing and shows what was answered. */

/** Rows that `--all` reads at most, and pages: a page may be empty and still not be the last. */
const ALL_ROWS = 10_000;
const ALL_PAGES = 500;
/** The largest page there is. */
const PAGE = 200;

type Input = Record<string, unknown>;

/** @throws RefusedError, UnreachableError, UsageError */
export async function askFor(
  entry: Entry,
  input: Input,
  flags: Flags,
  deployment: Deployment,
  screen: Screen,
): Promise<void> {
  const { ask } = entry;
  const reads = ask.kind === "read" || ask.effect === "read";
  if (flags.key !== null && reads) throw new UsageError("--idempotency-key is for what changes something");
  const isList = Object.hasOwn((entry.args?.properties ?? {}) as object, "cursor");
  if (flags.all && !(reads && isList)) throw new UsageError(`--all is for lists, and ${entry.words.join(" ")} is none`);
  const one = (page: Input) =>
    ask.kind === "read"
      ? deployment.read(addressOf(ask, { ...input, ...page }))
      : deployment.command(ask.name, { ...input, ...page }, flags.key);
  const body = flags.all ? await everyPage(one, ask.kind === "read" ? PAGE : null) : await one({});
  if (flags.json) screen.out(`${visibleJson(body.text)}\n`);
  else screen.out(told(entry, body.value, screen));
  if (ask.kind === "command" && ask.secret) {
    screen.err(`${styled(screen, "yellow", "The secret above is shown this once: keep it now.")}\n`);
  }
  const next = nextOf(resultOf(ask, body.value));
  if (next !== null) screen.err(`There is more: --cursor ${quoted(visible(next))}${isList ? ", or --all" : ""}\n`);
}

/** What an answer tells people. */
function told({ ask, words, help }: Entry, answer: unknown, screen: Screen): string {
  const result = resultOf(ask, answer);
  if (ask.kind === "read" && ask.part !== undefined && isRow(result)) return shown(result[ask.part], screen, "nothing");
  const list = isRow(result) && Array.isArray(result.items);
  const nothing = list || ask.kind === "read" ? `Nothing here. (${words.join(" ")}: ${visible(help)})` : "Done.";
  return shown(result, screen, nothing);
}

/** A command's answer stands in `{ok, result}`. */
function resultOf(ask: Entry["ask"], answer: unknown): unknown {
  return ask.kind === "command" && isRow(answer) && "result" in answer ? answer.result : answer;
}

const nextOf = (result: unknown) => (isRow(result) && typeof result.nextCursor === "string" ? result.nextCursor : null);

const quoted = (text: string) => (/^[\w.:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The address of a read. `webhooks.deliver` is a topic of a module. */
function addressOf({ path, parts }: { path: string; parts: readonly string[] }, input: Input): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(input[name])));
  const { topic, module } = input;
  const [, whose, own] = (typeof topic === "string" && /^([^.]+)\.(.+)$/.exec(topic)) || [];
  const isWhole = whose !== undefined && module === undefined && path.split("/").length === 3;
  const query = { ...input, ...(isWhole && { module: whose, topic: own }) };
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    parts.includes(name) || value === undefined
      ? []
      : [`${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`],
  );
  return pairs.length === 0 ? filled : `${filled}?${pairs.join("&")}`;
}

/** All pages as one answer, within bounds: what is left behind them is said by its cursor. */
async function everyPage(one: (page: Input) => Promise<Body>, limit: number | null): Promise<Body> {
  const items: unknown[] = [];
  let cursor: string | null = null;
  let last: unknown;
  for (let pages = 0; pages < ALL_PAGES && items.length < ALL_ROWS; pages += 1) {
    last = (await one({ ...(limit !== null && { limit }), ...(cursor !== null && { cursor }) })).value;
    const page: unknown = isRow(last) && isRow(last.result) ? last.result : last;
    if (isRow(page) && Array.isArray(page.items)) items.push(...page.items);
    const next: string | null = nextOf(page);
    // A cursor that leads to itself would never end.
    if (next === cursor || next === null) {
      cursor = null;
      break;
    }
    cursor = next;
  }
  const whole = { items, nextCursor: cursor };
  const value =
    isRow(last) && isRow(last.result) ? { ...last, result: { ...last.result, ...whole } } : merged(last, whole);
  return { value, text: JSON.stringify(value) };
}

const merged = (last: unknown, whole: object) => ({ ...(isRow(last) && last), ...whole });
