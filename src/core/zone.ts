import { DAY, HOUR, MINUTE, SECOND } from "./time.ts";

/**
 * Reads the name of a time zone: `Area/Location` as IANA spells it and `Intl` knows it, or UTC. Letter case is forgiven
 * where `Intl` can mend it; every name of UTC becomes `UTC`. There is no fallback: what is not known is refused.
 *
 * Refused although `Intl` takes them: offsets (`+05:30`), which have no rules to follow, and all names without an area.
 * Of those some are IANA's (`EST`, `CET`, `Japan`) and some are not (`PST`, `IST`, `BST`), and what they stand for is not
 * what people mean: to `Intl`, EST is Panama all year, BST is Dhaka and AST is Anchorage.
 */
export function parseZone(text: string): { ok: true; zone: string } | { ok: false; message: string } {
  const known = NAME.test(text) ? resolve(text) : undefined;
  if (known === undefined) {
    const shown = JSON.stringify(text.slice(0, 64));
    const why = resolve(text) === undefined ? "is not a time zone" : "is not taken, since it names no area";
    return { ok: false, message: `${shown} ${why}. Use an IANA name of an area, such as Europe/Berlin, or UTC.` };
  }
  if (known === "UTC") return { ok: true, zone: "UTC" };
  // An alias keeps its name: Intl would turn Asia/Kolkata into Asia/Calcutta.
  return { ok: true, zone: known.toLowerCase() === text.toLowerCase() ? known : text };
}

/** An area and one or two locations, or UTC. SystemV/… are ICU's own. */
const NAME = /^(?:UTC|(?!SystemV\/)[A-Za-z]+(?:\/[A-Za-z0-9_+-]+){1,2})$/i;

function resolve(name: string): string | undefined {
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone: name }).resolvedOptions().timeZone;
  } catch {
    return undefined;
  }
}

/** A zone's offsets from UTC, in ms, east positive, on either side of its one change near a civil day. */
export interface Offsets {
  /** Holds before `change`. */
  readonly before: number;
  /** Holds from `change` on; the same as `before` when nothing changes. */
  readonly after: number;
  /** The instant of the change; Infinity when nothing changes. */
  readonly change: number;
}

/**
 * The offsets over 72 hours, from the UTC midnight before civil day `day` (days since 1970-01-01) to the one after the
 * day that follows. Whatever the offset, that holds the whole civil day: no zone was ever more than 16 hours off. One
 * change is all it finds; no zone of the tz database has had two within three days since 1950.
 *
 * `zone` is one that {@link parseZone} gave; another throws a RangeError, because any answer would be a wrong time.
 */
export function offsetsAround(zone: string, day: number): Offsets {
  if (zone === "UTC") return STILL;
  const offset = offsetOf(zone);
  const [from, to] = [(day - 1) * DAY, (day + 2) * DAY];
  const [before, after] = [offset(from), offset(to)];
  return { before, after, change: before === after ? Infinity : bisect(offset, from, to) };
}

const STILL: Offsets = { before: 0, after: 0, change: Infinity };

type Offset = (at: number) => number;

/** A formatter takes some 50 µs to make and 1 µs to ask, so it is kept. More zones than schedules are not in use. */
const ZONES_KEPT = 128;
/** Readings repeat: a walk asks for the same few midnights, and days three apart share one. */
const READINGS_KEPT = 512;
const kept = new Map<string, Offset>();

function offsetOf(zone: string): Offset {
  const known = kept.get(zone);
  if (known) return known;
  const parsed = parseZone(zone);
  if (!parsed.ok) throw new RangeError(parsed.message);
  const formatter = new Intl.DateTimeFormat("en-US", { timeZone: zone, timeZoneName: "longOffset" });
  const readings = new Map<number, number>();
  const made = (at: number): number => {
    let reading = readings.get(at);
    if (reading === undefined) {
      reading = readOffset(formatter.format(at));
      if (readings.size >= READINGS_KEPT) readings.clear();
      readings.set(at, reading);
    }
    return reading;
  };
  if (kept.size >= ZONES_KEPT) kept.clear();
  kept.set(zone, made);
  return made;
}

/** Reads `GMT`, `GMT+05:30` or, of the past, `GMT-00:44:30` at the end of a formatted date. */
function readOffset(formatted: string): number {
  const match = /GMT(?:([+-])(\d\d):(\d\d)(?::(\d\d))?)?$/.exec(formatted);
  if (!match) throw new Error(`Intl wrote no offset: ${formatted}`);
  const [, sign, hours = "0", minutes = "0", seconds = "0"] = match;
  const size = Number(hours) * HOUR + Number(minutes) * MINUTE + Number(seconds) * SECOND;
  return sign === "-" ? -size : size;
}

/** The first second of `to`'s offset. Changes happen on whole seconds: at most 18 readings over 72 hours. */
function bisect(offset: Offset, from: number, to: number): number {
  const before = offset(from);
  let [low, high] = [from / SECOND, to / SECOND];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (offset(middle * SECOND) === before) low = middle;
    else high = middle;
  }
  return high * SECOND;
}
