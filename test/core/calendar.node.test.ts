import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { latestDue, nextFire, previousFire } from "../../src/core/calendar.ts";
import { DAY, HOUR, MINUTE } from "../../src/core/time.ts";
import { fires, instant, read, short, spyOnReads } from "./firing.node.ts";

describe("in UTC", () => {
  test.each([
    ["* * * * *", "2026-01-01T00:00", "2026-01-01T00:01"],
    ["*/5 * * * *", "2026-12-31T23:57", "2027-01-01T00:00"],
    ["0 0 * * 1", "2026-01-05T00:00", "2026-01-12T00:00"],
    ["0 0 * * 6-7", "2026-03-01T13:25", "2026-03-07T00:00"],
    ["0 0 * * 7", "2026-03-07T00:00", "2026-03-08T00:00"],
    ["0 2 29 2 *", "2026-01-01T00:00", "2028-02-29T02:00"],
    ["0 2 29 2 *", "2096-02-29T02:00", "2104-02-29T02:00"],
    // Combined with a starred weekday, both must match: a Sunday 29 February, over the year 2100.
    ["0 2 29 2 */7", "2088-02-29T02:00", "2128-02-29T02:00"],
    ["0 0 30 2 1", "2026-01-01T00:00", "2026-02-02T00:00"],
    ["0 0 13 * 5", "2026-02-07T00:00", "2026-02-13T00:00"],
    ["0 0 13 * 5", "2026-02-13T00:00", "2026-02-20T00:00"],
    ["0 0 */2 * 1", "2026-01-05T00:00", "2026-01-19T00:00"],
    ["59 23 31 12 *", "1969-12-31T23:58", "1969-12-31T23:59"],
  ])("%s after %s is %s", (text, after, expected) => {
    expect(short(nextFire(read(text), instant(after)))).toBe(expected);
  });

  test("strictly after: a ms before a due minute gives it, the minute itself gives the next", () => {
    const nine = instant("2026-01-01T09:00");
    expect(nextFire(read("0 9 * * *"), nine - 1)).toBe(nine);
    expect(nextFire(read("0 9 * * *"), nine - 0.5)).toBe(nine);
    expect(nextFire(read("0 9 * * *"), nine)).toBe(nine + DAY);
    expect(previousFire(read("0 9 * * *"), nine + 1)).toBe(nine);
    expect(previousFire(read("0 9 * * *"), nine)).toBe(nine - DAY);
  });

  test("woken every hour, a daily job is due once: the wake-up is no occurrence", () => {
    const due = Array.from({ length: 48 }, (_, hour) => latestDue(read("0 0 * * *"), hour * HOUR, (hour + 1) * HOUR));
    expect(due.filter((each) => each !== null)).toHaveLength(2);
  });

  test("an instant that is none gives no fire, and does not throw", () => {
    for (const at of [Number.NaN, Infinity, -Infinity, 8.64e15, -8.64e15, 1e300]) {
      for (const zone of ["UTC", "Europe/Berlin"]) {
        expect(nextFire(read("* * * * *"), at, zone)).toBeNull();
        expect(previousFire(read("* * * * *"), at, zone)).toBeNull();
        expect(latestDue(read("* * * * *"), 0, at, zone)).toBeNull();
      }
    }
  });

  test("a zone that parseZone refuses is never taken for another", () => {
    for (const zone of ["", "UTC+3", "Local", "PST"])
      expect(() => nextFire(read("* * * * *"), 0, zone)).toThrow(RangeError);
  });
});

