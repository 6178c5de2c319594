import { type Amounts, amountsOf, type Budget, COUNTED, createBudget, type Limits, less } from "./budget.ts";
import { type Refusal, refuse } from "./errors.ts";

/** The least share that a module is worth starting with; what it does not name is 0. Whole numbers, `wallMs` in ms. */
export interface Floor {
  readonly wallMs?: number;
  readonly subrequests?: number;
  readonly queries?: number;
}

/** A module as the split sees it. */
export interface Sharer {
  readonly name: string;
  readonly floor?: Floor | null;
}

/** What a module is offered at its turn. */
interface Offer {
  budget: Budget;
  /** What the budget began with; null = unbounded. */
  share: Limits;
  /** Offered nothing: below its floor, or nothing left in a bounded dimension, or no wall time. */
  bornEmpty: boolean;
}

/**
 * One tick's limits, shared out to modules one after another. Shares are offers and overlap; only what is spent
 * leaves the pool, so what one module does not use rolls forward to those behind it.
 */
export interface Split {
  /** The share of the module whose turn it is. Beyond the last module: a dead budget. `now` is ms. */
  next(now: number): Offer;
  /** Ends the turn: what the module charged, or really used if that is more, leaves the pool. */
  settle(budget: Budget, measured: Readonly<Amounts>): void;
  /** Takes the runtime's own spending out of the pool: before the first module, or between two. */
  charge(spent: { readonly subrequests?: number; readonly queries?: number }): void;
}

const DIMENSIONS = ["subrequests", "queries", "wallMs"] as const;
type Dimension = (typeof DIMENSIONS)[number];

/**
 * Shares `limits` out over `modules`, which stand in this tick's order.
 * @param start when the tick began, ms: its wall time counts from here
 */
export function createSplit(limits: Limits, modules: readonly Sharer[], start: number): Split {
  const end = limits.wallMs === null ? null : start + limits.wallMs;
  const left = { subrequests: limits.subrequests, queries: limits.queries };
  let turn = 0;
  const take = (spent: Readonly<Amounts>) => {
    for (const each of COUNTED) left[each] = less(left[each], spent[each]);
  };
  return {
    next(now) {
      const waiting = modules.slice(turn);
      const pool: Limits = { ...left, wallMs: end === null ? null : Math.max(0, end - now) };
      const floors = (each: Dimension) => waiting.map(({ floor }) => floor?.[each] ?? 0);
      const below = DIMENSIONS.some((each) => (pool[each] ?? Number.POSITIVE_INFINITY) < (floors(each)[0] ?? 0));
      if (waiting.length === 0 || below) return nothing(now);
      const share: Limits = {
        wallMs: shareOf(pool.wallMs, floors("wallMs")),
        subrequests: shareOf(pool.subrequests, floors("subrequests")),
        queries: shareOf(pool.queries, floors("queries")),
      };
      const deadline = share.wallMs === null ? null : now + share.wallMs;
      const budget = createBudget({ deadline, subrequests: share.subrequests, queries: share.queries });
      return { budget, share, bornEmpty: budget.exhausted(now) };
    },
    settle({ spent }, measured) {
      const used = amountsOf(measured);
      take({
        subrequests: Math.max(spent.subrequests, used.subrequests),
        queries: Math.max(spent.queries, used.queries),
      });
      turn += 1;
    },
    charge: (spent) => take(amountsOf(spent)),
  };
}

/**
 * An even part of what is left, rounded up, and at least the module's own floor; but the floors of the modules behind
 * stay in the pool. When not all of those fit any more (the runtime, or a module, used more than it should), the ones
 * nearer to their turn are kept and the others are given up: so a shortage passes over each module in turn, and never
 * over the same one tick after tick.
 * @param floors of the modules still to run, the one whose turn it is first; `left` holds at least that one
 */
function shareOf(left: number | null, floors: readonly number[]): number | null {
  if (left === null) return null;
  const [own = 0, ...behind] = floors;
  let kept = 0;
  for (const floor of behind) if (own + kept + floor <= left) kept += floor;
  return Math.min(Math.max(Math.ceil(left / floors.length), own), left - kept);
}

function nothing(now: number): Offer {
  return {
    budget: createBudget({ deadline: now, subrequests: 0, queries: 0 }),
    share: { wallMs: 0, subrequests: 0, queries: 0 },
    bornEmpty: true,
  };
}

/**
 * Holds the modules' floors together against the limits less what the runtime keeps for itself. They must all fit in
 * one tick; and where some module has no floor, one unit must be left over, or it would never be offered anything.
 * The refusal's field is the dimension, or `<module>.floor.<dimension>` for a floor that is no whole number.
 */
