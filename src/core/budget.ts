import { type Refusal, refuse } from "./errors.ts";
import { SECOND } from "./time.ts";

/**
 * What one unit of work costs: `subrequests` (outbound fetches and queue sends) and `queries` (D1 statements), whole
 * numbers from 0. A plain number means subrequests.
 */
export type Cost = number | { readonly subrequests?: number; readonly queries?: number };

/** A count in each dimension that is spent by asking. */
export interface Amounts {
  subrequests: number;
  queries: number;
}

/** The two dimensions that are counted; wall time is the third, and passes by itself. */
export const COUNTED = ["subrequests", "queries"] as const;

/** What an invocation, or a module's share of it, may use. Null = unbounded. */
export interface Limits {
  /** ms */
  readonly wallMs: number | null;
  /** Outbound fetches and queue sends. */
  readonly subrequests: number | null;
  /** D1 statements. */
  readonly queries: number | null;
}

/** No bound at all: off the platform, and everywhere outside a tick. */
export const UNBOUNDED: Limits = Object.freeze({ wallMs: null, subrequests: null, queries: null });

/**
 * What a tick has unless it is told otherwise. The Free plan ends an invocation at 50 subrequests and at 50 D1
 * statements: 40 leaves room for what nobody counted. 25 s ends a tick well before the next one begins.
 */
export const DEFAULT_LIMITS: Limits = Object.freeze({ wallMs: 25 * SECOND, subrequests: 40, queries: 40 });

/**
 * What a piece of work may still spend. Cooperative: nothing is cancelled, the work asks before each unit and stops
 * when it is refused. Time is asked apart from the counts: {@link Budget.trySpend} does not look at the clock.
 */
export interface Budget {
  /** The instant from which the budget is expired, ms; null = never. */
  readonly deadline: number | null;
  /** What was spent by asking. Only grows, and never beyond what was given. */
  readonly spent: Readonly<Amounts>;
  /** What is left; null = unbounded. */
  readonly remaining: { readonly subrequests: number | null; readonly queries: number | null };
  /**
   * Spends all of `cost`, or answers false and spends nothing of it.
   * @throws RangeError for a cost that is negative, fractional or NaN: no budget can mean that
   */
  trySpend(cost: Cost): boolean;
  /** True from the deadline instant itself on. `now` is ms. */
  expired(now: number): boolean;
  /** Expired, or a bounded dimension has nothing left. */
  exhausted(now: number): boolean;
  /**
   * How many units of that cost what is left carries; null = any number. A dimension the unit does not use bounds
   * nothing.
   * @throws RangeError as {@link Budget.trySpend}
   */
  affords(cost: Cost): number | null;
}

/**
 * A budget with nothing spent.
 * @param given deadline in ms and the most of each dimension; null = unbounded
 * @throws RangeError for a count that is not a whole number from 0, or a deadline that is NaN
 */
export function createBudget(given: {
  deadline: number | null;
  subrequests: number | null;
  queries: number | null;
}): Budget {
  const { deadline } = given;
  if (Number.isNaN(deadline)) throw new RangeError("a deadline is an instant in ms, not NaN");
  const left = { subrequests: wholeOrNull(given.subrequests), queries: wholeOrNull(given.queries) };
  const spent: Amounts = { subrequests: 0, queries: 0 };
  const expired = (now: number) => deadline !== null && now >= deadline;
  return {
    deadline,
    get spent() {
      return { ...spent };
    },
    get remaining() {
      return { ...left };
    },
    trySpend(cost) {
      const asked = amountsOf(cost);
      if (COUNTED.some((each) => asked[each] > (left[each] ?? Number.POSITIVE_INFINITY))) return false;
      for (const each of COUNTED) {
        spent[each] = Math.min(spent[each] + asked[each], Number.MAX_SAFE_INTEGER);
        left[each] = less(left[each], asked[each]);
      }
      return true;
    },
    expired,
    exhausted: (now) => expired(now) || COUNTED.some((each) => left[each] === 0),
    affords(cost) {
      const unit = amountsOf(cost);
      const units = COUNTED.flatMap((each) => {
        const rest = left[each];
        return rest === null || unit[each] === 0 ? [] : [Math.floor(rest / unit[each])];
      });
      return units.length === 0 ? null : Math.min(...units);
    },
  };
}

/** A budget that refuses nothing and never expires. It still counts what is spent. */
export function unboundedBudget(): Budget {
  return createBudget({ deadline: null, subrequests: null, queries: null });
}

/**
 * A cost in both dimensions.
 * @throws RangeError for a count that is negative, fractional or NaN
 */
export function amountsOf(cost: Cost): Amounts {
  const { subrequests = 0, queries = 0 } = typeof cost === "number" ? { subrequests: cost } : cost;
  return { subrequests: whole(subrequests), queries: whole(queries) };
}

/** `amount` less `taken`, never below 0; unbounded stays unbounded. */
export function less(amount: number | null, taken: number): number | null {
  return amount === null ? null : Math.max(0, amount - taken);
}

function whole(count: number): number {
  if (Number.isSafeInteger(count) && count >= 0) return count;
  throw new RangeError(`a cost is a whole number from 0, not ${String(count)}`);
}

function wholeOrNull(count: number | null): number | null {
  return count === null ? null : whole(count);
}

/**
 * Reads limits as a setting gives them: the word `unbounded`, an object `{wallMs, subrequests, queries}`, or either as
 * JSON text. A key that is missing keeps its default, null is unbounded, nothing at all is {@link DEFAULT_LIMITS}.
 * A refusal names the key, or `limits` when it is about all of it.
 */
export function parseLimits(value: unknown): { ok: true; limits: Limits } | Refusal<"bad_limits"> {
  if (value === undefined) return { ok: true, limits: DEFAULT_LIMITS };
  const given = typeof value === "string" ? fromText(value) : value;
  if (given === "unbounded") return { ok: true, limits: UNBOUNDED };
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    return refuse("bad_limits", "limits", 'limits are {"wallMs", "subrequests", "queries"} or "unbounded"');
  }
  const limits: Record<string, number | null> = { ...DEFAULT_LIMITS };
  for (const [key, limit] of Object.entries(given)) {
    if (!Object.hasOwn(DEFAULT_LIMITS, key)) {
      return refuse("bad_limits", key, `limits have wallMs, subrequests and queries, not ${key}`);
    }
    if (limit === undefined) continue;
    const least = key === "wallMs" ? 1 : 0;
    if (limit !== null && !(Number.isSafeInteger(limit) && limit >= least)) {
      return refuse("bad_limits", key, `${key} is a whole number from ${least}, or null for no bound`);
    }
    limits[key] = limit;
  }
  return { ok: true, limits: limits as unknown as Limits };
}

function fromText(text: string): unknown {
  if (text.trim() === "unbounded") return "unbounded";
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
