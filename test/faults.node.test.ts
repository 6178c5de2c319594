import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { backoffDelay } from "../src/core/backoff.ts";
import { latestDue, nextFire, previousFire } from "../src/core/calendar.ts";
import { parseCron } from "../src/core/cron.ts";
import { checkJson } from "../src/core/payload.ts";
import { errorText } from "../src/core/text.ts";
import { DAY, HOUR, MINUTE } from "../src/core/time.ts";
import { parseZone } from "../src/core/zone.ts";
import { fires, instant, read, short } from "./core/firing.node.ts";

/**
 * Kinds of fault that job queues, schedulers and cron libraries are known for, in code that needs no database. Each
 * title begins with the kind. docs/faults.md lists all of them, with what we do.
 */

const BACKOFF = { baseMs: 10_000, factor: 2, capMs: 3_600_000, jitter: 0.2 };
const refusalOf = (text: string): string => {
  const answer = parseCron(text);
  return answer.ok ? `taken as ${JSON.stringify(answer.cron)}` : answer.message;
};
const days = (field: string) => read(`0 0 * * ${field}`).daysOfWeek;

describe("cron grammar", () => {
  test.each(["0 4 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "*/5 * 30,31 2 *"])(
    "a date that no year has, which makes others search for ever, is refused when it is read: %s",
    (text) => {
      const before = performance.now();
      expect(refusalOf(text)).toMatch(/never/);
      expect(performance.now() - before).toBeLessThan(50);
    },
  );

  test.each([
    ["0 2 29 2 *", "2026-01-01T00:00", "2028-02-29T02:00"],
    ["59 23 29 FEB *", "2028-02-29T23:59", "2032-02-29T23:59"],
    // 2100 is no leap year: eight years lie between.
    ["0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00"],
    ["0 0 29 2 *", "1896-02-29T00:00", "1904-02-29T00:00"],
  ])("29 February is taken, and found beyond a century's gap: %s after %s is %s", (text, after, expected) => {
    expect(short(nextFire(read(text), instant(after)))).toBe(expected);
    expect(short(nextFire(read(text), instant(after), "Pacific/Auckland"))).not.toBe("never");
  });

  test.each([
    "0 0 * * L",
    "0 0 L * *",
    "0 0 15W * *",
    "0 0 * * 5#3",
    "0 0 ? * *",
    "@daily",
    "@every 1h",
    "0 0 * * MONDAY",
    "60 * * * *",
    "* 24 * * *",
    "0 0 0 * *",
    "0 0 * 13 *",
    "0 0 * * 8",
    "*/0 * * * *",
    "5-1 * * * *",
    "0 0 * * 1-",
    "0 0 * * 1,,2",
    "1.5 * * * *",
    "-1 * * * *",
    "0 0 * * 1 2026",
  ])("an expression that others take and that fails at its first search is refused when it is read: %s", (text) => {
    expect(refusalOf(text)).not.toMatch(/^taken/);
  });

  test("a step on a weekday never adds a Sunday that its range does not reach", () => {
    expect(refusalOf("0 9 * * 2/2")).not.toMatch(/^taken as .*"daysOfWeek":\[0/);
    expect(days("1-7/2")).toEqual([0, 1, 3, 5]);
    expect(days("2-7/2")).toEqual([2, 4, 6]);
    expect(days("3-7/3")).toEqual([3, 6]);
    expect(days("1-6/5")).toEqual([1, 6]);
  });

  test("a range that ends in 7 keeps its Sunday, however Sunday is written", () => {
    for (const field of ["6-7", "6,7", "6,0", "SAT,SUN", "SAT-7", "0,6"]) {
      expect(days(field), field).toEqual([0, 6]);
      // From a Sunday afternoon: the Saturday after, and its Sunday.
      expect(fires(`0 0 * * ${field}`, "UTC", instant("2026-06-07T13:25"), 2).map(short), field).toEqual([
        "2026-06-13T00:00",
        "2026-06-14T00:00",
      ]);
    }
  });

  test.each(["0 10 * * 1,3,5", "0 10 * * 1-5/2", "1,2,3,5 0 1,15 * *", "*/7,3 2-4 * jan-mar *", "05 09 * * 7"])(
    "a parsed expression keeps its author's text, and the text read again fires the same: %s",
    (text) => {
      const cron = read(text);
      expect(cron.text).toBe(text);
      expect(read(cron.text)).toEqual(cron);
      const from = instant("2026-04-05T06:07");
      expect(fires(cron.text, "Asia/Kolkata", from, 20)).toEqual(fires(text, "Asia/Kolkata", from, 20));
    },
  );

  test("weekdays numbered as the platform's triggers do (1 is Sunday) are not taken for ours: the triggers name no weekday by number", () => {
    // Monday is 1 in a stored row, and never Sunday.
    expect(days("1")).toEqual([1]);
    expect(short(nextFire(read("0 0 * * 1"), instant("2026-12-01T00:00")))).toBe("2026-12-07T00:00");
    const wrangler = readFileSync(path.resolve(import.meta.dirname, "../wrangler.jsonc"), "utf8");
    const [, list = ""] = /"crons":\s*\[([^\]]*)\]/.exec(wrangler) ?? [];
    const triggers = [...list.matchAll(/"([^"]+)"/g)].map(([, text = ""]) => text);
    expect(triggers.length).toBeGreaterThan(0);
    for (const text of triggers) expect(text.split(" ")[4], text).toMatch(/^(?:\*|[A-Z,-]+)$/);
  });

  test.each(["", " ", "\n", "*", "* *", "* * * *", "* * * * * *", "\u00a0* * * * *", "* * * * *\0"])(
    "an empty or short text is no schedule of every minute: %j",
    (text) => expect(refusalOf(text)).not.toMatch(/^taken/),
  );

  test.each([
    ["*/5,*/7 * * * *", 19],
    ["0-30,15-45 * * * *", 46],
    ["3,3,3 * * * *", 1],
    ["*/2,*/2 * * * *", 30],
  ])("a union whose values overlap is taken, and each minute counts once: %s", (text, count) => {
    expect(read(text).minutes).toHaveLength(count);
  });
});

describe("daylight saving", () => {
  test.each([
    ["0 2 * * *", "America/New_York", "2020-03-08T07:01", "2020-03-08T07:00"],
    ["30 2 * * *", "Europe/Berlin", "2026-03-29T02:00", "2026-03-29T01:00"],
    ["15 2 * * *", "Australia/Lord_Howe", "2026-10-03T16:00", "2026-10-03T15:30"],
  ])(
    "asked beside the gap, the fire before is the day's own and no day is skipped: %s in %s",
    (text, zone, at, expected) => {
      const cron = read(text);
      expect(short(previousFire(cron, instant(at), zone))).toBe(expected);
      for (let step = -3; step <= 3; step += 1) {
        const next = nextFire(cron, instant(at) + step * DAY, zone);
        expect(next).not.toBeNull();
        expect(previousFire(cron, (next ?? 0) + 1, zone)).toBe(next);
      }
    },
  );

  test.each([
    ["* * * * *", "America/Los_Angeles", "2025-11-02T06:00"],
    ["* * * * *", "Europe/London", "2026-10-25T00:00"],
    ["*/7 * * * *", "Australia/Lord_Howe", "2026-04-04T13:00"],
  ])("on the day of a change the next fire is always later, never at once: %s in %s", (text, zone, from) => {
    let at = instant(from);
    for (let count = 0; count < 400; count += 1) {
      const next = nextFire(read(text), at, zone) ?? at;
      expect(next - at).toBeGreaterThanOrEqual(count === 0 ? 1 : MINUTE);
      at = next;
    }
  });

  test.each([
    ["America/Santiago", "2026-09-05T12:00", "2026-09-06T04:00"],
    ["America/Asuncion", "2023-09-30T12:00", "2023-10-01T04:00"],
    ["Africa/Cairo", "2026-04-23T12:00", "2026-04-23T22:00"],
    ["Asia/Beirut", "2026-03-28T12:00", "2026-03-28T22:00"],
  ])("a zone that changes at midnight still has its day: 0 0 * * * in %s", (zone, after, expected) => {
    const found = fires("0 0 * * *", zone, instant(after), 3);
    expect(short(found[0])).toBe(expected);
    for (let nth = 1; nth < found.length; nth += 1) {
      expect(Math.abs((found[nth] ?? 0) - (found[nth - 1] ?? 0) - DAY)).toBeLessThanOrEqual(HOUR);
    }
  });

  test("another month is entered with that month's offset", () => {
    expect(short(nextFire(read("* * * */3 *"), instant("2015-02-15T12:00"), "America/New_York"))).toBe(
      "2015-04-01T04:00",
    );
    expect(short(nextFire(read("0 0 1 7 *"), instant("2026-01-15T12:00"), "Europe/Paris"))).toBe("2026-06-30T22:00");
    expect(short(nextFire(read("0 0 1 1 *"), instant("2026-07-15T12:00"), "Australia/Sydney"))).toBe(
      "2026-12-31T13:00",
    );
  });

  test.each([
    ["30 2 * * *", "America/New_York", "2026-03-08"],
    ["30 1 * * *", "America/New_York", "2026-11-01"],
    ["30 2 * * *", "Europe/Madrid", "2026-10-25"],
    ["0 3 * * *", "Europe/Helsinki", "2026-03-29"],
    ["45 1 * * *", "Australia/Lord_Howe", "2026-04-05"],
  ])(
    "a fixed time fires once on the day of a change, in the gap and in the repeated hour: %s in %s on %s",
    (text, zone, day) => {
      const local = new Intl.DateTimeFormat("en-CA", { timeZone: zone, dateStyle: "short" });
      const around = fires(text, zone, instant(`${day}T12:00`) - 2 * DAY, 4);
      expect(around.filter((at) => local.format(at) === day)).toHaveLength(1);
    },
  );

  test.each(["0 3 * * 0", "15 0,1,2,3 * * *", "*/20 2 * * *"])(
    "a change of half an hour ends no search: %s on Lord Howe",
    (text) => {
      const found = fires(text, "Australia/Lord_Howe", instant("2025-12-31T00:00"), 400);
      expect(found).toHaveLength(400);
      expect(found.every((at, nth) => nth === 0 || at > (found[nth - 1] ?? 0))).toBe(true);
    },
  );
});

describe("clock", () => {
  test.each([
    [78, "* * * * *", 77],
    [60, "*/5 * * * *", 11],
    [8 * 60, "0 * * * *", 7],
  ])(
    "catch-up: %i minutes that were slept through, or stepped over, are one due minute of %s with %i passed over",
    (minutes, text, missed) => {
      const from = instant("2026-05-05T10:00");
      expect(latestDue(read(text), from, from + minutes * MINUTE)).toMatchObject({
        slot: from + minutes * MINUTE,
        missed,
      });
    },
  );

  test("double fire: an hourly wake-up is no occurrence of a daily job", () => {
    const daily = read("0 0 * * *");
    const woken = Array.from({ length: 48 }, (_, hour) => instant("2026-05-05T00:30") + hour * HOUR);
    const due = woken.filter((at, nth) => nth > 0 && latestDue(daily, woken[nth - 1] ?? 0, at) !== null);
    expect(due.map(short)).toEqual(["2026-05-06T00:30"]);
  });

  test("missed fire: what is due is counted from the last fire, however long ago it was, never within a window back from now", () => {
    const from = instant("2026-05-05T10:00");
    for (const away of [MINUTE, 61_000, HOUR, 40 * DAY]) {
      expect(latestDue(read("0 10 * * *"), from - 1, from + away)).not.toBeNull();
    }
  });
});

describe("time zone", () => {
  test.each([
    "PST8",
    "Local",
    "+05:30",
    "-03",
    "",
    "Europe/Paris ",
    "UTC+3",
    "utc+3",
    "Mars/Base",
    "Europe/Pariss",
    "EST",
  ])("a zone that is unknown or ambiguous is refused, and never the machine's own instead: %j", (zone) => {
    expect(parseZone(zone).ok).toBe(false);
  });

  test("a job at eight on the wall stays at eight on the wall, all year, without an edit", () => {
    const clock = new Intl.DateTimeFormat("en-GB", { timeZone: "America/New_York", timeStyle: "short" });
    const year = fires("0 8 * * *", "America/New_York", instant("2026-01-01T00:00"), 365);
    expect(new Set(year.map((at) => clock.format(at)))).toEqual(new Set(["08:00"]));
  });
});

describe("retry", () => {
  test.each([30, 31, 32, 63, 64, 1_000, 1e6])(
    "a delay that overflows at attempt %i is never more than its cap, nor less",
    (attempt) => {
      for (const random of [0, 0.999]) {
        const delay = backoffDelay(BACKOFF, attempt, random);
        expect(delay).toBeLessThanOrEqual(BACKOFF.capMs);
        expect(delay).toBeGreaterThan(BACKOFF.capMs / 2);
      }
    },
  );
});

describe("payload", () => {
  const bytes = 65_536;
  test.each<[string, unknown, RegExp]>([
    ["a BigInt", { a: { n: 10n } }, /a\.n|"n"/],
    ["a Date", { list: [0, { at: new Date(0) }] }, /at/],
    ["half a surrogate pair", { text: "x\ud800y" }, /text/],
    ["half a surrogate pair in a key", { "\udc00": 1 }, /udc00|key/i],
    ["a Map", { m: new Map() }, /m/],
    ["no number", { n: Number.NaN }, /n/],
  ])("%s is refused where it stands, not lost, changed or thrown", (_, value, where) => {
    const answer = checkJson(value, { maxBytes: bytes });
    expect(answer.ok).toBe(false);
    expect(JSON.stringify(answer)).toMatch(where);
  });

  test("one that is too large is a refusal with the limit and the size", () => {
    const answer = checkJson({ text: "é".repeat(40_000) }, { maxBytes: bytes });
    expect(JSON.stringify(answer)).toMatch(/65,?536/);
    expect(JSON.stringify(answer)).toMatch(/80,?0\d\d/);
  });
});

describe("poison", () => {
  test.each([
    ["NUL", new Error("a\0b")],
    ["half a surrogate pair", new Error("\ud800")],
    ["a megabyte", new Error("x".repeat(1_048_576))],
    ["no text at all", new Error("")],
    [
      "a message that throws",
      Object.defineProperty(new Error(), "message", {
        get: () => {
          throw new Error("no");
        },
      }),
    ],
    ["nothing", undefined],
  ])("a failure's text of %s can be stored: the failure path cannot fail", (_, error) => {
    const text = errorText(error);
    expect(text).not.toBe("");
    expect(text).not.toContain("\0");
    expect(text.isWellFormed()).toBe(true);
    expect(text.length).toBeLessThanOrEqual(1_024);
  });
});
