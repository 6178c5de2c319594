import { expect, test } from "vitest";
import { DAY, HOUR, isoInstant, laterOf, MINUTE, nextMinute, SECOND } from "../../src/core/time.ts";

test("lengths of time are in ms", () => {
  expect([SECOND, MINUTE, HOUR, DAY]).toEqual([1_000, 60_000, 3_600_000, 86_400_000]);
});

test("an instant is written in UTC with its milliseconds, even when they are 0", () => {
  expect(isoInstant(Date.UTC(2026, 1, 3, 4, 5, 6))).toBe("2026-02-03T04:05:06.000Z");
  expect(() => isoInstant(Number.NaN)).toThrow(RangeError);
});

test("the next minute is strictly after, on the minute and before 1970 too", () => {
  expect(nextMinute(0)).toBe(MINUTE);
  expect(nextMinute(MINUTE - 1)).toBe(MINUTE);
  expect(nextMinute(MINUTE)).toBe(2 * MINUTE);
  expect(nextMinute(-1)).toBe(0);
});

test("the later of two instants", () => {
  expect(laterOf(1, 2)).toBe(2);
  expect(laterOf(2, 1)).toBe(2);
});
