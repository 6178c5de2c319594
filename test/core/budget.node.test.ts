import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  createBudget,
  DEFAULT_LIMITS,
  type Limits,
  parseLimits,
  UNBOUNDED,
  unboundedBudget,
} from "../../src/core/budget.ts";
import {
  checkFloors,
  createSplit,
  EMPTY_TURN_MS,
  nextStart,
  rotate,
  type Sharer,
  type Split,
  type Turn,
  warningFor,
} from "../../src/core/split.ts";
import { SECOND } from "../../src/core/time.ts";

const NONE = { subrequests: 0, queries: 0 };

function counted(subrequests: number | null, queries: number | null = null): Limits {
  return { wallMs: null, subrequests, queries };
}

function named(count: number): Sharer[] {
  return Array.from({ length: count }, (_, index) => ({ name: `m${index + 1}` }));
}

/** One module's turn: it charges what `asks` says of its share. Answers the share. */
function turn(split: Split, asks: (share: number) => number, now = 0): number {
  const { budget, share } = split.next(now);
  const offered = share.subrequests ?? Number.NaN;
  for (let unit = asks(offered); unit > 0; unit -= 1) budget.trySpend(1);
  split.settle(budget, budget.spent);
  return offered;
}

const greedy = (share: number) => share + 1;
const idle = () => 0;

describe("a budget", () => {
  test("a spend is all or nothing, and a refused one leaves no trace in either dimension", () => {
    const budget = createBudget({ deadline: null, subrequests: 3, queries: 5 });
    expect(budget.trySpend({ subrequests: 2, queries: 5 })).toBe(true);
    expect(budget.trySpend({ subrequests: 1, queries: 1 })).toBe(false);
    expect(budget.trySpend(2)).toBe(false);
    expect(budget.spent).toEqual({ subrequests: 2, queries: 5 });
    expect(budget.remaining).toEqual({ subrequests: 1, queries: 0 });
    expect(budget.trySpend(1)).toBe(true);
    expect(budget.trySpend(0)).toBe(true);
  });

  test("what a budget answers cannot be used to change it", () => {
    const budget = createBudget({ deadline: null, subrequests: 1, queries: 1 });
    Object.assign(budget.spent, { subrequests: -5 });
    Object.assign(budget.remaining, { subrequests: 5 });
    expect(budget.trySpend(2)).toBe(false);
    expect(budget.spent).toEqual(NONE);
  });

  test.each([-1, Number.NaN, 0.5, Number.POSITIVE_INFINITY, 2 ** 53])("a cost of %s is a broken invariant", (cost) => {
    for (const budget of [unboundedBudget(), createBudget({ deadline: null, subrequests: 9, queries: 9 })]) {
      expect(() => budget.trySpend(cost)).toThrow(RangeError);
      expect(() => budget.trySpend({ queries: cost })).toThrow(RangeError);
      expect(() => budget.affords({ subrequests: cost })).toThrow(RangeError);
      expect(budget.spent).toEqual(NONE);
    }
  });

  test("the deadline instant itself is expired, and the counts do not look at the clock", () => {
    const budget = createBudget({ deadline: 1_000, subrequests: 1, queries: null });
    expect([999, 1_000, 1_001].map((now) => budget.expired(now))).toEqual([false, true, true]);
    expect([999, 1_000].map((now) => budget.exhausted(now))).toEqual([false, true]);
    expect(budget.trySpend(1)).toBe(true);
    expect(budget.exhausted(0)).toBe(true);
    expect(budget.expired(0)).toBe(false);
  });

  test("one bounded dimension with nothing left exhausts it, an unbounded one never does", () => {
    const budget = createBudget({ deadline: null, subrequests: null, queries: 2 });
    expect(budget.trySpend({ subrequests: 1_000, queries: 1 })).toBe(true);
    expect(budget.exhausted(0)).toBe(false);
    expect(budget.trySpend({ queries: 1 })).toBe(true);
    expect(budget.exhausted(0)).toBe(true);
  });

  test("unbounded refuses nothing, never expires and still counts", () => {
    const budget = unboundedBudget();
    expect(budget.trySpend({ subrequests: Number.MAX_SAFE_INTEGER, queries: 7 })).toBe(true);
    expect(budget.trySpend(1)).toBe(true);
    expect(budget.spent).toEqual({ subrequests: Number.MAX_SAFE_INTEGER, queries: 7 });
    expect(budget.remaining).toEqual({ subrequests: null, queries: null });
    expect(budget.exhausted(Number.MAX_SAFE_INTEGER)).toBe(false);
    expect(budget.affords({ subrequests: 3, queries: 1 })).toBeNull();
  });

  test("it affords as many units as the scarcer dimension carries, and an unused dimension bounds nothing", () => {
    const budget = createBudget({ deadline: null, subrequests: 40, queries: 40 });
    expect(budget.affords(1)).toBe(40);
    expect(budget.affords({ subrequests: 1, queries: 3 })).toBe(13);
    expect(budget.affords({ queries: 41 })).toBe(0);
    expect(budget.affords(0)).toBeNull();
    expect(createBudget({ deadline: 0, subrequests: 0, queries: null }).affords({ queries: 1 })).toBeNull();
    expect(createBudget({ deadline: 0, subrequests: 0, queries: null }).affords(1)).toBe(0);
  });

  test("a budget of no whole count, or with a deadline that is no instant, cannot be made", () => {
    expect(() => createBudget({ deadline: null, subrequests: 1.5, queries: 0 })).toThrow(RangeError);
    expect(() => createBudget({ deadline: Number.NaN, subrequests: 1, queries: 0 })).toThrow(RangeError);
  });

  test("whatever is asked, what was charged never exceeds what was given, and both halves add up", () => {
    const cost = fc.record({ subrequests: fc.nat(9), queries: fc.nat(9) });
    fc.assert(
      fc.property(fc.nat(60), fc.nat(60), fc.array(cost), (subrequests, queries, costs) => {
        const budget = createBudget({ deadline: null, subrequests, queries });
        for (const each of costs) {
          const affordable = (budget.affords(each) ?? 1) >= 1;
          expect(budget.trySpend(each)).toBe(affordable);
          const { spent, remaining } = budget;
          expect([spent.subrequests + remaining.subrequests!, spent.queries + remaining.queries!]).toEqual([
            subrequests,
            queries,
          ]);
          expect(Math.min(remaining.subrequests!, remaining.queries!)).toBeGreaterThanOrEqual(0);
        }
      }),
    );
  });
});

