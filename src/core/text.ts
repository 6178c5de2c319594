/** Longest failure text that is kept, in UTF-16 units: a message and the first frames of what it quotes. */
export const TEXT_MAX_CHARS = 1024;

/** Stands for what cannot be stored. */
const REPLACEMENT = "\uFFFD";

/**
 * Whatever was thrown, as text that any store takes: well-formed, without NUL, at most `maxChars` UTF-16 units with no
 * surrogate pair cut in two. Never throws, whatever the value does when it is read. An error is `Name: message`, any
 * other object its own text or its JSON.
 */
export function safeText(value: unknown, maxChars = TEXT_MAX_CHARS): string {
  return cut(read(value), maxChars).toWellFormed().replaceAll("\0", REPLACEMENT);
}

/** A failure as `Name: message`, made storable as by {@link safeText}, and never empty. */
export function errorText(error: unknown): string {
  return safeText(error) || "an empty text was thrown";
}

function cut(text: string, maxChars: number): string {
  if (text.length <= maxChars) return text;
  const pair = /[\uD800-\uDBFF]/.test(text.charAt(maxChars - 1)) && /[\uDC00-\uDFFF]/.test(text.charAt(maxChars));
  return text.slice(0, Math.max(0, pair ? maxChars - 1 : maxChars));
}

function read(value: unknown): string {
  if (typeof value === "string") return value;
  const readers = [asError, asText, asJson, asTag];
  for (const reader of readers) {
    try {
      const text = reader(value);
      if (typeof text === "string") return text;
    } catch {
      // The value refuses to be read in this way: the next one asks less of it.
    }
  }
  return "something unreadable was thrown";
}

/** An error, or an object that is one in all but its class. */
function asError(value: unknown): string | null {
  if (typeof value !== "object" || value === null) return null;
  const { name, message } = value as { name?: unknown; message?: unknown };
  if (typeof message !== "string") return null;
  const label = typeof name === "string" && name !== "" ? name : null;
  if (message === "") return label;
  return label === null ? message : `${label}: ${message}`;
}

function asText(value: unknown): string | null {
  const text = String(value);
  return text.startsWith("[object ") ? null : text;
}

function asJson(value: unknown): string | undefined {
  return JSON.stringify(value);
}

function asTag(value: unknown): string {
  return Object.prototype.toString.call(value);
}
