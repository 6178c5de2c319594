import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { shownTable } from "../../src/cli/page-tables.ts";
import { PLATFORM, serviceMs } from "./platform/limits.ts";
import { readPlan } from "./platform/program.ts";
import { type Plan, simulate, USUAL_PLAN } from "./platform/simulate.ts";
import { SIMULATION_TABLES } from "./platform/tables.ts";

const page = readFileSync(path.resolve(import.meta.dirname, "../../docs/simulation.md"), "utf8");
const small: Plan = { ...USUAL_PLAN, rowsAMinute: 60_000, minutes: 10, stalls: 0 };

/** Plans that press on each limit in turn. */
const PRESSING: [string, Partial<Plan>][] = [
  ["well within the limits", {}],
  ["one a message, more than a queue takes", { itemsPerMessage: 1, rowsAMinute: 600_000 }],
  ["slow handlers, more than the consumers carry", { handlerMs: 2_000, rowsAMinute: 300_000 }],
  ["a slow D1, more than its writer carries", { slower: 20, rowsAMinute: 300_000 }],
  ["three databases", { topics: 6, queues: 3, databases: 3 }],
  ["two stalls of a minute", { stalls: 2 }],
  ["every tenth item fails once", { failing: 0.1 }],
];

describe("a simulation", () => {
  test("gives the same answer for the same seed, and another for another", () => {
    const plan = { ...small, stalls: 2 };
    expect(simulate(plan)).toEqual(simulate(plan));
    expect(simulate({ ...plan, seed: 2 }).lateSeconds).not.toEqual(simulate(plan).lateSeconds);
  });

  test.each(PRESSING)("%s: every row is settled once, none is left and none twice", (_, change) => {
    const { born, settled, left, drainedAfterMs } = simulate({ ...small, ...change });
    expect(born).toBeGreaterThan(500_000);
    expect([settled, left]).toEqual([born, 0]);
    expect(drainedAfterMs).not.toBeNull();
  });

  test.each(PRESSING)(
    "%s: no second has more messages than a queue carries, and no more consumers run",
    (_, change) => {
      const { most } = simulate({ ...small, ...change });
      expect(most.messagesIn).toBeLessThanOrEqual(PLATFORM.queueMessagesASecond);
      expect(most.messagesOut).toBeLessThanOrEqual(PLATFORM.queueMessagesASecond);
      expect(most.consumers).toBeLessThanOrEqual(PLATFORM.consumers);
    },
  );

  test("reaches the limits that it holds: a check of them can fail", () => {
    const { most, refusedSends } = simulate({ ...small, itemsPerMessage: 1, rowsAMinute: 600_000 });
    expect(most.messagesIn).toBeGreaterThan(0.9 * PLATFORM.queueMessagesASecond);
    expect(refusedSends).toBeGreaterThan(0);
    const slow = simulate({ ...small, handlerMs: 2_000, rowsAMinute: 300_000 });
    expect(slow.most.consumers).toBe(PLATFORM.consumers);
    expect(slow.saturated).toBe("the consumers");
    expect(simulate({ ...small, slower: 20, rowsAMinute: 300_000 }).saturated).toBe("the D1 writer");
  });

  test("a stall only delays: the same rows are settled, later, and what ran meanwhile runs again", () => {
    const calm = simulate(small);
    const stalled = simulate({ ...small, stalls: 2 });
    expect(stalled.settled).toBe(calm.settled);
    expect(stalled.failedCalls).toBeGreaterThan(0);
    expect(stalled.oldestSeconds).toBeGreaterThan(calm.oldestSeconds);
    expect(stalled.repeated).toBeGreaterThan(0);
    expect(calm.repeated).toBe(0);
  });
});

describe("service times", () => {
  test("are those that were measured at the sizes that were, and between them in proportion", () => {
    expect(serviceMs("claim", 0)).toBe(0);
    const [hundred, thousand] = [serviceMs("claim", 100), serviceMs("claim", 1_000)];
    expect(serviceMs("claim", 550)).toBeCloseTo((hundred + thousand) / 2, 9);
    expect(serviceMs("claim", 10_000)).toBeCloseTo(2 * serviceMs("claim", 5_000), 9);
  });
});

describe("npm run simulate", () => {
  test("reads its flags, and refuses what cannot be", () => {
    const { plan } = readPlan(["--rows", "5000", "--seed", "7", "--queues", "2", "--databases", "2"]);
    expect(plan).toMatchObject({ rowsAMinute: 5_000, seed: 7, queues: 2, databases: 2 });
    expect(() => readPlan(["--databases", "2"])).toThrow("--databases is at most --queues");
    expect(() => readPlan(["--rows", "many"])).toThrow();
  });
});

describe("docs/simulation.md", () => {
  // A day takes twenty seconds; what moves it moves the others, and the script writes all of them together.
  const quick = Object.entries(SIMULATION_TABLES).filter(([name]) => name !== "day");
  test.each(quick)("shows the %s table as the script makes it", (name, make) => {
    expect(shownTable(page, name)).toBe(make());
  });
});