describe("limits", () => {
  test("nothing said is the Free plan's fifty with headroom", () => {
    expect(DEFAULT_LIMITS).toEqual({ wallMs: 25_000, subrequests: 40, queries: 40 });
    expect(parseLimits(undefined)).toEqual({ ok: true, limits: DEFAULT_LIMITS });
  });

  test("limits are read from an object, from JSON, and from the word", () => {
    const limits = { wallMs: 60_000, subrequests: 0, queries: null };
    expect(parseLimits(limits)).toEqual({ ok: true, limits });
    expect(parseLimits(JSON.stringify(limits))).toEqual({ ok: true, limits });
    for (const word of ["unbounded", '"unbounded"', " unbounded "]) {
      expect(parseLimits(word)).toEqual({ ok: true, limits: UNBOUNDED });
    }
    expect(parseLimits({ queries: 900 })).toEqual({ ok: true, limits: { ...DEFAULT_LIMITS, queries: 900 } });
  });

  test.each([
    [{ wallMs: 0 }, "wallMs"],
    [{ subrequests: -1 }, "subrequests"],
    [{ queries: 1.5 }, "queries"],
    [{ queries: "40" }, "queries"],
    [{ subrequests: Number.NaN }, "subrequests"],
    ['{"wall": 1}', "wall"],
    ['{"__proto__": 1}', "__proto__"],
    ["", "limits"],
    ["40", "limits"],
    ["{", "limits"],
    ["[]", "limits"],
    [null, "limits"],
  ])("%j is refused, naming %s", (given, field) => {
    expect(parseLimits(given)).toMatchObject({ ok: false, code: "bad_limits", field });
  });
});

