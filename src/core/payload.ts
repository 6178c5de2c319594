import { safeText } from "./text.ts";

/**
 * The largest payload, bytes of UTF-8 JSON. A hundred of them, a full batch, stay far below the 128 MB of an isolate,
 * however often they are copied on the way; what is larger belongs in a bucket, with its key in the payload.
 */
export const PAYLOAD_MAX_BYTES = 64 * 1024;

/** Arrays and objects within one another at most: enough for any message, and safe for every reader's stack. */
export const PAYLOAD_MAX_DEPTH = 100;

/** How many times the limit is written out before the exact size is no longer worth knowing: shared parts multiply. */
const GIVE_UP_TIMES = 16;

/** Longest path that a refusal names, UTF-16 units: a key may be as long as the payload. */
const PATH_MAX_CHARS = 256;

/** A payload as it is stored, or the first thing in it that cannot be. */
export type CheckedJson =
  | { ok: true; json: string /** UTF-8 */; bytes: number }
  | { ok: false /** `$`, `$.items[3].at` */; path: string; problem: string };

/**
 * Writes a value as JSON if that says all of it: plain objects and arrays of strings, finite numbers, booleans and
 * null. Each part is read once, so what was checked is what is written. Never throws.
 *
 * A property that is undefined is left out, as JSON does, so that optional fields may be spread; undefined anywhere
 * else is refused. A part that is shared but in no cycle is written wherever it stands. A key `__proto__` is a key like
 * any other.
 */
export function checkJson(value: unknown, { maxBytes }: { maxBytes: number }): CheckedJson {
  const draft: Draft = { parts: [], chars: 0, most: maxBytes * GIVE_UP_TIMES, path: [], open: new Set() };
  try {
    const problem = write(draft, value);
    if (problem === TOO_LARGE) return tooLarge(maxBytes, `more than ${draft.most}`);
    if (problem !== null) return { ok: false, path: pathText(draft.path), problem };
    const json = draft.parts.join("");
    const bytes = new TextEncoder().encode(json).length;
    return bytes > maxBytes ? tooLarge(maxBytes, String(bytes)) : { ok: true, json, bytes };
  } catch (error) {
    return { ok: false, path: pathText(draft.path), problem: `reading it failed: ${safeText(error, 200)}` };
  }
}

/** Reads stored JSON. A key `__proto__` becomes a property of its own and touches no prototype. */
export function parseJson(text: string): { ok: true; value: unknown } | { ok: false; problem: string } {
  try {
    return { ok: true, value: JSON.parse(text) };
  } catch (error) {
    return { ok: false, problem: `not JSON: ${safeText(error, 200)}` };
  }
}

/** JSON in the making. When a write ends early, by a problem or a throw, `path` still stands where it was. */
interface Draft {
  parts: string[];
  chars: number;
  most: number;
  path: (string | number)[];
  /** The containers that are being written: to meet one again is a cycle. */
  open: Set<object>;
}

const TOO_LARGE = "too large";

function tooLarge(maxBytes: number, size: string): CheckedJson {
  return { ok: false, path: "$", problem: `${TOO_LARGE}: ${size} bytes, and the limit is ${maxBytes}` };
}

/** Appends to the draft. Answers a problem, or null to go on. */
function put(draft: Draft, text: string): string | null {
  draft.parts.push(text);
  draft.chars += text.length;
  return draft.chars > draft.most ? TOO_LARGE : null;
}

function write(draft: Draft, value: unknown): string | null {
  switch (typeof value) {
    case "string":
      return textProblem(value) ?? put(draft, JSON.stringify(value));
    case "number":
      return Number.isFinite(value) ? put(draft, JSON.stringify(value)) : `${value} is not a JSON number`;
    case "boolean":
      return put(draft, String(value));
    case "object":
      return value === null ? put(draft, "null") : writeContainer(draft, value);
    case "bigint":
      return "a BigInt is not JSON: give it as text";
    case "undefined":
      return "undefined is not JSON: leave it out, or give null";
    default:
      return `a ${typeof value} is not JSON`;
  }
}

