import { describe, expect, test } from "vitest";
import { DAY, HOUR, MINUTE } from "../../src/core/time.ts";
import { offsetsAround, parseZone } from "../../src/core/zone.ts";

describe("names of zones", () => {
  test.each([
    ["UTC", "UTC"],
    ["utc", "UTC"],
    ["Etc/UTC", "UTC"],
    ["Etc/GMT+5", "Etc/GMT+5"],
    ["Europe/Berlin", "Europe/Berlin"],
    ["europe/BERLIN", "Europe/Berlin"],
    ["America/Argentina/Ushuaia", "America/Argentina/Ushuaia"],
    ["Asia/Kolkata", "Asia/Kolkata"],
    ["Asia/Calcutta", "Asia/Calcutta"],
    ["US/Pacific", "US/Pacific"],
    ["Antarctica/Troll", "Antarctica/Troll"],
  ])("%j is the zone %j", (text, zone) => {
    expect(parseZone(text)).toEqual({ ok: true, zone });
  });

  test.each([
    "",
    " ",
    "UTC ",
    "Europe/Paris ",
    " Europe/Paris",
    "Europe/Paris\n",
    "Europe/Paris\0",
    "Europe /Paris",
    "Europe/Pari\u017f",
    "Europe/Nowhere",
    "Europe/",
    "Europe",
    "+05:30",
    "-08",
    "UTC+3",
    "GMT+3",
    "Z",
    "Local",
    "local",
    "localtime",
    "Etc/Unknown",
    "Factory",
    "../etc/UTC",
    "x".repeat(1_000),
    // Intl takes these; see parseZone for why Duework does not.
    "PST",
    "PST8",
    "PST8PDT",
    "EST",
    "IST",
    "BST",
    "CET",
    "GMT",
    "Japan",
    "SystemV/PST8",
  ])("%j is refused, and no other zone stands in for it", (text) => {
    const parsed = parseZone(text);
    expect(parsed).toEqual({ ok: false, message: expect.stringMatching(/is not a time zone|names no area/) });
    expect(() => offsetsAround(text, 0)).toThrow(RangeError);
  });

  test("every zone that Intl lists is a zone", () => {
    for (const zone of Intl.supportedValuesOf("timeZone")) expect(parseZone(zone)).toEqual({ ok: true, zone });
  });
});

describe("offsets around a day", () => {
  const dayOf = (date: string) => Date.parse(date) / DAY;

  test("on an ordinary day there is one, east positive", () => {
    expect(offsetsAround("UTC", 0)).toEqual({ before: 0, after: 0, change: Infinity });
    const india = 5.5 * HOUR;
    expect(offsetsAround("Asia/Kolkata", dayOf("2026-06-01"))).toEqual({
      before: india,
      after: india,
      change: Infinity,
    });
    const newYork = -4 * HOUR;
    expect(offsetsAround("America/New_York", dayOf("2026-06-01")).before).toBe(newYork);
  });

  test.each([
    ["America/New_York", "2026-03-08T07:00:00Z", -300, -240],
    ["America/New_York", "2026-11-01T06:00:00Z", -240, -300],
    ["Australia/Lord_Howe", "2026-10-03T15:30:00Z", 630, 660],
    ["Antarctica/Troll", "2026-03-29T01:00:00Z", 0, 120],
    ["America/Santiago", "2026-09-06T04:00:00Z", -240, -180],
    ["Pacific/Apia", "2011-12-30T10:00:00Z", -600, 840],
    ["America/St_Johns", "2010-11-07T02:31:00Z", -150, -210],
    ["Africa/Monrovia", "1972-01-07T00:44:30Z", -44.5, 0],
  ])("the change of %s at %s is found to the second, on the days beside it too", (zone, at, before, after) => {
    const change = Date.parse(at);
    const day = Math.floor(change / DAY);
    for (const near of [day - 1, day, day + 1]) {
      expect(offsetsAround(zone, near)).toEqual({ before: before * MINUTE, after: after * MINUTE, change });
    }
  });

  test("no listed zone changes twice within the 72 hours that are looked at", () => {
    for (const zone of Intl.supportedValuesOf("timeZone")) {
      let last = -Infinity;
      for (let day = dayOf("2020-01-01"); day < dayOf("2032-01-01"); day += 3) {
        const { change } = offsetsAround(zone, day);
        if (change === Infinity || change === last) continue;
        expect(change - last, `${zone} ${new Date(change).toISOString()}`).toBeGreaterThan(3 * DAY);
        last = change;
      }
    }
  });
});