describe("a split", () => {
  const shares = (limit: number, asks: ((share: number) => number)[]) => {
    const split = createSplit(counted(limit), named(asks.length), 0);
    return asks.map((ask) => turn(split, ask));
  };

  test("40 over twelve greedy modules", () => {
    expect(shares(40, Array(12).fill(greedy))).toEqual([4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3]);
  });

  test("eleven idle modules leave all 40 to the last", () => {
    expect(shares(40, [...Array(11).fill(idle), greedy]).at(-1)).toBe(40);
  });

  test("after one greedy and ten idle modules the last is offered 36", () => {
    expect(shares(40, [greedy, ...Array(11).fill(idle)]).at(-1)).toBe(36);
  });

  test("unspent shares roll forward: 7 over three, 4 over two", () => {
    expect(shares(7, [idle, idle, idle])).toEqual([3, 4, 7]);
    expect(shares(4, [greedy, greedy])).toEqual([2, 2]);
  });

  test("4 over twelve greedy modules: four get one, the others are born empty and still get a budget", () => {
    const split = createSplit(counted(4), named(12), 0);
    const offers = named(12).map(() => {
      const offer = split.next(0);
      offer.budget.trySpend(1);
      split.settle(offer.budget, NONE);
      return offer;
    });
    expect(offers.map(({ share }) => share.subrequests)).toEqual([1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    expect(offers.map(({ bornEmpty }) => bornEmpty)).toEqual([...Array(4).fill(false), ...Array(8).fill(true)]);
    expect(offers.every(({ budget }) => !budget.trySpend({ subrequests: 1, queries: 0 }))).toBe(true);
  });

  test("wall time is shared anew at each turn, by the clock", () => {
    const split = createSplit({ ...UNBOUNDED, wallMs: 30 * SECOND }, named(3), 0);
    const deadlines = [0, 9 * SECOND, 19 * SECOND].map((now) => {
      const { budget } = split.next(now);
      split.settle(budget, NONE);
      return budget.deadline;
    });
    expect(deadlines).toEqual([10_000, 19_500, 30_000]);
  });

  test("a module that overran the whole wall leaves those behind it born expired, with their counts", () => {
    const split = createSplit({ wallMs: 1_000, subrequests: 6, queries: 6 }, named(2), 0);
    split.settle(split.next(0).budget, NONE);
    const { budget, share, bornEmpty } = split.next(1_500);
    expect(share).toEqual({ wallMs: 0, subrequests: 6, queries: 6 });
    expect([bornEmpty, budget.deadline, budget.expired(1_500)]).toEqual([true, 1_500, true]);
  });

  test("a deadline is a whole instant, so that it may be stored", () => {
    expect(createSplit(DEFAULT_LIMITS, named(12), 0).next(0).budget.deadline).toBe(2_084);
  });

  test("unbounded stays unbounded, and beyond the last module the budget is dead", () => {
    const split = createSplit(UNBOUNDED, named(2), 0);
    for (let each = 0; each < 2; each += 1) {
      const { budget, share, bornEmpty } = split.next(5);
      expect([share, bornEmpty, budget.exhausted(1e15)]).toEqual([UNBOUNDED, false, false]);
      split.settle(budget, { subrequests: 1e6, queries: 1e6 });
    }
    const beyond = split.next(5);
    expect(beyond).toMatchObject({ bornEmpty: true, share: { wallMs: 0, subrequests: 0, queries: 0 } });
    expect([beyond.budget.expired(5), beyond.budget.trySpend(1)]).toEqual([true, false]);
  });

  test("what was used without asking leaves the pool too, and an overdrawn pool is empty, not in debt", () => {
    const split = createSplit(counted(10, 10), named(3), 0);
    split.charge({ queries: 1 });
    const first = split.next(0);
    first.budget.trySpend({ subrequests: 2, queries: 3 });
    split.settle(first.budget, { subrequests: 6, queries: 1 });
    const second = split.next(0);
    expect(second.share).toEqual({ wallMs: null, subrequests: 2, queries: 3 });
    split.settle(second.budget, { subrequests: 99, queries: 0 });
    expect(split.next(0)).toMatchObject({ bornEmpty: true, share: { subrequests: 0, queries: 6 } });
  });

  test("the pool loses the larger of charged and measured, turn by turn, and no more is ever charged than there was", () => {
    const use = fc.record({ asks: fc.nat(12), measured: fc.nat(12), runtime: fc.nat(2) });
    fc.assert(
      fc.property(fc.nat(60), fc.array(use, { minLength: 1, maxLength: 12 }), (limit, uses) => {
        const split = createSplit(counted(limit), named(uses.length), 0);
        let left = limit;
        let charged = 0;
        for (const [index, { asks, measured, runtime }] of uses.entries()) {
          split.charge({ subrequests: runtime });
          left = Math.max(0, left - runtime);
          const { budget, share } = split.next(0);
          expect(share.subrequests).toBe(Math.ceil(left / (uses.length - index)));
          for (let unit = 0; unit < asks; unit += 1) budget.trySpend(1);
          charged += budget.spent.subrequests;
          split.settle(budget, { subrequests: measured, queries: 0 });
          left = Math.max(0, left - Math.max(budget.spent.subrequests, measured));
        }
        expect(charged).toBeLessThanOrEqual(limit);
      }),
    );
  });
});

describe("floors", () => {
  test("a floor lifts a module above its even part, and those before it leave room for it", () => {
    const modules = [{ name: "a" }, { name: "b", floor: { subrequests: 8 } }, { name: "c" }];
    const split = createSplit(counted(12), modules, 0);
    expect([turn(split, greedy), turn(split, greedy), turn(split, greedy)]).toEqual([4, 8, 0]);
    const tight = createSplit(counted(10), modules, 0);
    expect([turn(tight, greedy), turn(tight, idle), turn(tight, greedy)]).toEqual([2, 8, 8]);
  });

  test("below its floor in one dimension a module is offered nothing at all, and its part stays for the others", () => {
    const modules = [{ name: "a" }, { name: "b", floor: { queries: 8 } }, { name: "c" }];
    const split = createSplit({ wallMs: 9_000, subrequests: 9, queries: 9 }, modules, 0);
    split.settle(split.next(0).budget, { subrequests: 0, queries: 4 });
    const offer = split.next(10);
    expect(offer).toMatchObject({ bornEmpty: true, share: { wallMs: 0, subrequests: 0, queries: 0 } });
    expect([offer.budget.deadline, offer.budget.trySpend(1)]).toEqual([10, false]);
    split.settle(offer.budget, NONE);
    expect(split.next(10).share).toEqual({ wallMs: 8_990, subrequests: 9, queries: 5 });
  });

  test("wall time has floors like the counts", () => {
    const modules = [{ name: "a" }, { name: "b", floor: { wallMs: 20 * SECOND } }];
    const split = createSplit({ ...UNBOUNDED, wallMs: 25 * SECOND }, modules, 0);
    const first = split.next(0);
    expect(first.share.wallMs).toBe(5 * SECOND);
    split.settle(first.budget, NONE);
    expect(split.next(5 * SECOND + 1).bornEmpty).toBe(true);
  });

  test("when floors no longer fit together the module whose turn comes first keeps its own, so a shortage goes round", () => {
    const modules = [
      { name: "a", floor: { subrequests: 4 } },
      { name: "b", floor: { subrequests: 4 } },
    ];
    const starved: string[] = [];
    let start: string | null = null;
    for (let tick = 0; tick < 4; tick += 1) {
      const order = rotate(["a", "b"], start);
      const split = createSplit(
        counted(6),
        order.map((name) => modules.find((each) => each.name === name)!),
        0,
      );
      const report = order.map((name) => ({ name, bornEmpty: turn(split, greedy) === 0 }));
      starved.push(...report.filter(({ bornEmpty }) => bornEmpty).map(({ name }) => name));
      start = nextStart(order, report);
    }
    expect(starved).toEqual(["b", "a", "b", "a"]);
  });

  test("floors that fit are met in every order, as long as each module stays within its share", () => {
    const floor = fc.option(fc.record({ subrequests: fc.nat(8), queries: fc.nat(8) }), { nil: null });
    const plan = fc.array(fc.record({ floor, asks: fc.nat(40) }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(plan, fc.nat(40), fc.nat(8), (plans, limit, runtime) => {
        const modules = plans.map(({ floor: least }, index) => ({ name: `m${index}`, floor: least }));
        const limits = counted(limit, limit);
        const reserve = { subrequests: runtime, queries: runtime };
        fc.pre(checkFloors(limits, modules, reserve).ok);
        const split = createSplit(limits, modules, 0);
        split.charge(reserve);
        for (const [index, { asks }] of plans.entries()) {
          const { budget, share } = split.next(0);
          expect(share.subrequests).toBeGreaterThanOrEqual(modules[index]?.floor?.subrequests ?? 0);
          expect(share.queries).toBeGreaterThanOrEqual(modules[index]?.floor?.queries ?? 0);
          for (let unit = 0; unit < asks; unit += 1) budget.trySpend({ subrequests: 1, queries: 1 });
          split.settle(budget, budget.spent);
        }
      }),
    );
  });

  test("floors that cannot fit together are refused, naming the dimension and the modules", () => {
    const modules = [{ name: "a", floor: { queries: 10 } }, { name: "b", floor: { queries: 7 } }, { name: "c" }];
    const answer = checkFloors(DEFAULT_LIMITS, modules, { queries: 24 });
    expect(answer).toMatchObject({ ok: false, code: "bad_floors", field: "queries" });
    expect(answer).toHaveProperty("message", expect.stringContaining("a (10), b (7) need 17 queries of the 16"));
    expect(checkFloors(DEFAULT_LIMITS, modules, { queries: 22 })).toEqual({ ok: true });
    expect(checkFloors(UNBOUNDED, modules, {})).toEqual({ ok: true });
    expect(checkFloors(counted(0), named(3), { subrequests: 16 })).toEqual({ ok: true });
  });

  test("floors may take all there is only when no module would be left without anything", () => {
    const modules = [{ name: "a", floor: { subrequests: 4 } }, { name: "b" }];
    expect(checkFloors(counted(4), modules.slice(0, 1), {})).toEqual({ ok: true });
    expect(checkFloors(counted(4), modules, {})).toMatchObject({
      field: "subrequests",
      message: expect.stringContaining("for b"),
    });
    expect(checkFloors(counted(5), modules, {})).toEqual({ ok: true });
  });

  test.each([-1, 0.5, Number.NaN])("a floor of %s is refused, naming the module", (wallMs) => {
    expect(checkFloors(UNBOUNDED, [{ name: "a", floor: { wallMs } }], {})).toMatchObject({ field: "a.floor.wallMs" });
  });
});

describe("whose turn comes first", () => {
  test("the order begins at the name and goes round; an unknown name changes nothing", () => {
    expect(rotate(["a", "b", "c"], "b")).toEqual(["b", "c", "a"]);
    expect(rotate(["a", "b", "c"], null)).toEqual(["a", "b", "c"]);
    expect(rotate(["a", "b", "c"], "gone")).toEqual(["a", "b", "c"]);
  });

  test("the next tick starts at the first module, in this tick's order, that was offered nothing", () => {
    const report = ["a", "b", "c"].map((name) => ({ name, bornEmpty: name !== "b" }));
    expect(nextStart(["b", "c", "a"], report)).toBe("c");
    expect(nextStart(["a", "b", "c"], [{ name: "a", bornEmpty: false }])).toBeNull();
  });

  test("after a tick that died the module it died in comes last", () => {
    const orderAfter = (order: string[], diedIn: string) => rotate(order, nextStart(order, [], diedIn));
    expect(orderAfter(["a", "b", "c"], "a")).toEqual(["b", "c", "a"]);
    expect(orderAfter(["b", "c", "a"], "a")).toEqual(["b", "c", "a"]);
    expect(nextStart(["a", "b"], [{ name: "b", bornEmpty: true }], "gone")).toBe("b");
  });

  test("with 4 units for twelve modules nobody is offered nothing for more than 3 ticks in a row, however greedy", () => {
    const names = named(12).map(({ name }) => name);
    const tick = fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 12, maxLength: 12 });
    fc.assert(
      fc.property(fc.array(tick, { minLength: 1, maxLength: 30 }), (ticks) => {
        const hungry = new Map(names.map((name) => [name, 0]));
        let start: string | null = null;
        for (const asks of [...ticks, ...Array(12).fill(Array(12).fill(9))]) {
          const order = rotate(names, start);
          const split = createSplit(counted(4), named(12), 0);
          const report = order.map((name) => ({
            name,
            bornEmpty: turn(split, () => asks[names.indexOf(name)]) === 0,
          }));
          for (const { name, bornEmpty } of report) hungry.set(name, bornEmpty ? hungry.get(name)! + 1 : 0);
          expect(Math.max(...hungry.values())).toBeLessThanOrEqual(3);
          start = nextStart(order, report);
        }
      }),
    );
  });
});

describe("a warning", () => {
  const quiet: Turn = {
    share: { wallMs: 1_000, subrequests: 4, queries: 10 },
    charged: { subrequests: 1, queries: 3 },
    measured: { subrequests: 1, queries: 3 },
    bornEmpty: false,
    startedAt: 0,
    endedAt: 1_000,
    deadline: 1_000,
  };
  const empty: Turn = {
    ...quiet,
    share: { wallMs: 0, subrequests: 0, queries: 0 },
    charged: NONE,
    measured: NONE,
    bornEmpty: true,
    endedAt: 0,
    deadline: 0,
  };

  test("a turn within its share says nothing, even when it charged more than it used", () => {
    expect(warningFor(quiet)).toBeNull();
    expect(warningFor({ ...quiet, measured: NONE })).toBeNull();
  });

  test("the whole of a share was charged", () => {
    const all = { subrequests: 4, queries: 3 };
    expect(warningFor({ ...quiet, charged: all })).toEqual({ reason: "share used", amount: 4, unit: "subrequests" });
    const queries = { subrequests: 0, queries: 10 };
    expect(warningFor({ ...quiet, charged: queries, measured: queries })).toMatchObject({
      reason: "share used",
      amount: 10,
      unit: "queries",
    });
  });

  test("more was used than asked for: the larger excess is named", () => {
    const measured = { subrequests: 2, queries: 9 };
    expect(warningFor({ ...quiet, measured })).toEqual({ reason: "spent unasked", amount: 6, unit: "queries" });
  });

  test("the wall was overrun, from the first ms after the deadline", () => {
    expect(warningFor({ ...quiet, endedAt: 1_001 })).toEqual({ reason: "overran wall", amount: 1, unit: "ms" });
  });

  test("a module born empty that looks and returns is born empty, not over its wall; one that stays is", () => {
    expect(warningFor({ ...empty, endedAt: EMPTY_TURN_MS })).toEqual({
      reason: "born empty",
      amount: 0,
      unit: "subrequests",
    });
    expect(warningFor({ ...empty, endedAt: EMPTY_TURN_MS + 1 })).toMatchObject({ reason: "overran wall", amount: 101 });
    expect(warningFor({ ...empty, share: { ...UNBOUNDED, wallMs: 0 } })).toMatchObject({
      reason: "born empty",
      unit: "ms",
    });
  });

  test("what harms the others is said before what does not", () => {
    const all = { ...quiet, charged: { subrequests: 4, queries: 3 }, endedAt: 2_000 };
    expect(warningFor({ ...all, measured: { subrequests: 5, queries: 3 } })?.reason).toBe("spent unasked");
    expect(warningFor(all)?.reason).toBe("overran wall");
    const half = { ...quiet, share: { ...quiet.share, queries: 0 }, bornEmpty: true };
    expect(warningFor({ ...half, charged: { subrequests: 4, queries: 0 }, measured: NONE })?.reason).toBe("share used");
  });

  test("without bounds there is nothing to warn of", () => {
    expect(
      warningFor({ ...quiet, share: UNBOUNDED, deadline: null, measured: { subrequests: 99, queries: 99 } }),
    ).toBeNull();
  });
});
