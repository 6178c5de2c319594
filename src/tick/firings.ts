import type { Dispatcher } from "../commands/dispatcher.ts";
import type { OpenRun } from "../commands/runs.ts";
import { errorText } from "../core/text.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { fireDue } from "../schedules/fire.ts";
import { makeGood } from "../schedules/make-good.ts";
import type { ScheduleRow } from "../schedules/rows.ts";

export interface Firings {
  claimed: number;
  /** Runs that could not be started, and parts that ended in an error. */
  failed: number;
}

/**
 * The tick's part about stored schedules: fires what is due, then makes good the runs that an earlier tick left. It waits
 * for no run. What fails is logged, and is due still at the next tick.
 */
export async function fireSchedules(
  invocation: Invocation,
  dispatcher: Dispatcher | null,
  { schedules, runs }: { schedules: readonly ScheduleRow[]; runs: readonly OpenRun[] },
): Promise<Firings> {
  const firings: Firings = { claimed: 0, failed: 0 };
  if (dispatcher === null) return firings;
  const part = async (work: () => Promise<void>) => {
    try {
      await work();
    } catch (error) {
      firings.failed += 1;
      invocation.runtime.ports.log({ event: "firing_failed", level: "error", error: errorText(error) });
    }
  };
  if (schedules.length > 0) {
    await part(async () => {
      const { claimed, failed } = await fireDue(invocation, dispatcher, schedules);
      firings.claimed = claimed;
      firings.failed += failed;
    });
  }
  if (runs.length > 0) {
    await part(async () => {
      firings.failed += await makeGood(invocation, dispatcher, runs);
    });
  }
  return firings;
}
