import { describe, expect, test } from "vitest";
import { nextFire, previousFire } from "../../src/core/calendar.ts";
import { isoInstant, MINUTE } from "../../src/core/time.ts";
import { cronerFires, fires, instant, parserFires, read, short, spyOnReads } from "./firing.node.ts";

/*
 * Local time, and the oracles. Columns: cron, zone, asked after, our fires; then what croner and cron-parser answer
 * where they differ, with the reason. All instants in UTC.
 */
const GAP_END = "cron-parser keeps the minutes that have passed in the gap; we fire at its end";
const NO_GAP_FOR_WILDCARDS = "cron-parser moves wildcard minutes out of the gap; the wall never shows them";
const LOST = "fixed times in a gap of half an hour are skipped; we fire at its end";
const STAR = "both take only a bare * for unrestricted; Vixie's rule takes what begins with *";
const edges: {
  cron: string;
  zone: string;
  after: string;
  fires: string[];
  croner?: string[];
  parser?: string[];
  why?: string;
}[] = [
  {
    cron: "30 2 * * *",
    zone: "America/New_York",
    after: "2026-03-07T12:00",
    fires: ["2026-03-08T07:00", "2026-03-09T06:30"],
    parser: ["2026-03-08T07:30", "2026-03-09T06:30"],
    why: GAP_END,
  },
  {
    cron: "0 2 * * *",
    zone: "America/New_York",
    after: "2020-03-07T12:00",
    fires: ["2020-03-08T07:00", "2020-03-09T06:00"],
  },
  {
    cron: "30 1 * * *",
    zone: "America/New_York",
    after: "2026-10-31T12:00",
    fires: ["2026-11-01T05:30", "2026-11-02T06:30"],
  },
  { cron: "30 1 1 11 *", zone: "America/New_York", after: "2026-11-01T05:30", fires: ["2027-11-01T05:30"] },
  {
    cron: "*/30 1 * * *",
    zone: "America/New_York",
    after: "2026-10-31T12:00",
    fires: ["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30"],
    parser: ["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-02T06:00", "2026-11-02T06:30"],
    why: "cron-parser runs wildcard minutes once only when the hour is fixed",
  },
  {
    cron: "*/15 2 * * *",
    zone: "America/New_York",
    after: "2026-03-07T12:00",
    fires: ["2026-03-09T06:00", "2026-03-09T06:15"],
    parser: ["2026-03-08T07:00", "2026-03-08T07:15"],
    why: NO_GAP_FOR_WILDCARDS,
  },
  {
    cron: "0 * * * *",
    zone: "America/New_York",
    after: "2026-11-01T04:30",
    fires: ["2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"],
  },
  {
    cron: "0 0-23 * * *",
    zone: "America/New_York",
    after: "2026-11-01T04:30",
    fires: ["2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"],
  },
  {
    cron: "* * * * *",
    zone: "America/Los_Angeles",
    after: "2026-11-01T08:58",
    fires: ["2026-11-01T08:59", "2026-11-01T09:00", "2026-11-01T09:01"],
  },
  { cron: "* * * */3 *", zone: "America/New_York", after: "2015-02-15T12:00", fires: ["2015-04-01T04:00"] },
  {
    cron: "30 0 * * *",
    zone: "America/Havana",
    after: "2026-10-31T12:00",
    fires: ["2026-11-01T04:30", "2026-11-02T05:30"],
    parser: ["2026-11-01T05:30", "2026-11-02T05:30"],
    why: "cron-parser takes the second pass where midnight repeats",
  },
  {
    cron: "0 0 * * *",
    zone: "America/Havana",
    after: "2026-03-07T12:00",
    fires: ["2026-03-08T05:00", "2026-03-09T04:00"],
  },
  {
    cron: "0 0 * * *",
    zone: "America/Santiago",
    after: "2026-09-05T12:00",
    fires: ["2026-09-06T04:00", "2026-09-07T03:00"],
  },
  {
    cron: "30 23 * * *",
    zone: "America/Santiago",
    after: "2026-04-04T12:00",
    fires: ["2026-04-05T02:30", "2026-04-06T03:30"],
  },
  {
    cron: "15 2 * * *",
    zone: "Australia/Lord_Howe",
    after: "2026-10-03T12:00",
    fires: ["2026-10-03T15:30", "2026-10-04T15:15"],
    parser: ["2026-10-04T15:15", "2026-10-05T15:15"],
    why: LOST,
  },
  {
    cron: "15 0,1,2,3 * * *",
    zone: "Australia/Lord_Howe",
    after: "2026-10-03T14:50",
    fires: ["2026-10-03T15:30", "2026-10-03T16:15"],
    croner: ["2026-10-03T16:15", "2026-10-04T13:15"],
    parser: ["2026-10-03T16:15", "2026-10-04T13:15"],
    why: LOST,
  },
  {
    cron: "15 * * * *",
    zone: "Australia/Lord_Howe",
    after: "2026-10-03T14:00",
    fires: ["2026-10-03T14:45", "2026-10-03T16:15"],
  },
  {
    cron: "45 1 * * *",
    zone: "Australia/Lord_Howe",
    after: "2026-04-04T00:00",
    fires: ["2026-04-04T14:45", "2026-04-05T15:15"],
  },
  {
    cron: "0 3 * * 0",
    zone: "Australia/Lord_Howe",
    after: "2026-10-03T00:00",
    fires: ["2026-10-03T16:00", "2026-10-10T16:00"],
  },
  {
    cron: "30 1 * * *",
    zone: "Antarctica/Troll",
    after: "2026-03-28T12:00",
    fires: ["2026-03-29T01:00", "2026-03-29T23:30"],
    parser: ["2026-03-29T01:30", "2026-03-29T23:30"],
    why: GAP_END,
  },
  {
    cron: "30 2 * * *",
    zone: "Antarctica/Troll",
    after: "2026-10-24T12:00",
    fires: ["2026-10-25T00:30", "2026-10-26T02:30"],
    parser: ["2026-10-25T00:30", "2026-10-25T02:30"],
    why: "cron-parser fires in both passes of a two-hour repeat",
  },
  {
    cron: "0 12 * * *",
    zone: "Pacific/Apia",
    after: "2011-12-29T12:00",
    fires: ["2011-12-29T22:00", "2011-12-30T22:00"],
  },
  {
    cron: "0 0 * * *",
    zone: "Pacific/Apia",
    after: "2011-12-29T12:00",
    fires: ["2011-12-30T10:00", "2011-12-31T10:00"],
  },
  { cron: "0 0 30 12 *", zone: "Pacific/Apia", after: "2011-06-01T00:00", fires: ["2012-12-29T10:00"] },
  {
    cron: "0 0 */2 * 1",
    zone: "UTC",
    after: "2026-01-01T00:00",
    fires: ["2026-01-05T00:00", "2026-01-19T00:00"],
    croner: ["2026-01-03T00:00", "2026-01-05T00:00"],
    parser: ["2026-01-03T00:00", "2026-01-05T00:00"],
    why: STAR,
  },
  {
    cron: "0 0 1 * */2",
    zone: "UTC",
    after: "2026-01-02T00:00",
    fires: ["2026-02-01T00:00", "2026-03-01T00:00"],
    croner: ["2026-01-03T00:00", "2026-01-04T00:00"],
    parser: ["2026-01-03T00:00", "2026-01-04T00:00"],
    why: STAR,
  },
];

