import { execFileSync } from "node:child_process";
import path from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { latestDue, nextFire, previousFire } from "../../src/core/calendar.ts";
import { type Cron, parseCron } from "../../src/core/cron.ts";
import { DAY, HOUR, isoInstant, MINUTE } from "../../src/core/time.ts";
import { cronerFires, fires, parserFires, read, short } from "./firing.node.ts";

/** The wall clock by another road than the code's: Intl's own fields, minute by minute. */
function wall(zone: string, from: number, to: number): { at: number; label: string; week: number }[] {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
  return Array.from({ length: (to - from) / MINUTE }, (_, index) => {
    const at = from + index * MINUTE;
    const label = format.format(at);
    return { at, label, week: new Date(`${label.slice(0, 10)}T00:00Z`).getUTCDay() };
  });
}

/** The rules of local time said as a search: what each minute of the wall clock owes. */
function owed(cron: Cron, clock: ReturnType<typeof wall>): number[] {
  const wants = (label: string, week: number) => {
    const [month, date, hour, minute] = [5, 8, 11, 14].map((start) => Number(label.slice(start, start + 2)));
    const inMonth = cron.daysOfMonth.includes(date!);
    const inWeek = cron.daysOfWeek.includes(week);
    const day = cron.eitherDay ? inMonth || inWeek : inMonth && inWeek;
    return day && cron.months.includes(month!) && cron.hours.includes(hour!) && cron.minutes.includes(minute!);
  };
  if (cron.realTime) return clock.filter(({ label, week }) => wants(label, week)).map(({ at }) => at);
  const first = new Map<string, number>();
  for (const { at, label } of clock) if (!first.has(label)) first.set(label, at);
  const days = new Set(clock.map(({ label }) => label.slice(0, 10)));
  const found = new Set<number>();
  for (const day of days) {
    const week = new Date(`${day}T00:00Z`).getUTCDay();
    for (let minute = 0; minute < 1440; minute += 1) {
      const label = `${day} ${new Date(minute * MINUTE).toISOString().slice(11, 16)}`;
      if (label < clock[0]!.label || label > clock.at(-1)!.label || !wants(label, week)) continue;
      found.add(first.get(label) ?? clock.find((each) => each.label > label)!.at);
    }
  }
  return [...found].sort((a, b) => a - b);
}

