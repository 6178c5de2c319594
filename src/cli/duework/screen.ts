/** Where a program's words go: what people read to `out`, what is about the program itself to `err`. */
export interface Screen {
  out(text: string): void;
  err(text: string): void;
  /** A person looks at `out`, through a window of so many columns; null = it goes into a pipe or a file. */
  readonly columns: number | null;
  readonly color: boolean;
}

/** Columns of a terminal that does not say how many it has. */
const USUAL_COLUMNS = 80;

/** The process's own. */
export function processScreen({ stdout, stderr, env }: NodeJS.Process): Screen {
  return {
    out: (text) => void stdout.write(text),
    err: (text) => void stderr.write(text),
    columns: stdout.isTTY ? stdout.columns || USUAL_COLUMNS : null,
    color: stdout.isTTY === true && !env.NO_COLOR && env.TERM !== "dumb",
  };
}

const CODES = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33 } as const;

/** The text in a style, where colours are wanted. */
export function styled({ color }: Screen, style: keyof typeof CODES, text: string): string {
  return color ? `\u001b[${CODES[style]}m${text}\u001b[0m` : text;
}
