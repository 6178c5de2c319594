/**
 * Text that others wrote, made fit for a terminal: what would steer it (ANSI escapes, marks of writing direction, what
 * has no width) is written out instead.
 */

/** Controls, formats, halves of pairs, and line ends that are none on a terminal. */
const STEERS = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
const SHORT: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** The text on one line, with all that steers written out: `\n`, `\u001b`. */
export function visible(text: string): string {
  return text.replace(STEERS, (char) => SHORT[char] ?? escaped(char));
}

/** The same, but its own line ends stay. */
export function visibleLines(text: string): string {
  return text.split(/\r?\n/).map(visible).join("\n");
}

/** A body of JSON that means the same, and steers nothing: such characters stand in its texts only. */
export function visibleJson(body: string): string {
  return body.trimEnd().replace(STEERS, (char) => (/^[\t\n\r]$/.test(char) ? char : escaped(char)));
}

/** As JSON writes them: four hexadecimal digits for each unit. */
function escaped(char: string): string {
  return char
    .split("")
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .join("");
}

const COMBINING = /^\p{M}$/u;
const WIDE =
  /^[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]$/u;

/** How many columns of a terminal a visible text takes. */
export function widthOf(text: string): number {
  let width = 0;
  for (const char of text) width += columnsOf(char);
  return width;
}

function columnsOf(char: string): number {
  if (char < "\u0300") return 1;
  if (COMBINING.test(char)) return 0;
  return WIDE.test(char) ? 2 : 1;
}

/** At most so many columns of a visible text; what was cut is an ellipsis. */
export function cut(text: string, columns: number): string {
  if (text.length <= columns * 2 && widthOf(text) <= columns) return text;
  let width = 0;
  let kept = "";
  for (const char of text) {
    width += columnsOf(char);
    if (width > columns - 1) break;
    kept += char;
  }
  return `${kept}…`;
}
