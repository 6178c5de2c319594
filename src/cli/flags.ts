/** A command line that cannot be followed: one sentence why. Ends the program with 2. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

/** Exit codes of every program here. */
export const EXIT = { done: 0, refused: 1, usage: 2, unreachable: 3 } as const;

/**
 * A flag's whole number.
 * @throws UsageError when it is none, or out of range
 */
export function wholeNumber(flag: string, text: unknown, least: number, most: number): number {
  const value = typeof text === "string" && /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
  if (value >= least && value <= most) return value;
  const given = typeof text === "string" ? `"${text}"` : "nothing";
  throw new UsageError(`${flag} takes a whole number from ${least} to ${most}, not ${given}`);
}

/** Runs a program to its end and sets the exit code it answers. What it throws is told in one sentence. */
export async function runProgram(name: string, program: () => Promise<number>): Promise<void> {
  try {
    process.exitCode = await program();
  } catch (error) {
    const usage = error instanceof UsageError || isParseArgsError(error);
    process.stderr.write(`${name}: ${error instanceof Error ? error.message : String(error)}\n`);
    if (usage) process.stderr.write(`${name}: --help says what it takes\n`);
    process.exitCode = usage ? EXIT.usage : EXIT.refused;
  }
}

function isParseArgsError(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" && code.startsWith("ERR_PARSE_ARGS_");
}