describe("catching up", () => {
  const at = instant("2026-05-04T09:00");

  test("a window holds its end and not its beginning", () => {
    const cron = read("0 9 * * *");
    expect(latestDue(cron, at - 1, at)).toEqual({ slot: at, missed: 0, missedCapped: false });
    expect(latestDue(cron, at, at + DAY - 1)).toBeNull();
    expect(latestDue(cron, at - DAY, at)).toEqual({ slot: at, missed: 0, missedCapped: false });
    expect(latestDue(cron, at - DAY - 1, at)).toEqual({ slot: at, missed: 1, missedCapped: false });
    expect(latestDue(cron, at, at)).toBeNull();
    expect(latestDue(cron, at, at - 5 * DAY)).toBeNull();
  });

  test("a clock that slept or was stepped forward gives one slot, with the number that it stands for", () => {
    expect(latestDue(read("* * * * *"), at, at + 78 * MINUTE)).toEqual({
      slot: at + 78 * MINUTE,
      missed: 77,
      missedCapped: false,
    });
    expect(latestDue(read("*/5 * * * *"), at, at + 61 * MINUTE)).toEqual({
      slot: at + 60 * MINUTE,
      missed: 11,
      missedCapped: false,
    });
  });

  test("the count is exact up to 10,000, then says that there were more", () => {
    const due = (missed: number) => latestDue(read("* * * * *"), at, at + (missed + 1) * MINUTE, "Europe/Berlin");
    expect(due(9_999)).toMatchObject({ missed: 9_999, missedCapped: false });
    expect(due(10_000)).toMatchObject({ missed: 10_000, missedCapped: false });
    expect(due(10_001)).toMatchObject({ missed: 10_000, missedCapped: true });
    expect(due(3_000_000)).toMatchObject({ missed: 10_000, missedCapped: true });
  });

  test("what is counted is what nextFire steps through, over weeks with a change in them", () => {
    const crons = fc.constantFrom("*/17 * * * *", "5,35 1,2,3 * * *", "0 */3 * * 1-5", "30 2 * * *", "0 0 1,15 * 0");
    const zones = fc.constantFrom(
      "UTC",
      "America/New_York",
      "Australia/Lord_Howe",
      "Antarctica/Troll",
      "America/Santiago",
    );
    fc.assert(
      fc.property(crons, zones, fc.nat(365 * 1440), fc.nat(30 * 1440), (text, zone, start, length) => {
        const after = Date.UTC(2026, 0, 1) + start * MINUTE + 1;
        const until = after + length * MINUTE;
        const found = fires(text, zone, after, 10_000_000 / MINUTE + 3_000).filter((each) => each <= until);
        const expected = { slot: found.at(-1), missed: found.length - 1, missedCapped: false };
        expect(latestDue(read(text), after, until, zone)).toEqual(found.length === 0 ? null : expected);
      }),
      { numRuns: 100 },
    );
  });

  test("the work does not grow with the time that has passed", () => {
    const reads = spyOnReads();
    expect(latestDue(read("* * * * *"), -4e15, at, "Europe/Rome")).toMatchObject({ missedCapped: true });
    expect(reads.mock.calls.length).toBeLessThan(200);
    expect(latestDue(read("0 9 * * *"), -4e15, at, "Europe/Madrid")).toMatchObject({ missedCapped: true });
    // 27 years of days: about one reading each, and a bisection at each of the changes.
    expect(reads.mock.calls.length).toBeLessThan(16_000);
    reads.mockRestore();
  });
});

describe("bounded work", () => {
  test.each([
    ["0 9 * * *", 4],
    ["*/5 * * * *", 4],
    ["0 0 29 2 *", 4],
    ["0 2 29 2 */7", 4],
  ])("%s asks Intl at most twice a candidate day, and twice to begin: %i", (text, most) => {
    const reads = spyOnReads();
    expect(nextFire(read(text), instant("2089-06-11T10:00"), "Asia/Tokyo")).not.toBeNull();
    expect(reads.mock.calls.length).toBeLessThanOrEqual(most);
    reads.mockRestore();
  });

  test("a date that no year has, should one be built by hand, ends as never", () => {
    const cron = { ...read("0 0 29 2 *"), daysOfMonth: [30] };
    expect(nextFire(cron, 0, "Europe/Berlin")).toBeNull();
    expect(previousFire(cron, 0, "Europe/Berlin")).toBeNull();
    expect(latestDue(cron, -Infinity, 0, "Europe/Berlin")).toBeNull();
  });
});
