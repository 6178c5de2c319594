/** Between two looks at who our parent is, ms. */
const LOOK_MS = 100;

/**
 * Aborts when this program is asked to end: by a signal, or because the shell that npm ran it in is gone. A TERM that
 * is sent to npm alone ends that shell and never comes here.
 */
export function createEnding(): AbortController {
  const ending = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => ending.abort(new Error(`stopped by ${signal}`)));
  }
  const parent = process.ppid;
  if (process.env.npm_lifecycle_event !== undefined) {
    const timer = setInterval(() => {
      if (process.ppid !== parent) ending.abort(new Error("stopped: npm is gone"));
    }, LOOK_MS);
    timer.unref();
  }
  return ending;
}