describe("at the edges of local time", () => {
  test.each(edges)("$cron in $zone after $after: $fires", ({ cron, zone, after, fires: expected }) => {
    const found = fires(cron, zone, instant(after), expected.length);
    expect(found.map(short)).toEqual(expected);
    for (const [index, at] of found.entries()) expect(previousFire(read(cron), at + 1, zone)).toBe(found[index]);
    for (const [index, at] of found.slice(1).entries()) expect(previousFire(read(cron), at, zone)).toBe(found[index]);
  });

  test.each(edges)("croner and cron-parser on $cron in $zone after $after ($why)", (edge) => {
    const asked = [edge.cron, edge.zone, instant(edge.after), edge.fires.length] as const;
    expect(cronerFires(...asked)).toEqual(edge.croner ?? edge.fires);
    expect(parserFires(...asked)).toEqual(edge.parser ?? edge.fires);
  });

  test("where midnight itself repeats (St John's, 00:01 back to 23:01), no minute is lost and none comes out of order", () => {
    const from = instant("2010-11-07T00:00");
    const expected = Array.from({ length: 300 }, (_, index) => from + (index + 1) * MINUTE);
    expect(fires("* * * * *", "America/St_Johns", from, 300)).toEqual(expected);
    expect(fires("0 * * * *", "America/St_Johns", from, 5).map(short)).toEqual([
      "2010-11-07T00:30",
      "2010-11-07T01:30",
      "2010-11-07T02:30",
      "2010-11-07T03:30",
      "2010-11-07T04:30",
    ]);
    // 23:30 is repeated after a midnight that has come already.
    expect(fires("0,30 23,0 * * *", "America/St_Johns", from, 4).map(short)).toEqual([
      "2010-11-07T01:30",
      "2010-11-07T02:00",
      "2010-11-07T02:30",
      "2010-11-07T04:00",
    ]);
  });

  test("an offset of odd seconds (Monrovia before 1972) is kept to the second", () => {
    expect(isoInstant(nextFire(read("0 9 * * *"), instant("1972-01-01T00:00"), "Africa/Monrovia")!)).toBe(
      "1972-01-01T09:44:30.000Z",
    );
  });

  test("a wildcard that lies in the gap on every one of its days never fires, and is found out in bounded work", () => {
    // Both day fields must match: the second Sunday of March, when New York has no 02:xx.
    const cron = read("* 2 8-14 3 */7");
    const reads = spyOnReads();
    expect(nextFire(cron, instant("2026-01-01T00:00"), "America/New_York")).toBeNull();
    expect(reads.mock.calls.length).toBeLessThan(41 * 20 + 4);
    reads.mockRestore();
  });
});
