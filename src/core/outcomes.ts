/**
 * How a delivery ended. A closed union: a handler answers one of these, or throws (which is `retryAt` with the
 * topic's backoff), or answers nothing (which is `done`).
 *
 * `note` travels to the topic's `onSettle` and nowhere else: what a module wants to record about this delivery.
 */
export type Outcome =
  | { readonly kind: "done"; readonly note?: unknown }
  | { readonly kind: "nextAt"; readonly at: number; readonly note?: unknown }
  | {
      readonly kind: "retryAt";
      /** When to try again, ms; null = the topic's backoff decides. */
      readonly at: number | null;
      /** Not before this instant, ms, whatever the backoff says (the other side's Retry-After). */
      readonly notBefore: number | null;
      readonly error: string;
      readonly note?: unknown;
    }
  | { readonly kind: "dead"; readonly reason: string; readonly error: string; readonly note?: unknown };

/** The item is finished and its row is gone. */
export function done(note?: unknown): Outcome {
  return { kind: "done", note };
}

/** The per-item cursor: a success that moves the row to `at` (ms). Counts nothing; attempts go back to 0. */
export function nextAt(at: number, note?: unknown): Outcome {
  return { kind: "nextAt", at, note };
}

/** A failure, counted, tried again at exactly `at` (ms). */
export function retryAt(at: number, error: string, note?: unknown): Outcome {
  return { kind: "retryAt", at, notBefore: null, error, note };
}

/** A failure, counted, tried again when the topic's backoff says, never before `notBefore` (ms). */
export function retryLater(error: string, options: { notBefore?: number | null; note?: unknown } = {}): Outcome {
  return { kind: "retryAt", at: null, notBefore: options.notBefore ?? null, error, note: options.note };
}

/**
 * The item can never succeed: it goes to the dead letters with this reason, one of the module's own words. The runtime
 * itself gives `attempts_exhausted`, `deliveries_exhausted`, `malformed` and `too_old`.
 */
export function dead(reason: string, error = "", note?: unknown): Outcome {
  return { kind: "dead", reason, error, note };
}

const isInstant = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/**
 * What a handler really answered, held to the union. Anything else (a NaN instant, an unknown kind, a rounding error
 * in ms) is a sentence for the log; the caller counts it as a failed attempt.
 */
export function readOutcome(answer: unknown): { ok: true; outcome: Outcome } | { ok: false; problem: string } {
  if (answer === undefined || answer === null) return { ok: true, outcome: { kind: "done" } };
  if (typeof answer !== "object") return { ok: false, problem: `the handler answered a ${typeof answer}` };
  const outcome = answer as { kind?: unknown; at?: unknown; notBefore?: unknown; reason?: unknown };
  switch (outcome.kind) {
    case "done":
      return { ok: true, outcome: answer as Outcome };
    case "nextAt":
      return isInstant(outcome.at)
        ? { ok: true, outcome: answer as Outcome }
        : { ok: false, problem: "nextAt needs whole milliseconds since 1970" };
    case "retryAt": {
      const fits = (value: unknown) => value === null || isInstant(value);
      return fits(outcome.at) && fits(outcome.notBefore)
        ? { ok: true, outcome: answer as Outcome }
        : { ok: false, problem: "retryAt needs whole milliseconds since 1970" };
    }
    case "dead":
      return typeof outcome.reason === "string" && outcome.reason !== ""
        ? { ok: true, outcome: answer as Outcome }
        : { ok: false, problem: "dead needs a reason" };
    default:
      return { ok: false, problem: "the handler answered something that is not an outcome" };
  }
}
