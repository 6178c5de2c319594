import { type CheckoutEvidence, checkoutComplaints } from "./checkouts.ts";
import type { Plan } from "./plan.ts";
import { deliveryKey, pollKey, type Seen } from "./receiver.ts";
import { DELIVER, type Stored, type Ticks } from "./record.ts";
import { type ScheduleEvidence, scheduleComplaints } from "./schedules.ts";

/** What a demo came to: the one line of JSON. */
export interface Report {
  ok: boolean;
  /** Why not; absent when `ok`. */
  reason?: string;
  items: { enqueued: number; settled: number; dead: number; lost: number; repeated: number };
  /** Items by the path of their last delivery. */
  paths: { queue: number; drain: number };
  checkouts: { expired: number; revalidated: number; owed: number; quarantined: number };
  workflows: { id: string; status: string }[];
  firings: { schedule: string; outcome: string }[];
  ticks: number;
  maxPerTick: { subrequests: number; queries: number };
  seconds: number;
}

/** What is known when a demo ends. `null` where it did not come that far. */
export interface Evidence {
  plan: Plan;
  seen: Seen;
  /** Items that were stored before the first tick. */
  enqueued: number;
  /** Items that had succeeded when the last tick of the drain ended. */
  drained: number;
  stored: Stored | null;
  ticks: Ticks | null;
  schedules: ScheduleEvidence | null;
  /** `null` when there are no checkouts to expire. */
  checkouts: CheckoutEvidence | null;
  seconds: number;
}

/** What one tick may use on the platform's Free plan, of each. */
const PER_TICK = 50;

/** Works out the report: from what the receivers have seen and what is stored, and nothing else. Pure. */
export function account(evidence: Evidence): Report {
  const { seen, enqueued, drained, stored, ticks, schedules, checkouts, seconds } = evidence;
  const settled = seen.succeeded.size;
  const dead = stored?.deadLetters.length ?? 0;
  const repeated = [...seen.succeeded.values()].filter((times) => times > 1).length;
  // After an early end some are still on their way, and not lost.
  const underWay = stored === null ? enqueued - settled - dead : underWayOf(stored);
  const lost = Math.max(0, enqueued - settled - dead - underWay);
  const reasons = complaints(evidence);
  return {
    ok: reasons.length === 0,
    ...(reasons.length > 0 && { reason: reasons.join("; ") }),
    items: { enqueued, settled, dead, lost, repeated },
    paths: { queue: settled + dead - drained, drain: drained },
    checkouts: {
      expired: checkouts?.stored?.expired ?? 0,
      revalidated: checkouts?.seen.revalidated.size ?? 0,
      owed: checkouts?.stored?.owed ?? 0,
      quarantined: checkouts?.stored?.quarantined.length ?? 0,
    },
    workflows: [...(schedules?.instances ?? []), ...(checkouts?.instances ?? [])],
    firings: (schedules?.firings ?? []).map(({ schedule, outcome }) => ({ schedule, outcome })),
    ticks: ticks?.ticks ?? 0,
    maxPerTick: ticks?.maxPerTick ?? { subrequests: 0, queries: 0 },
    seconds,
  };
}

function underWayOf({ outbox }: Stored): number {
  return outbox.ready + outbox.leased;
}

/** Everything that is not as it must be, one sentence each. */
function complaints({ plan, seen, enqueued, drained, stored, ticks, schedules, checkouts }: Evidence): string[] {
  if (stored === null || ticks === null || schedules === null) return ["it did not come to an end"];
  const found: string[] = [];
  const hold = (fine: boolean, complaint: string) => fine || found.push(complaint);
  const planned = [...plannedKeys(plan)];
  const missing = planned.filter((key) => !seen.succeeded.has(key));
  const [deadKey] = missing;

  hold(enqueued === planned.length, `${planned.length} items were enqueued and ${enqueued} were stored`);
  hold(
    missing.length === 1 && deadKey === deliveryKey(0, 0),
    `${missing.length} items never succeeded, where one is meant to: ${missing.slice(0, 5).join(", ")}`,
  );
  hold(seen.complaints.length === 0, `the receiver complains ${seen.complaints.length} times: ${seen.complaints[0]}`);
  hold(underWayOf(stored) === 0, `${underWayOf(stored)} items are still on their way`);
  const [letter] = stored.deadLetters;
  hold(
    stored.deadLetters.length === 1 && letter?.topic === DELIVER,
    `${stored.deadLetters.length} items are dead, where one is meant to be: ${letter?.topic} ${letter?.reason}`,
  );
  const deadAttempts = seen.failed.get(deliveryKey(0, 0)) ?? 0;
  hold(
    letter === undefined || letter.attempts === deadAttempts,
    `the dead letter counts ${letter?.attempts} attempts and the receiver ${deadAttempts}`,
  );
  const { pollers } = stored.outbox;
  hold(pollers === plan.merchants, `${pollers} of ${plan.merchants} pollers wait for their next period`);
  const deliveries = plan.endpoints * plan.events - 1;
  hold(stored.delivered === deliveries, `the log has ${stored.delivered} deliveries, the receiver ${deliveries}`);
  hold(stored.polled === plan.merchants, `${stored.polled} of ${plan.merchants} accounts are stored as polled`);
  hold(drained <= ticks.drained, `the ticks' records account for ${ticks.drained} of ${drained} drained items`);
  for (const what of ["subrequests", "queries"] as const) {
    const most = ticks.maxPerTick[what];
    hold(most <= PER_TICK, `a tick used ${most} ${what}, and the platform allows ${PER_TICK}`);
  }
  hold(ticks.failed === 0, `${ticks.failed} parts of ticks failed`);
  found.push(...scheduleComplaints(schedules));
  if (checkouts !== null) found.push(...checkoutComplaints(checkouts));
  return found;
}

function* plannedKeys({ endpoints, events, merchants }: Plan): Generator<string> {
  for (let endpoint = 0; endpoint < endpoints; endpoint += 1) {
    for (let event = 0; event < events; event += 1) yield deliveryKey(endpoint, event);
  }
  for (let merchant = 0; merchant < merchants; merchant += 1) yield pollKey(merchant);
}
