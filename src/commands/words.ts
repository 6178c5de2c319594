import { type Refusal, refuse } from "../core/errors.ts";

/** Text cut into words, as a shell would, with JSON left whole. */

/** One word. Positions count UTF-16 units of the text, from 0. */
export interface Word {
  /** What stands before `=` or `:=`; null = a value alone. */
  readonly key: string | null;
  /** What follows: its quotes are gone. */
  readonly value: string;
  /** Written `:=`: the value is JSON and nothing else. */
  readonly json: boolean;
  readonly at: number;
}

/** `--key`, `--key=`, `--key:=`, `key=`, `key:=`. Dots lead into objects. */
const NAMED = /(--)?([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)(?:(:?=)|(?=\s|$))/y;
const BLANK = /\s*/y;
/** Up to the next blank or quote. */
const PLAIN = /[^\s"']+/y;
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", n: "\n" };

/** What a mistake in a text is answered with; its position stands in the message, counted from 1. */
export function mistake(message: string, at: number, field = "text"): Refusal<"bad_arguments"> {
  return refuse("bad_arguments", field, `${message} at position ${at + 1}`);
}

/** Cuts a text from `start` on. A key `--key` that stands alone takes the next word as its value. */
export function cutWords(text: string, start: number): { ok: true; words: Word[] } | Refusal<"bad_arguments"> {
  const words: Word[] = [];
  let at = skip(BLANK, text, start);
  while (at < text.length) {
    const begin = at;
    const { key, json, dashed, next } = readKey(text, at);
    at = next;
    if (dashed) {
      at = skip(BLANK, text, at);
      if (at === text.length) return mistake(`--${key} has no value`, begin, key ?? "text");
    }
    const value = readValue(text, at);
    if (!value.ok) return value;
    words.push({ key, value: value.value, json, at: begin });
    at = skip(BLANK, text, value.next);
  }
  return { ok: true, words };
}

/** What names the value at `at`. `dashed`: as `--key value`, whose value is the next word. */
function readKey(text: string, at: number): { key: string | null; json: boolean; dashed: boolean; next: number } {
  NAMED.lastIndex = at;
  const [all = "", dashes, key = "", equals] = NAMED.exec(text) ?? [];
  if (equals !== undefined) return { key, json: equals === ":=", dashed: false, next: at + all.length };
  if (dashes !== undefined) return { key, json: false, dashed: true, next: at + all.length };
  return { key: null, json: false, dashed: false, next: at };
}

/** A value up to the next blank: JSON that is an object or array as it stands, else text with its quotes taken away. */
function readValue(text: string, start: number): { ok: true; value: string; next: number } | Refusal<"bad_arguments"> {
  const end = endOfJson(text, start);
  if (end !== null) return { ok: true, value: text.slice(start, end), next: end };
  let value = "";
  let at = start;
  while (at < text.length) {
    const next = skip(PLAIN, text, at);
    value += text.slice(at, next);
    const quote = text[next];
    if (quote !== '"' && quote !== "'") return { ok: true, value, next };
    const quoted = quote === '"' ? readDouble(text, next) : readSingle(text, next);
    if (quoted === null) return mistake(`the quote ${quote} is never closed: it opens`, next);
    value += quoted.value;
    at = quoted.next;
  }
  return { ok: true, value, next: at };
}

function readSingle(text: string, open: number): { value: string; next: number } | null {
  const close = text.indexOf("'", open + 1);
  return close === -1 ? null : { value: text.slice(open + 1, close), next: close + 1 };
}

/** A backslash before anything but `"`, `\` or `n` is itself. */
function readDouble(text: string, open: number): { value: string; next: number } | null {
  let value = "";
  for (let at = open + 1; at < text.length; at += 1) {
    const char = text.charAt(at);
    if (char === '"') return { value, next: at + 1 };
    const escaped = char === "\\" ? ESCAPES[text.charAt(at + 1)] : undefined;
    value += escaped ?? char;
    if (escaped !== undefined) at += 1;
  }
  return null;
}

/**
 * Where an object or array of JSON ends that begins here and is followed by a blank; null = there is none. Its quotes
 * are its own, and blanks in it are no end.
 */
function endOfJson(text: string, start: number): number | null {
  if (text[start] !== "{" && text[start] !== "[") return null;
  let depth = 0;
  let inString = false;
  for (let at = start; at < text.length; at += 1) {
    const char = text[at];
    if (inString) {
      if (char === "\\") at += 1;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === "{" || char === "[") depth += 1;
    else if (char === "}" || char === "]") depth -= 1;
    if (depth > 0) continue;
    const end = at + 1;
    return /^(?:\s|$)/.test(text.slice(end, end + 1)) && isJson(text.slice(start, end)) ? end : null;
  }
  return null;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function skip(pattern: RegExp, text: string, at: number): number {
  pattern.lastIndex = at;
  return at + (pattern.exec(text)?.[0].length ?? 0);
}

/** Reads back as itself without quotes. */
const BARE = /^[\w./@*+,:?&%#~!$^()|;-]+$/;

/** A text as {@link cutWords} reads it back, a key aside. */
export function quoteText(text: string): string {
  const looksNamed = /^--|^[A-Za-z_][\w.-]*:?=/.test(text);
  if (BARE.test(text) && !looksNamed) return text;
  return `"${text.replace(/["\\\n]/g, (char) => (char === "\n" ? "\\n" : `\\${char}`))}"`;
}

/** True for a key that {@link cutWords} reads, and that no object has for its own machinery. */
export function isKey(text: string): boolean {
  return /^[A-Za-z_][\w-]*$/.test(text) && text !== "__proto__";
}
