import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type Backoff,
  BACKOFF_MAX_MS,
  backoffDelay,
  checkBackoff,
  parseRetryAfter,
  RETRY_AFTER_MAX_MS,
  retryInstant,
} from "../../src/core/backoff.ts";
import { HOUR, SECOND } from "../../src/core/time.ts";

const DOUBLING = { baseMs: 10 * SECOND, factor: 2, capMs: HOUR, jitter: 0.2 } as const;
const EXACT = { ...DOUBLING, jitter: 0 } as const;

const growth = fc
  .record({
    baseMs: fc.integer({ min: 1, max: 10_000 }),
    factor: fc.double({ min: 1, max: 10, noNaN: true }),
    more: fc.nat(10_000_000),
    jitter: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  .map(({ more, ...rest }) => ({ ...rest, capMs: rest.baseMs + more }));
const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

describe("a delay", () => {
  test("doubles from its base to its cap", () => {
    const delays = Array.from({ length: 11 }, (_, index) => backoffDelay(EXACT, index + 1, 0.9) / SECOND);
    expect(delays).toEqual([10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600]);
  });

  test.each([30, 31, 32, 54, 64, 1_025, 1e6, Number.MAX_SAFE_INTEGER])("is capped at attempt %d", (attempt) => {
    expect(backoffDelay(EXACT, attempt, 0)).toBe(HOUR);
    expect(backoffDelay(DOUBLING, attempt, 0)).toBe(HOUR / 1.2);
    expect(backoffDelay(DOUBLING, attempt, 0.999_999)).toBeLessThanOrEqual(HOUR);
  });

  test("is only lengthened by its jitter, which spreads delays at the cap too", () => {
    expect(backoffDelay(DOUBLING, 1, 0)).toBe(10 * SECOND);
    expect(backoffDelay(DOUBLING, 1, 0.5)).toBe(11 * SECOND);
    expect(backoffDelay(DOUBLING, 50, 0)).toBeLessThan(backoffDelay(DOUBLING, 50, 0.5));
  });

  test("is a whole number of ms from 1 to its cap, at any attempt and any roll of the dice", () => {
    fc.assert(
      fc.property(growth, fc.integer({ min: 1, max: 2_000_000 }), random, (backoff, attempt, roll) => {
        expect(checkBackoff(backoff)).toEqual({ ok: true });
        const delay = backoffDelay(backoff, attempt, roll);
        expect(Number.isSafeInteger(delay) && delay >= 1 && delay <= backoff.capMs).toBe(true);
      }),
    );
  });

  test("never shrinks from one attempt to the next", () => {
    fc.assert(
      fc.property(growth, fc.integer({ min: 1, max: 80 }), random, (backoff, attempt, roll) => {
        expect(backoffDelay(backoff, attempt + 1, roll)).toBeGreaterThanOrEqual(backoffDelay(backoff, attempt, roll));
      }),
    );
  });

  test("may be read from a list, of which the last repeats", () => {
    const list = [5 * SECOND, 300 * SECOND];
    expect([1, 2, 3, 64, 1e6].map((attempt) => backoffDelay(list, attempt, 0.7) / SECOND)).toEqual([
      5, 300, 300, 300, 300,
    ]);
  });

  test("is never zero, negative or no number, whatever the backoff and the attempt", () => {
    const wild: Backoff[] = [
      [],
      [0],
      [-5],
      [Number.NaN],
      { baseMs: 0, factor: 2, capMs: 0, jitter: 0 },
      { baseMs: Number.NaN, factor: Number.NaN, capMs: 1, jitter: 0 },
      { baseMs: 0, factor: Number.POSITIVE_INFINITY, capMs: 9, jitter: 1 },
    ];
    for (const backoff of wild) {
      for (const attempt of [0, -1, 1, 1e6]) expect(backoffDelay(backoff, attempt, 0.5)).toBeGreaterThanOrEqual(1);
    }
  });
});

test.each<[Backoff, string]>([
  [[], ""],
  [[1, 0], "[1]"],
  [[1.5], "[0]"],
  [[BACKOFF_MAX_MS + 1], "[0]"],
  [{ ...EXACT, baseMs: 0 }, "baseMs"],
  [{ ...EXACT, baseMs: Number.NaN }, "baseMs"],
  [{ ...EXACT, factor: 0.5 }, "factor"],
  [{ ...EXACT, factor: Number.POSITIVE_INFINITY }, "factor"],
  [{ ...EXACT, capMs: 1 }, "capMs"],
  [{ ...EXACT, capMs: Number.POSITIVE_INFINITY }, "capMs"],
  [{ ...EXACT, jitter: 1.1 }, "jitter"],
  [{ ...EXACT, jitter: Number.NaN }, "jitter"],
])("the backoff %j is refused, naming %j", (backoff, field) => {
  expect(checkBackoff(backoff)).toMatchObject({ ok: false, code: "bad_backoff", field });
});

test("the next attempt is never before what the other side asked for, nor sooner than the backoff", () => {
  const asked = { backoff: EXACT, attempt: 2, now: 1_000, random: 0 };
  expect(retryInstant(asked)).toBe(21_000);
  expect(retryInstant({ ...asked, notBefore: null })).toBe(21_000);
  expect(retryInstant({ ...asked, notBefore: 20_999 })).toBe(21_000);
  expect(retryInstant({ ...asked, notBefore: 60_000 })).toBe(60_000);
  expect(retryInstant({ ...asked, notBefore: Number.NaN })).toBe(21_000);
});

describe("Retry-After", () => {
  const now = Date.UTC(2026, 10, 30, 12, 0, 0);

  test("is seconds from now", () => {
    expect(parseRetryAfter("120", now)).toBe(now + 120 * SECOND);
    expect(parseRetryAfter(" 7 ", now)).toBe(now + 7 * SECOND);
    expect(parseRetryAfter("0", now)).toBe(now);
  });

  test.each(["Mon, 30 Nov 2026 12:30:05 GMT", "Monday, 30-Nov-26 12:30:05 GMT", "Mon Nov 30 12:30:05 2026"])(
    "is an HTTP date in each of its forms: %s",
    (header) => {
      expect(parseRetryAfter(header, now)).toBe(now + 1_805 * SECOND);
    },
  );

  test("reads a one-digit day, and a year of two digits on the near side of fifty years", () => {
    expect(parseRetryAfter("Tue Dec  1 00:00:00 2026", now)).toBe(Date.UTC(2026, 11, 1));
    expect(parseRetryAfter("Sunday, 06-Nov-94 08:49:37 GMT", now)).toBeNull();
    expect(parseRetryAfter("Saturday, 01-Jan-00 00:00:00 GMT", Date.UTC(1999, 11, 31, 23))).toBeNull();
  });

  test("is heeded for a day at most, however long it asks for", () => {
    for (const header of ["86401", "9".repeat(400), "Mon, 30 Nov 2099 12:00:00 GMT"]) {
      expect(parseRetryAfter(header, now)).toBe(now + RETRY_AFTER_MAX_MS);
    }
  });

  test.each([
    null,
    "",
    " ",
    "-5",
    "+5",
    "1.5",
    "1e3",
    "0x10",
    "soon",
    "120, 60",
    "120 seconds",
    "2026-12-01T00:00:00Z",
    "Mon, 30 Nov 2026 11:59:59 GMT",
    "Mon, 31 Nov 2026 12:30:05 GMT",
    "Mon, 30 Nox 2026 12:30:05 GMT",
    "Mon, 30 Nov 2026 29:30:05 GMT",
    "Mon, 30 Nov 2026 12:30:05 CET",
  ])("is nothing when it is %j", (header) => {
    expect(parseRetryAfter(header, now)).toBeNull();
  });

  test("never throws and never names the past, whatever the header holds", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (header) => {
        const at = parseRetryAfter(header, now);
        expect(at === null || (at >= now && at <= now + RETRY_AFTER_MAX_MS)).toBe(true);
      }),
    );
  });
});