describe("properties", () => {
  const changes: [string, string][] = [
    ["America/New_York", "2026-03-08"],
    ["America/New_York", "2026-11-01"],
    ["Europe/Dublin", "2026-03-29"],
    ["Australia/Lord_Howe", "2026-10-03"],
    ["Australia/Lord_Howe", "2026-04-04"],
    ["Antarctica/Troll", "2026-03-29"],
    ["Antarctica/Troll", "2026-10-25"],
    ["America/Santiago", "2026-09-06"],
    ["America/Santiago", "2026-04-05"],
    ["America/Havana", "2026-11-01"],
    ["America/St_Johns", "2010-03-14"],
    ["America/St_Johns", "2010-11-07"],
    ["Pacific/Apia", "2011-12-30"],
    ["Pacific/Kwajalein", "1993-08-20"],
    ["Pacific/Chatham", "2026-09-26"],
    ["Africa/Casablanca", "2026-02-15"],
    ["Africa/Cairo", "2026-04-24"],
    ["Asia/Beirut", "2026-03-29"],
    ["America/Caracas", "2016-05-01"],
    ["Asia/Pyongyang", "2018-05-04"],
    ["Asia/Kathmandu", "1985-12-31"],
  ];
  const near = changes.map(([zone, date]) => {
    const middle = Date.parse(date);
    return {
      zone,
      from: middle - 2 * DAY,
      to: middle + 3 * DAY,
      clock: wall(zone, middle - 2 * DAY, middle + 3 * DAY),
    };
  });
  const list = (min: number, max: number, fold = 60) =>
    fc
      .uniqueArray(fc.integer({ min, max }), { minLength: 1, maxLength: 4, selector: (value) => value % fold })
      .map(String);
  const minutes = fc.oneof(list(0, 59), fc.constantFrom("*", "*/7", "*/30", "0-59", "1-59", "0"));
  const hours = fc.oneof(list(0, 23), list(0, 4), fc.constantFrom("*", "*/2", "23,0,1", "0-3", "0-23"));
  const texts = fc
    .tuple(
      minutes,
      hours,
      fc.oneof({ weight: 3, arbitrary: fc.constant("*") }, list(1, 31), fc.constant("*/2")),
      fc.constantFrom("*", "*", "*", "3-11"),
      fc.oneof({ weight: 3, arbitrary: fc.constant("*") }, list(0, 7, 7), fc.constant("*/3")),
    )
    .map((fields) => fields.join(" "))
    .filter((text) => parseCron(text).ok);

  test("near a change of any kind, the fires are those that the wall clock owes, forwards, backwards and counted", () => {
    fc.assert(
      fc.property(texts, fc.constantFrom(...near), (text, { zone, from, to, clock }) => {
        const cron = read(text);
        const expected = owed(cron, clock);
        const found: number[] = [];
        // The first and the last day are there for the oracle to look back and ahead.
        const within = (at: number) => at > from + DAY && at < to - DAY;
        for (let at = nextFire(cron, from + DAY, zone); at !== null && within(at); at = nextFire(cron, at, zone)) {
          found.push(at);
        }
        expect(found.map(short)).toEqual(expected.filter(within).map(short));
        const back: number[] = [];
        for (
          let at = previousFire(cron, to - DAY, zone);
          at !== null && within(at);
          at = previousFire(cron, at, zone)
        ) {
          back.push(at);
        }
        expect(back.reverse()).toEqual(found);
        const due = latestDue(cron, from + DAY, to - DAY - 1, zone);
        expect(due).toEqual(
          found.length === 0 ? null : { slot: found.at(-1), missed: found.length - 1, missedCapped: false },
        );
      }),
      { numRuns: 800 },
    );
  });

  const zones = Intl.supportedValuesOf("timeZone");

  test("a fixed daily time fires once on each of the year's days in every zone, and previous undoes next", () => {
    const from = Date.UTC(2026, 0, 2);
    for (const zone of zones) {
      for (const text of ["30 2 * * *", "0 0 * * *"]) {
        const cron = read(text);
        let at = nextFire(cron, from, zone)!;
        const first = at;
        for (let count = 1; count < 365; count += 1) {
          const next = nextFire(cron, at, zone)!;
          if (!(next > at && previousFire(cron, next, zone) === at)) expect.fail(`${zone} ${text} ${short(at)}`);
          at = next;
        }
        expect(latestDue(cron, first, at, zone), zone).toEqual({ slot: at, missed: 363, missedCapped: false });
        // 365 fires on, the same wall time a year later, but for the change that makes one of them early or late.
        expect(Math.abs(at - first - 364 * DAY), `${zone} ${text}`).toBeLessThanOrEqual(2 * HOUR);
      }
    }
  });

  test("fires strictly increase in every zone, from anywhere, and previous undoes next", () => {
    fc.assert(
      fc.property(
        texts,
        fc.constantFrom(...zones),
        fc.integer({ min: 0, max: Date.UTC(2100, 0, 1) }),
        (text, zone, from) => {
          const cron = read(text);
          let last: number | null = null;
          for (let at = nextFire(cron, from, zone), count = 0; at !== null && count < 20; count += 1) {
            expect(at).toBeGreaterThan(last ?? from);
            if (last !== null) expect(previousFire(cron, at, zone)).toBe(last);
            expect(nextFire(cron, at - 1, zone)).toBe(at);
            last = at;
            at = nextFire(cron, at, zone);
          }
        },
      ),
      { numRuns: 1_000 },
    );
  });

  /** The oracles' day rule is ours but for a star with a step. */
  const plain = texts.filter((text) => {
    const [, , month, , week] = text.split(" ");
    return month === "*" || week === "*" || !(month!.startsWith("*") || week!.startsWith("*"));
  });

  test("in UTC croner and cron-parser agree", () => {
    fc.assert(
      fc.property(plain, fc.integer({ min: 0, max: Date.UTC(2090, 0, 1) / MINUTE }), (text, minute) => {
        const after = minute * MINUTE;
        const found = fires(text, "UTC", after, 4).map(short);
        expect(cronerFires(text, "UTC", after, 4)).toEqual(found);
        expect(parserFires(text, "UTC", after, 4)).toEqual(found);
      }),
      { numRuns: 200 },
    );
  });

  test("in any zone croner and cron-parser agree, away from changes", () => {
    fc.assert(
      fc.property(
        plain,
        fc.constantFrom(...zones),
        fc.integer({ min: 0, max: 365 * 24 * 60 }),
        (text, zone, minute) => {
          const after = Date.UTC(2026, 0, 1) + minute * MINUTE;
          const found = fires(text, zone, after, 2);
          // In January and July no zone changes in 2026, and none of them in the last week of either.
          fc.pre([after, ...found].every((at) => /-(01|07)-(0[2-9]|1\d|2[0-8])T/.test(isoInstant(at))));
          expect(cronerFires(text, zone, after, 2)).toEqual(found.map(short));
          expect(parserFires(text, zone, after, 2)).toEqual(found.map(short));
        },
      ),
      { numRuns: 100, maxSkipsPerRun: 1_000 },
    );
  });

  test("the host's own zone has no say", () => {
    const calendar = path.resolve(import.meta.dirname, "../../src/core/calendar.ts");
    const grammar = path.resolve(import.meta.dirname, "../../src/core/cron.ts");
    const script = `
      import { nextFire, latestDue } from ${JSON.stringify(calendar)};
      import { parseCron } from ${JSON.stringify(grammar)};
      const found = [Intl.DateTimeFormat().resolvedOptions().timeZone];
      for (const text of ["30 2 * * *", "*/20 0-3 * * *", "0 0 1 * *", "0 0 29 2 SUN"]) {
        for (const zone of ["UTC", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"]) {
          const { cron } = parseCron(text);
          for (let at = Date.UTC(2026, 0, 1), count = 0; count < 400; count += 1) found.push((at = nextFire(cron, at, zone)));
          found.push(latestDue(cron, 0, Date.UTC(2026, 5, 1), zone));
        }
      }
      console.log(JSON.stringify(found));`;
    const [first, ...others] = ["UTC", "America/New_York", "Pacific/Apia"].map((zone) => {
      const arguments_ = ["--no-warnings", "--input-type=module", "--eval", script];
      const output = execFileSync(process.execPath, arguments_, {
        env: { ...process.env, TZ: zone },
        encoding: "utf8",
      });
      const [host, ...found] = JSON.parse(output) as unknown[];
      expect(host).toBe(zone);
      return found;
    });
    expect(first).toHaveLength(4 * 5 * 401);
    for (const other of others) expect(other).toEqual(first);
  });
});
