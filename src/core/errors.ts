/**
 * A refusal that a caller can act on: `code` is stable, `field` names what was wrong (`items[2].payload.at`,
 * `DUEWORK_TOKENS`), `message` is one sentence for a person. Thrown only where a value cannot be returned; most
 * operations answer with a {@link Refusal} instead.
 */
export class DueworkError extends Error {
  override readonly name = "DueworkError";
  readonly code: string;
  readonly field: string;

  constructor(code: string, field: string, message: string) {
    super(message);
    this.code = code;
    this.field = field;
  }
}

/** The value form of a refusal. `code` is the closed set of the operation that answers it. */
export interface Refusal<Code extends string = string> {
  ok: false;
  code: Code;
  field: string;
  message: string;
}

/** Builds a {@link Refusal}. */
export function refuse<Code extends string>(code: Code, field: string, message: string): Refusal<Code> {
  return { ok: false, code, field, message };
}

/** For the `default` of a switch over a closed union: a new member breaks the build here, an impossible one throws. */
export function unreachable(value: never): never {
  throw new Error(`unreachable: ${JSON.stringify(value)}`);
}