function writeContainer(draft: Draft, value: object): string | null {
  if (draft.open.has(value)) return "it contains itself";
  if (draft.open.size >= PAYLOAD_MAX_DEPTH) return `nested deeper than ${PAYLOAD_MAX_DEPTH}`;
  const problem = classProblem(value);
  if (problem !== null) return problem;
  draft.open.add(value);
  const wrong = Array.isArray(value) ? writeArray(draft, value) : writeObject(draft, value as Record<string, unknown>);
  draft.open.delete(value);
  return wrong;
}

function writeArray(draft: Draft, list: readonly unknown[]): string | null {
  const { length } = list;
  for (let index = 0; index < length; index += 1) {
    draft.path.push(index);
    const wrong = put(draft, index === 0 ? "[" : ",") ?? write(draft, list[index]);
    if (wrong !== null) return wrong;
    draft.path.pop();
  }
  return put(draft, length === 0 ? "[]" : "]");
}

function writeObject(draft: Draft, record: Record<string, unknown>): string | null {
  let opener = "{";
  for (const key of Object.keys(record)) {
    draft.path.push(key);
    const value = record[key];
    const wrong =
      value === undefined
        ? null
        : (textProblem(key) ?? put(draft, `${opener}${JSON.stringify(key)}:`) ?? write(draft, value));
    if (wrong !== null) return wrong;
    if (value !== undefined) opener = ",";
    draft.path.pop();
  }
  return put(draft, opener === "{" ? "{}" : "}");
}

function textProblem(text: string): string | null {
  if (text.includes("\0")) return "a text with a NUL cannot be stored";
  return text.isWellFormed() ? null : "a text with half a surrogate pair cannot be stored";
}

/** Whether an object is anything but plain data: its class, its own idea of JSON, its symbols would be lost. */
function classProblem(value: object): string | null {
  const plain = Array.isArray(value) ? Array.prototype : Object.prototype;
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== plain && (prototype !== null || plain === Array.prototype)) return classText(value);
  if (typeof (value as { toJSON?: unknown }).toJSON === "function") return "an object with toJSON is not plain data";
  return Object.getOwnPropertySymbols(value).length > 0 ? "a symbol as a key is not JSON" : null;
}

function classText(value: object): string {
  if (value instanceof Date) return "a Date is not JSON: give its ISO text, or its ms";
  const name: unknown = value.constructor?.name;
  const label = typeof name === "string" && name !== "" ? safeText(name, 60) : "object with a class";
  return `not plain data but a ${label}`;
}

const PLAIN_KEY = /^[A-Za-z_$][\w$]*$/;

/** A place in a payload, written `$.items[3].at`. */
function pathText(path: readonly (string | number)[]): string {
  const steps = path.map((step) => {
    if (typeof step === "number") return `[${step}]`;
    return PLAIN_KEY.test(step) ? `.${step}` : `[${JSON.stringify(step)}]`;
  });
  return safeText(`$${steps.join("")}`, PATH_MAX_CHARS);
}

/** Where a schema's issue is, written `$.items[3].at`; `$` = the value itself. A step is a key, or holds one. */
export function issuePath(path: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined): string {
  const steps = (path ?? []).map((step) => (typeof step === "object" ? step.key : step));
  return pathText(steps.map((step) => (typeof step === "number" ? step : String(step))));
}

/** The same as the name of a field, `items[3].at`; empty = the value itself. */
export function issueField(path: Parameters<typeof issuePath>[0]): string {
  return issuePath(path).replace(/^\$\.?/, "");
}

/** An issue as schema libraries give it; valibot says more of it than its message. */
interface SchemaIssue {
  readonly message: string;
  readonly type?: unknown;
  readonly expected?: unknown;
  readonly received?: unknown;
}

/** What a schema's issue says, in words for a person where the library's own are for a programmer. */
export function issueMessage(issue: SchemaIssue | undefined): string {
  if (issue === undefined) return "it is refused";
  if (issue.type === "strict_object" && issue.expected === "never") return "there is no such argument";
  if (issue.received === "undefined") return "it is needed";
  return issue.message;
}
