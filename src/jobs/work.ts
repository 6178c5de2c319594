import { exchange } from "../core/exchange.ts";
import { errorText } from "../core/text.ts";
import { SECOND } from "../core/time.ts";
import { meterFetch } from "../db/network.ts";
import type { Verdict } from "../outbox/consume.ts";
import { contextFor, type Invocation } from "../outbox/runtime.ts";
import { tellOfJob } from "./alerts.ts";
import type { ActiveJob } from "./selection.ts";
import type { SlotMessage } from "./message.ts";
import { type Completion, completeSlot, mayGoOn, type Slot, startSlot } from "./slots.ts";

/** Kept before a slot's deadline for writing its completion, ms. */
const COMPLETE_MARGIN_MS = 5 * SECOND;
/** Of the route's answer only its status counts; this much of the body is read for the log, bytes. */
const ROUTE_BODY_BYTES = 1_024;

/**
 * Works a slot of a `route` or `module` job: begins it, once, works it within its deadline, and completes it. Answers
 * `stale` when there was nothing to begin: a message that came twice or late, a job that was stopped.
 * @param until a deadline of the caller's own, ms, when it is earlier than the slot's
 * @throws what D1 throws when the slot cannot be begun
 */
export async function workSlot(
  invocation: Invocation,
  active: ActiveJob,
  message: Pick<SlotMessage, "job" | "slot" | "generation">,
  until: number | null = null,
): Promise<"worked" | "stale"> {
  const { db, runtime } = invocation;
  const { clock, log } = runtime.ports;
  const { results } = await startSlot(db, message, clock()).all<Slot & { processor: string }>();
  const [slot] = results;
  if (slot === undefined) return "stale";
  const completion = await workWithin(
    invocation,
    active,
    slot,
    Math.min(slot.deadline - COMPLETE_MARGIN_MS, until ?? slot.deadline) - clock(),
  );
  const { result, detail } = completion;
  log({
    event: "slot_completed",
    level: result === "succeeded" ? "info" : "warn",
    job: slot.job,
    slot: slot.slot,
    result,
    detail,
  });
  try {
    const [ended] = await db.batch(completeSlot(db, slot, completion, clock()));
    tellOfJob(runtime.ports, slot, ended);
  } catch (error) {
    // Not confirmed is not done: the next claim charges the slot `unknown`.
    log({ event: "complete_failed", level: "error", job: slot.job, slot: slot.slot, error: errorText(error) });
  }
  return "worked";
}

/** Wait before a slot's message is tried again when D1 could not be reached before its begin, s. */
const RETRY_SECONDS = 10;

/** One slot's message: worked, stale, or of a job that is not on here (its slot is then charged `unknown`). */
export async function consumeSlot(
  invocation: Invocation,
  jobs: readonly ActiveJob[],
  message: SlotMessage,
): Promise<Verdict> {
  const { log } = invocation.runtime.ports;
  const { job, slot } = message;
  const active = jobs.find((one) => one.job.id === job);
  if (active === undefined) {
    log({ event: "message_refused", level: "error", problem: `the job ${job} is not on` });
    return { kind: "ack" };
  }
  try {
    const came = await workSlot(invocation, active, message);
    if (came === "stale") log({ event: "message_stale", level: "info", job, slot });
    return { kind: "ack" };
  } catch (error) {
    log({ event: "begin_failed", level: "warn", job, slot, error: errorText(error) });
    return { kind: "retry", delaySeconds: RETRY_SECONDS };
  }
}

const succeeded: Completion = { result: "succeeded", progress: true, detail: {} };
const failed = (error: string): Completion => ({ result: "failed", progress: false, detail: { error } });

async function workWithin(invocation: Invocation, { work }: ActiveJob, slot: Slot, ms: number): Promise<Completion> {
  if (ms <= 0) return failed("it began after its deadline");
  const cut = new AbortController();
  const late = Promise.withResolvers<Completion>();
  const timer = setTimeout(() => {
    cut.abort(new Error("the slot's deadline passed"));
    late.resolve(failed("the slot's deadline passed"));
  }, ms);
  try {
    const { meter, runtime } = invocation;
    const fetch = meterFetch(runtime.ports.fetch, meter, cut.signal);
    if (work.kind === "route") return await callRoute(fetch, work, ms);
    if (work.kind === "workflow") return failed("a Workflow's slot is not worked here");
    const context = {
      ...contextFor(invocation, "jobs"),
      fetch,
      signal: cut.signal,
      mayGoOn: () => mayGoOn(invocation.db, slot),
    };
    return (await Promise.race([work.handle(slot, context), late.promise])) ?? succeeded;
  } catch (error) {
    return failed(errorText(error));
  } finally {
    clearTimeout(timer);
  }
}

/** An empty object for a body, and a User-Agent: proxies in front of apps refuse a POST without either. */
async function callRoute(
  fetch: ReturnType<typeof meterFetch>,
  { url, secret }: { url: string; secret: string },
  limitMs: number,
): Promise<Completion> {
  const headers = {
    authorization: `Bearer ${secret}`,
    "content-type": "application/json",
    "user-agent": "duework-jobs",
  };
  const answer = await exchange(
    fetch,
    url,
    { method: "POST", headers, body: "{}" },
    { limitMs, maxBytes: ROUTE_BODY_BYTES },
  );
  if (answer.status >= 200 && answer.status < 300) return { ...succeeded, detail: { status: answer.status } };
  return {
    ...failed(`the route answered ${answer.status}`),
    detail: { error: `the route answered ${answer.status}`, status: answer.status },
  };
}
