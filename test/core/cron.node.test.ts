import { CronExpressionParser } from "cron-parser";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Cron, parseCron } from "../../src/core/cron.ts";
import { read } from "./firing.node.ts";

const upTo = (from: number, to: number, step = 1): number[] =>
  Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, index) => from + index * step);

describe("what is read", () => {
  test.each<[string, Partial<Cron>]>([
    ["* * * * *", { minutes: upTo(0, 59), hours: upTo(0, 23), daysOfMonth: upTo(1, 31), months: upTo(1, 12) }],
    ["* * * * *", { daysOfWeek: upTo(0, 6), eitherDay: false, realTime: true }],
    ["5 9 1 12 1", { minutes: [5], hours: [9], daysOfMonth: [1], months: [12], daysOfWeek: [1] }],
    ["05 09 * * *", { minutes: [5], hours: [9] }],
    ["\t5   9 * * * ", { minutes: [5], hours: [9] }],
    ["*/15 8-18/5 * * *", { minutes: [0, 15, 30, 45], hours: [8, 13, 18] }],
    ["59,1,30-32 * * * *", { minutes: [1, 30, 31, 32, 59] }],
    ["0 0 * jan,Mar-MAY *", { months: [1, 3, 4, 5] }],
    ["0 0 * * mon-FRI", { daysOfWeek: [1, 2, 3, 4, 5] }],
    ["0 0 * * TUE-6/2", { daysOfWeek: [2, 4, 6] }],
    ["0 0 31 4,5 *", { daysOfMonth: [31], months: [4, 5] }],
    ["0 0 29 2 *", { daysOfMonth: [29], months: [2] }],
    ["0 0 30 2 MON", { daysOfMonth: [30], daysOfWeek: [1], eitherDay: true }],
    // The longest steps: every 60 minutes, 24 hours, 31 days, 12 months, 7 days.
    ["*/60 */24 */31 */12 */7", { minutes: [0], hours: [0], daysOfMonth: [1], months: [1], daysOfWeek: [0] }],
  ])("%j", (text, expected) => {
    expect(read(text)).toMatchObject(expected);
  });

  test.each<[string, number[]]>([
    ["0", [0]],
    ["7", [0]],
    ["SUN", [0]],
    ["0,7", [0]],
    ["6-7", [0, 6]],
    ["6,7", [0, 6]],
    ["SAT-7", [0, 6]],
    ["0-7", upTo(0, 6)],
    ["1-7", upTo(0, 6)],
    ["1-7/2", [0, 1, 3, 5]],
    ["2-7/2", [2, 4, 6]],
    ["2-7/5", [0, 2]],
    ["*/2", [0, 2, 4, 6]],
    ["*/5", [0, 5]],
  ])("7 is Sunday only where a weekday field reaches it: %s", (field, expected) => {
    expect(read(`0 0 * * ${field}`).daysOfWeek).toEqual(expected);
  });

  test.each([
    ["*/5,*/7 * * * *", "*/7,*/5 * * * *"],
    ["*,*,*,*,*,*,*,*,3 * * * *", "* * * * *"],
    ["0 0 1,1-3,2-4 * *", "0 0 1-4 * *"],
    ["0 0 * 1-3,FEB,2 *", "0 0 * 1-3 *"],
    ["0 0 * * 7,0,SUN,6-7", "0 0 * * 0,6"],
  ])("a union may overlap: %s reads as %s", (text, plain) => {
    const { text: _, eitherDay: _either, ...lists } = read(plain);
    expect(read(text)).toMatchObject(lists);
  });

  test.each([
    ["1 1 1 * 1", true],
    ["1 1 1-31 * 0-6", true],
    ["1 1 1,* * 1", true],
    ["1 1 * * 1", false],
    ["1 1 1 * *", false],
    ["1 1 */2 * 1", false],
    ["1 1 1 * */2", false],
    ["1 1 *,1 * 1", false],
  ])("a day field is unrestricted when it begins with * (crontab(5)): %s matches either day: %s", (text, eitherDay) => {
    expect(read(text).eitherDay).toBe(eitherDay);
  });

  test.each([
    ["0 9 * * *", false],
    ["0,30 9-17 * * *", false],
    ["* 9 * * *", true],
    ["0 * * * *", true],
    ["*/20 9 * * *", true],
    ["0 */2 * * *", true],
    ["0 0-23 * * *", true],
    ["0-59 9 * * *", true],
    ["1-59 9 * * *", false],
  ])("a wildcard minute or hour follows real time: %s, %s", (text, realTime) => {
    expect(read(text).realTime).toBe(realTime);
  });

  test("the author's text is kept to the letter", () => {
    for (const text of ["0 10 * * 1,3,5", " 00  10\t* JAN mOn ", "*/5,*/7 * * * *"]) expect(read(text).text).toBe(text);
  });
});

