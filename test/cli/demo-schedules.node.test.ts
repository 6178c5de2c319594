import { describe, expect, test } from "vitest";
import { type ScheduleEvidence, scheduleComplaints } from "../../src/cli/demo/schedules.ts";

/** What a demo's schedules come to when all is well. */
const goodSchedules = (): ScheduleEvidence => ({
  firings: [
    { schedule: "demo-report", outcome: "admitted", run: "run-3", said: "lead,receipt,result" },
    { schedule: "demo-replay", outcome: "refused:schedule_write", run: null, said: "lead,refusal" },
  ],
  runs: [
    { id: "run-1", actor: "http:admin", command: "schedule.add", status: "succeeded" },
    { id: "run-2", actor: "http:admin", command: "schedule.add", status: "succeeded" },
    { id: "run-3", actor: "schedule:demo-report", command: "webhooks.report", status: "succeeded" },
  ],
  instances: ["run-1", "run-2", "run-3"].map((id) => ({ id, status: "complete" })),
});

describe("the schedules' account", () => {
  test("finds nothing in what is as it must be", () => expect(scheduleComplaints(goodSchedules())).toEqual([]));

  test.each<[string, (evidence: ScheduleEvidence) => unknown, string]>([
    ["one has not fired", ({ firings }) => firings.shift(), "demo-report has fired 0 times"],
    ["one has fired twice", ({ firings }) => firings.push({ ...firings[0]! }), "demo-report has fired 2 times"],
    [
      "the write was let through",
      ({ firings }) => Object.assign(firings[1]!, { outcome: "admitted" }),
      "demo-replay came to admitted, not to refused:schedule_write",
    ],
    ["the refusal was not said", ({ firings }) => Object.assign(firings[1]!, { said: "lead" }), "holds lead, not lead"],
    [
      "what was refused ran",
      ({ runs }) => Object.assign(runs[1]!, { actor: "schedule:demo-replay" }),
      "demo-replay has 1 runs, where 0",
    ],
    ["a run failed", ({ runs }) => Object.assign(runs[2]!, { status: "failed" }), "of webhooks.report is failed"],
    ["an instance is unknown", ({ instances }) => instances.pop(), "3 runs became 2 instances"],
    ["an instance failed", ({ instances }) => Object.assign(instances[0]!, { status: "errored" }), "is errored"],
  ])("complains when %s", (_, spoil, complaint) => {
    const evidence = goodSchedules();
    spoil(evidence);
    expect(scheduleComplaints(evidence).join("; ")).toContain(complaint);
  });
});
