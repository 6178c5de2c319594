/** The five fields, in the order in which they are written. */
export type CronField = "minute" | "hour" | "dayOfMonth" | "month" | "dayOfWeek";

/** A cron expression that has been read. Lists ascend and hold no value twice. When it fires: `calendar.ts`. */
export interface Cron {
  /** What the author wrote, to the letter. Show and store this: it is never rendered anew from the lists. */
  readonly text: string;
  /** 0 to 59. */
  readonly minutes: readonly number[];
  /** 0 to 23. */
  readonly hours: readonly number[];
  /** 1 to 31. */
  readonly daysOfMonth: readonly number[];
  /** 1 to 12. */
  readonly months: readonly number[];
  /** 0 to 6, 0 = Sunday (a Cloudflare trigger would call it 1). */
  readonly daysOfWeek: readonly number[];
  /**
   * How the two day fields combine. True: a day matches when either does. False: when both do. By Vixie cron's rule,
   * crontab(5), it is true only if neither begins with `*`, so every second day (a step over `*`) counts as
   * unrestricted although it is not.
   */
  readonly eitherDay: boolean;
  /**
   * True when the minute or the hour is a wildcard: it begins with `*`, or leaves no value out, as `0-23` does. Such a
   * job follows real time, so it is not moved out of a spring gap and fires in both passes of an autumn repeat.
   */
  readonly realTime: boolean;
}

/** Why an expression was refused. */
export interface CronRefusal {
  readonly ok: false;
  /** The field at fault; `expression` when it is the whole. */
  readonly field: "expression" | CronField;
  /** The offending piece of the text, printable: another character stands as its code point, `U+0000`. */
  readonly token: string;
  /** Where it begins in the text, from 0, in UTF-16 units. */
  readonly position: number;
  /** One sentence for a person. */
  readonly message: string;
}

/** Real expressions stay under 100; the bound keeps what is stored, shown and read small. */
const MAX_LENGTH = 256;

interface Spec {
  readonly name: CronField;
  readonly label: string;
  readonly min: number;
  readonly max: number;
  /** How many different values there are. A longer step cannot mean what it says; of this length it can: 24 hours. */
  readonly count: number;
  /** The first stands for `min`. */
  readonly names: readonly string[];
}

const MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const SPECS: readonly Spec[] = [
  { name: "minute", label: "minute", min: 0, max: 59, count: 60, names: [] },
  { name: "hour", label: "hour", min: 0, max: 23, count: 24, names: [] },
  { name: "dayOfMonth", label: "day of the month", min: 1, max: 31, count: 31, names: [] },
  { name: "month", label: "month", min: 1, max: 12, count: 12, names: MONTHS },
  { name: "dayOfWeek", label: "day of the week", min: 0, max: 7, count: 7, names: WEEKDAYS },
];

/** By month, in a leap year. */
const LONGEST = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/** `*`, a value or a range, then perhaps a step. Whether a value fits its field is asked later, for a better message. */
const ITEM = /^(?:(\*)|([a-z]+|\d+)(?:-([a-z]+|\d+))?)(?:\/(\d+))?$/i;