describe("what is refused, where, and in words", () => {
  test.each<[string, string, string, number, RegExp]>([
    ["", "expression", "", 0, /empty/],
    [" \t ", "expression", "", 0, /empty/],
    ["*", "expression", "*", 0, /exactly five fields; this one has 1/],
    ["* * * *", "expression", "* * * *", 0, /has 4/],
    ["* * * * * *", "expression", "* * * * * *", 0, /none for seconds/],
    ["* * * * * * *", "expression", "* * * * * * *", 0, /has 7/],
    [" @daily", "expression", "@daily", 1, /Macros/],
    ["@every 5m", "expression", "@every", 0, /Macros/],
    ["0 0 * * 1\u0000", "expression", "U+0000", 9, /U\+0000/],
    ["0 0\n* * *", "expression", "U+000A", 3, /U\+000A/],
    ["0\u00a00 * * *", "expression", "U+00A0", 1, /U\+00A0/],
    ["0 0 * * \u{1f600}", "expression", "U+1F600", 8, /U\+1F600/],
    ["\uff10 0 * * *", "expression", "U+FF10", 0, /U\+FF10/],
    ["0 0 * * \u017fun", "expression", "U+017F", 8, /U\+017F/],
    [`0 0 * * ${"1,".repeat(130)}1`, "expression", "0 0 * * 1,1,1,1,", 0, /256/],
    ["60 * * * *", "minute", "60", 0, /0 to 59/],
    ["-1 * * * *", "minute", "-1", 0, /not a value/],
    ["1.5 * * * *", "minute", "1.5", 0, /not a value/],
    ["007 * * * *", "minute", "007", 0, /0 to 59/],
    ["5/2 * * * *", "minute", "5/2", 0, /5-59\/2/],
    ["*/0 * * * *", "minute", "*/0", 0, /1 to 60/],
    ["*/61 * * * *", "minute", "*/61", 0, /1 to 60/],
    ["0-59/61 * * * *", "minute", "0-59/61", 0, /1 to 60/],
    ["*/90 * * * *", "minute", "*/90", 0, /1 to 60/],
    ["*/ * * * *", "minute", "*/", 0, /not a value/],
    ["/5 * * * *", "minute", "/5", 0, /not a value/],
    ["*/5/5 * * * *", "minute", "*/5/5", 0, /not a value/],
    ["** * * * *", "minute", "**", 0, /not a value/],
    ["*5 * * * *", "minute", "*5", 0, /not a value/],
    ["1-2-3 * * * *", "minute", "1-2-3", 0, /not a value/],
    ["1-* * * * *", "minute", "1-*", 0, /not a value/],
    ["1,,2 * * * *", "minute", "", 2, /empty place/],
    ["1, * * * *", "minute", "", 2, /empty place/],
    ["JAN * * * *", "minute", "JAN", 0, /0 to 59/],
    ["H * * * *", "minute", "H", 0, /no L, W/],
    ["H/5 * * * *", "minute", "H/5", 0, /no L, W/],
    ["0 24 * * *", "hour", "24", 2, /the hour is 0 to 23/],
    ["0 5-1 * * *", "hour", "5-1", 2, /backwards/],
    ["0 */25 * * *", "hour", "*/25", 2, /1 to 24/],
    ["0 1,2,99 * * *", "hour", "99", 6, /0 to 23/],
    ["0 0 0 * *", "dayOfMonth", "0", 4, /1 to 31/],
    ["0 0 32 * *", "dayOfMonth", "32", 4, /1 to 31/],
    ["0 0 */32 * *", "dayOfMonth", "*/32", 4, /1 to 31/],
    ["0 0 L * *", "dayOfMonth", "L", 4, /no L, W/],
    ["0 0 L-2 * *", "dayOfMonth", "L-2", 4, /no L, W/],
    ["0 0 15W * *", "dayOfMonth", "15W", 4, /no L, W/],
    ["0 0 ? * *", "dayOfMonth", "?", 4, /no L, W/],
    ["0 0 * 0 *", "month", "0", 6, /1 to 12 or JAN to DEC/],
    ["0 0 * 13 *", "month", "13", 6, /1 to 12/],
    ["0 0 * JANUARY *", "month", "JANUARY", 6, /JAN to DEC/],
    ["0 0 * DEC-JAN *", "month", "DEC-JAN", 6, /backwards/],
    ["0 0 * */13 *", "month", "*/13", 6, /1 to 12/],
    ["0 0 * MON *", "month", "MON", 6, /JAN to DEC/],
    ["0 0 * * 8", "dayOfWeek", "8", 8, /0 to 7 or SUN to SAT/],
    ["0 0 * * 2/2", "dayOfWeek", "2/2", 8, /2-7\/2/],
    ["0 0 * * */8", "dayOfWeek", "*/8", 8, /1 to 7/],
    ["0 0 * * FRI-SUN", "dayOfWeek", "FRI-SUN", 8, /7 is Sunday too/],
    ["0 0 * * MONDAY", "dayOfWeek", "MONDAY", 8, /SUN to SAT/],
    ["0 0 * * L", "dayOfWeek", "L", 8, /no L, W/],
    ["0 0 * * 5L", "dayOfWeek", "5L", 8, /no L, W/],
    ["0 0 * * FRI#2", "dayOfWeek", "FRI#2", 8, /no L, W/],
    ["0 4 30 2 *", "dayOfMonth", "30", 4, /never fires: no month of "2" has a day "30"/],
    ["0 0 31 4 *", "dayOfMonth", "31", 4, /never fires/],
    ["0 0 31 feb,4-6/2,9,11 *", "dayOfMonth", "31", 4, /never fires/],
    ["0 0 30,31 2 */2", "dayOfMonth", "30,31", 4, /never fires/],
    ["0 0 30 2 *,1", "dayOfMonth", "30", 4, /never fires/],
  ])("%j: %s", (text, field, token, position, message) => {
    expect(parseCron(text)).toEqual({ ok: false, field, token, position, message: expect.stringMatching(message) });
  });

  test("no text makes the parser throw, and a refusal is always printable", () => {
    const pieces = fc.constantFrom(
      "*",
      "/",
      "-",
      ",",
      " ",
      "1",
      "7",
      "59",
      "0",
      "L",
      "MON",
      "feb",
      "#",
      "\t",
      "\0",
      "é",
    );
    const texts = fc.oneof(
      fc.string({ unit: "binary" }),
      fc.array(pieces, { maxLength: 40 }).map((all) => all.join("")),
    );
    fc.assert(
      fc.property(texts, (text) => {
        const parsed = parseCron(text);
        if (parsed.ok) expect(parsed.cron.text).toBe(text);
        else expect(parsed.token + parsed.message).toMatch(/^[\t\x20-\x7e]*$/);
      }),
      { numRuns: 2_000 },
    );
  });
});

