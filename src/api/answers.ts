import * as v from "valibot";
import { NEED_KINDS } from "../tick/needs.ts";

/**
 * What the reads answer, as schemas: the OpenAPI document is made from them, and a test holds the answers to them.
 * They check nothing at run time.
 */

const text = v.string();
const count = v.pipe(v.number(), v.integer(), v.minValue(0));
const instant = v.pipe(text, v.isoTimestamp());
const when = v.nullable(instant);
const word = v.nullable(text);
/** A count that reads a bounded number of rows, and says when there are more. */
const capped = v.strictObject({ value: count, capped: v.boolean() });
/** JSON of whatever form. */
const json = v.unknown();

/** A page of a list. */
export const pageOf = <Entries extends v.ObjectEntries>(entries: Entries) =>
  v.strictObject({ items: v.array(v.strictObject(entries)), nextCursor: word });

/** What needs a person, and the grants that he who asks lacks to see more. */
export const needsView = v.strictObject({
  ...pageOf({
    kind: v.picklist(NEED_KINDS),
    what: text,
    subject: text,
    id: text,
    count: capped,
    since: when,
    detail: text,
  }).entries,
  unseen: v.array(text),
});

export const topicEntries = {
  module: text,
  topic: text,
  path: v.picklist(["queue", "drain"]),
  pathVersion: count,
  paused: v.boolean(),
  ready: capped,
  leased: capped,
  dead: capped,
  oldestDueAt: when,
};

export const itemEntries = {
  id: text,
  place: word,
  module: text,
  topic: text,
  key: word,
  state: v.picklist(["ready", "leased", "running", "dead"]),
  dueAt: when,
  attempts: count,
  deliveries: count,
  leaseUntil: when,
  lastError: word,
  explanation: text,
};

export const letterEntries = {
  id: text,
  module: text,
  topic: text,
  key: word,
  payload: json,
  reason: text,
  lastError: text,
  attempts: count,
  diedAt: instant,
};

const amounts = v.object({ subrequests: v.number(), queries: v.number() });
export const tickEntries = {
  at: instant,
  startedAt: instant,
  ms: v.nullable(count),
  state: v.picklist(["closed", "running", "died"]),
  diedIn: v.optional(word),
  notReached: v.optional(v.array(text)),
  claimed: count,
  sent: count,
  drained: count,
  failed: count,
  queries: count,
  subrequests: count,
  calls: count,
  rowsRead: count,
  rowsWritten: count,
  modules: v.array(
    v.looseObject({
      module: text,
      share: v.object({
        subrequests: v.nullable(v.number()),
        queries: v.nullable(v.number()),
        wallMs: v.nullable(v.number()),
      }),
      charged: amounts,
      measured: amounts,
      warning: v.nullable(v.object({ reason: text, amount: v.number(), unit: text, behind: v.array(text) })),
    }),
  ),
};

const processor = v.picklist(["route", "module", "workflow"]);
export const jobEntries = {
  id: text,
  cron: text,
  timeZone: text,
  enabled: v.boolean(),
  processor: v.nullable(processor),
  generation: count,
  stopped: v.boolean(),
  stopReason: word,
  failures: count,
  stalled: count,
  lastSlot: when,
  nextAt: when,
};

export const slotEntries = {
  slot: instant,
  generation: count,
  processor,
  result: v.nullable(v.picklist(["succeeded", "degraded", "failed", "unknown"])),
  missed: count,
  claimedAt: instant,
  completedAt: when,
  instanceId: word,
  detail: json,
};

export const obligationEntries = {
  workspace: text,
  version: count,
  state: v.picklist(["owed", "quarantined"]),
  since: instant,
  charges: count,
  quarantinedAt: when,
  error: word,
};

export const settlementEntries = {
  workspace: text,
  version: count,
  since: instant,
  settledAt: instant,
  settledBy: text,
  how: v.picklist(["by hand", "revalidated"]),
  reason: text,
  error: word,
};

/** An instance works a job's slot, or a run. */
export const instanceEntries = {
  workflow: text,
  id: text,
  status: text,
  startedAt: instant,
  job: v.optional(text),
  slot: v.optional(instant),
  runId: v.optional(text),
};

export const instanceView = v.strictObject({
  ...instanceEntries,
  endedAt: when,
  platformStatus: word,
  platformError: word,
  steps: v.array(
    v.strictObject({ position: count, name: text, startedAt: instant, updatedAt: instant, progress: json }),
  ),
});

export const scheduleEntries = {
  kind: v.picklist(["catalog", "stored"]),
  name: text,
  cron: text,
  timeZone: text,
  text: word,
  channel: word,
  thread: word,
  standingThread: word,
  grants: json,
  enabled: v.boolean(),
  createdAt: when,
  createdBy: word,
  lastFiring: v.nullable(
    v.strictObject({
      id: text,
      slot: instant,
      claimedAt: instant,
      outcome: text,
      detail: text,
      runId: word,
      runStatus: word,
    }),
  ),
  state: v.picklist(["waiting", "starting", "claimed_not_started", "refused", "invalid", "disabled"]),
  problem: word,
  nextAt: when,
  nextLocal: word,
};

export const firingEntries = {
  id: text,
  schedule: text,
  slot: instant,
  claimedAt: instant,
  missed: count,
  lateMs: count,
  cron: text,
  timeZone: text,
  firedBy: text,
  outcome: text,
  detail: text,
  thread: word,
  runId: word,
  refiredBy: word,
  refires: count,
};

export const runEntries = {
  id: text,
  actor: text,
  command: text,
  args: json,
  scope: word,
  channel: text,
  thread: word,
  firing: word,
  status: v.picklist(["admitted", "running", "succeeded", "failed", "cancelled", "lost", "not_started"]),
  admittedAt: instant,
  startedAt: when,
  endedAt: when,
  result: json,
  error: word,
};

export const threadEntries = {
  id: text,
  channel: text,
  title: text,
  openedAt: instant,
  openedBy: text,
  latestAt: instant,
};

export const threadView = v.strictObject({
  ...threadEntries,
  ...pageOf({
    id: text,
    at: instant,
    author: text,
    kind: v.picklist(["lead", "text", "receipt", "result", "refusal", "offer"]),
    text,
    data: json,
  }).entries,
});

export const commandEntries = {
  name: text,
  effect: v.picklist(["read", "exec", "write"]),
  grant: text,
  help: text,
  positional: v.array(text),
  scoped: v.boolean(),
  secret: v.boolean(),
  personOnly: v.boolean(),
  args: v.nullable(v.record(text, json)),
};

export const healthView = v.strictObject({
  status: v.picklist(["ok", "starting", "degraded", "misconfigured"]),
  lastTickAt: when,
  tickAgeSeconds: v.nullable(count),
  problems: v.array(v.strictObject({ code: text, setting: text, detail: text })),
});

/** What a tick that was fired from outside reports. */
export const tickReport = v.looseObject({
  slots: count,
  firings: count,
  claimed: count,
  sent: count,
  drained: count,
  failed: count,
  calls: count,
  queries: count,
  rowsRead: count,
  rowsWritten: count,
  subrequests: count,
  modules: v.array(v.looseObject({ module: text })),
});