export function checkFloors(
  limits: Limits,
  modules: readonly Sharer[],
  reserve: Floor,
): { ok: true } | Refusal<"bad_floors"> {
  for (const each of DIMENSIONS) {
    const floors = modules.map(({ name, floor }) => ({ name, least: floor?.[each] ?? 0 }));
    const wrong = floors.find(({ least }) => !Number.isSafeInteger(least) || least < 0);
    if (wrong) return refuse("bad_floors", `${wrong.name}.floor.${each}`, "a floor is a whole number from 0");
    const declared = floors.filter(({ least }) => least > 0);
    const limit = limits[each];
    if (limit === null || declared.length === 0) continue;
    const room = Math.max(0, limit - (reserve[each] ?? 0));
    const sum = declared.reduce((total, { least }) => total + least, 0);
    const bare = floors.find(({ least }) => least === 0);
    if (sum > room || (sum === room && bare)) {
      const who = declared.map(({ name, least }) => `${name} (${least})`).join(", ");
      const others = sum > room ? "" : `, and nothing would be left for ${bare?.name}`;
      return refuse(
        "bad_floors",
        each,
        `the floors of ${who} need ${sum} ${each} of the ${room} that modules share${others}`,
      );
    }
  }
  return { ok: true };
}

/** The names in the same circle, beginning with `startAt`; as they are when that is null or not among them. */
export function rotate(names: readonly string[], startAt: string | null): string[] {
  const at = startAt === null ? -1 : names.indexOf(startAt);
  return at < 0 ? [...names] : [...names.slice(at), ...names.slice(0, at)];
}

/**
 * Where the next tick starts. After a tick that ended: at the first module, in its order, that was offered nothing.
 * After one that died in `diedIn`: at the first that it did not reach, so that the module it died in comes last.
 * Null = in the order of registration: everyone had a turn.
 * @param order of the tick that ended
 */
export function nextStart(
  order: readonly string[],
  report: readonly { readonly name: string; readonly bornEmpty: boolean }[],
  diedIn?: string,
): string | null {
  if (diedIn !== undefined && order.includes(diedIn)) return order[(order.indexOf(diedIn) + 1) % order.length] ?? null;
  const empty = new Set(report.filter(({ bornEmpty }) => bornEmpty).map(({ name }) => name));
  return order.find((name) => empty.has(name)) ?? null;
}

/** Why a module's turn is worth a word. */
type WarningReason = "spent unasked" | "overran wall" | "share used" | "born empty";

/** One warning: so much of that unit. */
export interface Warning {
  reason: WarningReason;
  amount: number;
  unit: "subrequests" | "queries" | "ms";
}

/** How a module's turn went. Instants are ms. */
export interface Turn {
  share: Limits;
  charged: Readonly<Amounts>;
  measured: Readonly<Amounts>;
  bornEmpty: boolean;
  startedAt: number;
  endedAt: number;
  deadline: number | null;
}

/** What a module that was born without wall time may take to see that and return, ms; longer than this is an overrun. */
export const EMPTY_TURN_MS = 100;

/**
 * The one thing most worth saying about a turn, or null. The harm to others comes first:
 * 1. `spent unasked`: used more than it charged, in a bounded dimension; the amount is the larger excess;
 * 2. `overran wall`: ended after its deadline; the amount is by how much, ms;
 * 3. `share used`: charged the whole of a share, so it may have had more to do; the amount is that share;
 * 4. `born empty`: offered nothing; the amount is 0, of the dimension it had none of.
 */
export function warningFor({
  share,
  charged,
  measured,
  bornEmpty,
  startedAt,
  endedAt,
  deadline,
}: Turn): Warning | null {
  const bounded = COUNTED.filter((unit) => share[unit] !== null);
  const excess = bounded
    .map((unit) => ({ unit, amount: measured[unit] - charged[unit] }))
    .filter(({ amount }) => amount > 0)
    .sort((a, b) => b.amount - a.amount)[0];
  if (excess) return { reason: "spent unasked", ...excess };

  const grace = deadline !== null && deadline <= startedAt ? EMPTY_TURN_MS : 0;
  if (deadline !== null && endedAt > deadline + grace) {
    return { reason: "overran wall", amount: endedAt - deadline, unit: "ms" };
  }
  const whole = bounded.find((unit) => charged[unit] > 0 && charged[unit] >= (share[unit] ?? 0));
  if (whole) return { reason: "share used", amount: charged[whole], unit: whole };
  if (!bornEmpty) return null;
  return { reason: "born empty", amount: 0, unit: bounded.find((unit) => share[unit] === 0) ?? "ms" };
}
