import type { WriteStream } from "node:tty";

/** Between two lines where nothing can be redrawn, ms. */
const PLAIN_MS = 5_000;
const REDRAW_MS = 200;

/** Shows how far something is: one line that is redrawn on a terminal, a plain line now and then elsewhere. */
export interface Progress {
  /** Prints a line that stays. */
  say(line: string): void;
  end(): void;
}

export function startProgress(stream: WriteStream, line: () => string): Progress {
  const drawn = stream.isTTY === true;
  const clear = () => drawn && stream.write("\r\x1b[2K");
  const show = () => {
    const text = line();
    if (text === "") return;
    if (drawn) stream.write(`\r\x1b[2K${text.slice(0, Math.max(20, (stream.columns || 80) - 1))}`);
    else stream.write(`${text}\n`);
  };
  const timer = setInterval(show, drawn ? REDRAW_MS : PLAIN_MS);
  timer.unref();
  return {
    say(text) {
      clear();
      stream.write(`${text}\n`);
    },
    end() {
      clearInterval(timer);
      clear();
    },
  };
}