/** One field: its text, and the values that it should stand for, worked out apart from the parser. */
function field(min: number, max: number, fold = (value: number) => value) {
  const range = fc
    .tuple(fc.integer({ min, max }), fc.integer({ min, max }))
    .map(([a, b]) => [Math.min(a, b), Math.max(a, b)]);
  const count = fold(max) === max ? max - min + 1 : max - min;
  const item = fc.oneof(
    fc.integer({ min, max }).map((value) => ({ text: `${value}`, values: [value] })),
    range.map(([a, b]) => ({ text: `${a}-${b}`, values: upTo(a!, b!) })),
    fc
      .tuple(range, fc.integer({ min: 1, max: count }))
      .map(([[a, b], step]) => ({ text: `${a}-${b}/${step}`, values: upTo(a!, b!, step) })),
    fc.integer({ min: 1, max: count }).map((step) => ({ text: `*/${step}`, values: upTo(min, max, step) })),
    fc.constant({ text: "*", values: upTo(min, max) }),
  );
  return fc.array(item, { minLength: 1, maxLength: 4 }).map((items) => ({
    text: items.map((each) => each.text).join(","),
    values: [...new Set(items.flatMap((each) => each.values).map(fold))].sort((a, b) => a - b),
  }));
}

test("every list of values, ranges and steps reads as the union of its items, and as cron-parser reads them", () => {
  const fields = fc.tuple(
    field(0, 59),
    field(0, 23),
    field(1, 28),
    field(1, 12),
    field(0, 7, (day) => day % 7),
  );
  fc.assert(
    fc.property(fields, ([minute, hour, day, month, week]) => {
      const cron = read([minute, hour, day, month, week].map((each) => each.text).join(" "));
      expect([cron.minutes, cron.hours, cron.months, cron.daysOfWeek]).toEqual(
        [minute, hour, month, week].map((each) => each.values),
      );
      expect(cron.daysOfMonth.filter((each) => each <= 28)).toEqual(day.values);
      // It refuses a value that it meets twice, so it is given each item alone.
      const [first] = minute.text.split(",");
      const alone = CronExpressionParser.parse(`${first} * * * *`, { currentDate: 0, tz: "UTC" }).fields.minute.values;
      expect(read(`${first} * * * *`).minutes).toEqual([...alone]);
    }),
    { numRuns: 500 },
  );
});

test("what makes a grammar of our own necessary: cron-parser alone takes these for schedules", () => {
  for (const text of ["", "* *", "*/90 * * * *", "H * * * *", "* * * * * *"]) {
    expect(() => CronExpressionParser.parse(text)).not.toThrow();
    expect(parseCron(text).ok).toBe(false);
  }
});
