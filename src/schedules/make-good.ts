import { launch } from "../commands/dispatch.ts";
import type { Dispatcher } from "../commands/dispatcher.ts";
import { endAndTell } from "../commands/run.ts";
import { closeNotStarted, type OpenRun, putChecked, RUN_MS, START_WITHIN_MS } from "../commands/runs.ts";
import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { markClaimed } from "./firings.ts";

/** A Workflow that takes longer to say how an instance is, is asked again later, ms. */
const STATUS_MS = 3 * SECOND;
/** A tick that has made more statements by now leaves looking after running instances to a quieter one. */
const QUERIES_BEFORE_A_LOOK = 16;
/** What an instance is in while it may still end its run. */
const ALIVE = new Set(["queued", "running", "paused", "waiting", "waitingForPause"]);

/**
 * Makes good what an earlier tick or request left: an admitted run without an instance gets it, under the same id; one
 * that nobody began in ten minutes is closed, and its firing is shown as claimed and not started; one whose instance has
 * gone is closed as lost. Answers how many of them failed.
 */
export async function makeGood(
  invocation: Invocation,
  dispatcher: Dispatcher,
  open: readonly OpenRun[],
): Promise<number> {
  const { db, now, meter, runtime } = invocation;
  const admitted = open.filter(({ status }) => status === "admitted");
  const late = admitted.filter(({ admitted_at }) => admitted_at <= now - START_WITHIN_MS);
  if (late.length > 0) {
    const [claimed, closed] = await db.batch([markClaimed(db, now), closeNotStarted(db, now)]);
    for (const { id, command } of (closed?.results ?? []) as { id: string; command: string }[]) {
      runtime.ports.log({
        event: "run_not_started",
        level: "error",
        run: id,
        command,
        error: "nobody began it in time",
      });
    }
    for (const { name } of (claimed?.results ?? []) as { name: string }[]) {
      runtime.ports.log({ event: "schedule_not_started", level: "error", schedule: name });
    }
  }
  const waiting = admitted.filter((run) => !late.includes(run)).map(({ id }) => id);
  const failed = waiting.length === 0 ? 0 : await launch(invocation, dispatcher, waiting);
  const quiet = meter.queries <= QUERIES_BEFORE_A_LOOK;
  // However busy the ticks are, nobody holds a thread for longer than a run may take.
  const running = open.filter((run) => run.status === "running" && (quiet || outlasted(run, now)));
  for (const run of running) await look(invocation, dispatcher, run);
  if (running.length > 0) {
    const ids = running.map(({ id }) => id);
    await putChecked(db, ids, now).run();
  }
  return failed;
}

function outlasted({ started_at }: OpenRun, now: number): boolean {
  return (started_at ?? now) <= now - RUN_MS;
}

/** Looks whether a running run's instance is still there; it was, so asking for it makes no phantom. */
async function look(invocation: Invocation, { runs, channels }: Dispatcher, run: OpenRun): Promise<void> {
  const { now, meter } = invocation;
  const gone = (error: string) =>
    endAndTell(invocation, channels, run.id, { status: "lost", result: null, error: `its instance ${error}` });
  if (outlasted(run, now)) {
    await gone("outlasted the time of a run");
    return;
  }
  if (runs === null) return;
  meter.subrequests += 1;
  try {
    const asked = runs.get(run.id).then((instance) => instance.status());
    const { status } = await withDeadline(asked, STATUS_MS, "the Workflow");
    if (!ALIVE.has(status)) await gone(`is ${status}`);
  } catch (error) {
    const text = errorText(error);
    if (text.includes("instance.not_found")) await gone("is not there");
  }
}