/** Marks that other dialects know: last, nearest weekday, nth, any, hashed. */
const MARKS = /[#?]|^(?:L|W|LW|H|H\W.*|\w+L|\d+W|L\W.*)$/i;

/**
 * Reads a cron expression: exactly five fields (minute, hour, day of the month, month, day of the week) between blanks;
 * each a list of values, ranges and `*`; a step after `*` or a range; JAN-DEC and SUN-SAT in either case; 0 and 7 are
 * Sunday. Everything else is refused, nothing is guessed: no seconds, no macros, no `L W # ? H`, no `5/2`, no step
 * longer than the field, no date that no year has. Never throws.
 */
export function parseCron(text: string): { ok: true; cron: Cron } | CronRefusal {
  const whole = (token: string, position: number, message: string): CronRefusal => ({
    ok: false,
    field: "expression",
    token,
    position,
    message,
  });
  if (text.length > MAX_LENGTH) {
    return whole(printable(text.slice(0, 16)), 0, `A cron expression is at most ${MAX_LENGTH} characters long.`);
  }
  const odd = /[^\t\x20-\x7e]/u.exec(text);
  if (odd) return whole(printable(odd[0]), odd.index, `The character ${printable(odd[0])} has no place in a cron.`);
  const words = [...text.matchAll(/[^ \t]+/g)].map((match) => ({ text: match[0], position: match.index }));
  const [first] = words;
  if (!first) return whole("", 0, "The cron expression is empty: it has five fields.");
  if (first.text.startsWith("@")) {
    return whole(first.text, first.position, `Macros such as ${first.text} are not read: write the five fields.`);
  }
  if (words.length !== SPECS.length) {
    const seconds = words.length === 6 ? ", and none for seconds" : "";
    return whole(text, 0, `A cron expression has exactly five fields${seconds}; this one has ${words.length}.`);
  }

  const sets: Set<number>[] = [];
  for (const [index, spec] of SPECS.entries()) {
    const values = new Set<number>();
    let { position } = words[index]!;
    for (const item of words[index]!.text.split(",")) {
      const problem = readItem(item, spec, values);
      if (problem) return { ok: false, field: spec.name, token: item, position, message: problem };
      position += item.length + 1;
    }
    sets.push(values);
  }

  const starred = words.map((word) => word.text.startsWith("*"));
  const eitherDay = !starred[2] && !starred[4];
  const earliest = Math.min(...sets[2]!);
  if (!eitherDay && ![...sets[3]!].some((month) => earliest <= LONGEST[month - 1]!)) {
    const { text: token, position } = words[2]!;
    const message = `It never fires: no month of "${words[3]!.text}" has a day "${token}".`;
    return { ok: false, field: "dayOfMonth", token, position, message };
  }
  const realTime = [0, 1].some((index) => starred[index] || sets[index]!.size === SPECS[index]!.count);
  const [minutes = [], hours = [], daysOfMonth = [], months = [], daysOfWeek = []] = sets.map(ascending);
  return { ok: true, cron: { minutes, hours, daysOfMonth, months, daysOfWeek, text, eitherDay, realTime } };
}

/** Adds what one item of a list stands for, or says what is wrong with it. */
function readItem(item: string, spec: Spec, values: Set<number>): string | undefined {
  const match = ITEM.exec(item);
  if (!match) return unreadable(item, spec);
  const [, star, low = "", high, step] = match;
  const from = star ? spec.min : readValue(low, spec);
  const to = star ? spec.max : high === undefined ? from : readValue(high, spec);
  if (from === undefined || to === undefined) {
    if (MARKS.test(item)) return unreadable(item, spec);
    const names = spec.names.length > 0 ? ` or ${spec.names[0]} to ${spec.names.at(-1)}` : "";
    return `"${item}" does not fit: the ${spec.label} is ${spec.min} to ${spec.max}${names}.`;
  }
  if (from > to) {
    const hint = spec.name === "dayOfWeek" && to === 0 ? " (7 is Sunday too)" : "";
    return `The range "${item}" runs backwards${hint}.`;
  }
  if (step !== undefined && !star && high === undefined) {
    return `A step needs * or a range before it: write "${low}-${spec.max}/${step}" if that is what "${item}" means.`;
  }
  const stride = Number(step ?? 1);
  if (stride < 1 || stride > spec.count) return `In "${item}", a step is 1 to ${spec.count}.`;
  for (let value = from; value <= to; value += stride) {
    // 7 folds only when the step has reached it: 1-7/2 has Sunday, 1-7/4 has not.
    values.add(spec.name === "dayOfWeek" ? value % 7 : value);
  }
  return undefined;
}

function readValue(word: string, spec: Spec): number | undefined {
  if (/^\d{1,2}$/.test(word)) {
    const value = Number(word);
    return value >= spec.min && value <= spec.max ? value : undefined;
  }
  const index = spec.names.indexOf(word.toUpperCase());
  return index === -1 ? undefined : spec.min + index;
}

function unreadable(item: string, spec: Spec): string {
  if (item === "") return `The ${spec.label} has an empty place in its list.`;
  if (MARKS.test(item)) return `"${item}" is not read: there is no L, W, #, ? or H in this grammar.`;
  return `"${item}" is not a value, a range, or a step over * or a range.`;
}

function ascending(values: ReadonlySet<number>): readonly number[] {
  return [...values].sort((a, b) => a - b);
}

function printable(text: string): string {
  return text.replace(
    /[^\x20-\x7e]/gu,
    (character) => `U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`,
  );
}
