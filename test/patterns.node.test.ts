import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { describe, expect, test, vi } from "vitest";
import * as checkout from "../src/checkout/limits.ts";

/** What each job and topic of this repository answers to the checklist of docs/patterns/move-a-job.md. */

const root = path.resolve(import.meta.dirname, "..");
const read = (file: string) => readFileSync(path.join(root, file), "utf8");

/** Only what is asked of it here: the Worker's own types are the runtime's, not this project's. */
interface Statement {
  plan(): string[];
}
type Make = (db: unknown, ...args: unknown[]) => Statement;
interface Program {
  modules: { topics: { name: string }[] }[];
  jobs: { id: string; processor: { kind: string; handle?(slot: object, context: object): Promise<unknown> } }[];
}

const load = (file: string) => import(path.join(root, file)) as Promise<Record<string, unknown>>;

vi.mock("cloudflare:workers", () => ({ WorkflowEntrypoint: class {} }));
// The Worker's program itself, instead of the handlers that are made of it.
vi.mock("../src/create-worker.ts", async (original) => ({ ...(await original<object>()), createWorker: same }));
function same<T>(given: T): T {
  return given;
}
const { modules, jobs } = (await load("src/worker.ts")).default as Program;
const { LEDGER_BOUND, readOwed } = (await load("src/jobs/obligations.ts")) as { LEDGER_BOUND: number; readOwed: Make };
const { forgetBatches } = (await load("src/jobs/obligations.ts")) as { forgetBatches: Make };
const { forgetSteps } = (await load("src/jobs/steps.ts")) as { forgetSteps: Make };
const slots = (await load("src/jobs/slots.ts")) as Record<"SLOT_DEADLINE_MS" | "SLOT_LEASE_MS", number> & {
  forgetSlots: Make;
};

const SLOTS = "test/jobs/slots.workers.test.ts";
const LEDGER = "test/jobs/obligations.workers.test.ts";
const SWEEP = "test/checkout/expiry.workers.test.ts";
const STALL = "test/checkout/expiry-stall.workers.test.ts";
const WORKFLOW = "test/checkout/workflow.workers.test.ts";
const CONSUME = "test/outbox/consume.workers.test.ts";
const OPERATE = "test/outbox/operate.workers.test.ts";
const ENVELOPE = "test/outbox/envelope.workers.test.ts";
const HOOKS = "test/modules/webhooks.workers.test.ts";
const PUBLISH = "test/modules/webhooks-publish.workers.test.ts";
const SIGNING = "test/modules/webhooks-signing.workers.test.ts";
const POLLS = "test/modules/merchants.workers.test.ts";
const HERE = "test/patterns.node.test.ts";

/** One sentence, and the tests that show it: a file and a title in it. */
type Answer = [string, ...[file: string, title: string][]];

interface Answers {
  /** Bounds on work, attempts and age. */
  bounds: Answer;
  /** No progress spends a durable budget. */
  budget: Answer;
  /** The stop is checked before work and before rescheduling. */
  stop: Answer;
  /** Duplicates keep their identity. */
  identity: Answer;
  /** Reads are indexed and bounded. */
  reads: Answer;
  /** Costs are counted in success and in failure. */
  costs: Answer;
}

const POINTS = ["bounds", "budget", "stop", "identity", "reads", "costs"] as const satisfies (keyof Answers)[];

const ANSWERS: Record<string, Answers> = {
  "inventory-checkout-expiry": {
    bounds: [
      "10 expiry calls of 1,000, 100 requests of 100, 5,000 held, all within 240 s; three attempts an item, of no age: owed work stays owed",
      [SWEEP, "capped by batches: ten expiry calls, and never a success while more may be there"],
      [SWEEP, "capped by chunks: fifty of owed and fifty of fresh work, three ledger calls each at most"],
      [SWEEP, "%i held: %i are expired"],
      [STALL, "deadline: whichever call it passes in, nothing begins after it"],
    ],
    budget: [
      "three stored charges quarantine an item, five stored failures stop the job; a resume keeps quarantine",
      [
        SWEEP,
        "a poison workspace: charged once a sweep, quarantined after three, kept through resume, the job goes on",
      ],
      [SWEEP, "a storefront that is down for an hour quarantines nobody, and five such slots stop the job"],
    ],
    stop: [
      "before the claim, each batch and each chunk; the next slot is another claim",
      [SWEEP, "stopped before it begins: no work at all"],
      [SWEEP, "stopped between chunks: what was answered is settled, and no further chunk is asked"],
      [SWEEP, "stopped between batches: no further batch"],
      [
        SLOTS,
        "stopped → nothing is claimed, and a message under way begins nothing; resumed → the next minute is claimed",
      ],
    ],
    identity: [
      "the instance is named by the slot, a batch by its key, a charge by item and slot; a receipt settles its version",
      [WORKFLOW, "runs a slot as a real instance, once however often it is handed over, and keeps its steps"],
      [STALL, "restart: a finished instance that runs anew asks for nothing, and changes nothing"],
      [STALL, "an answer that was lost is asked for again: no checkout is expired twice, none is forgotten"],
      [LEDGER, "charges an item once a sweep, however often it is asked to; the third sweep quarantines"],
    ],
    reads: [
      "pages of owed work by age, counts within the bound of 5,000",
      [LEDGER, "lists the oldest first, and by an index"],
      [HERE, "owed work is found by its index, and old records by a key"],
    ],
    costs: [
      "counted in each slot's detail: idle, at the most, and with chunks that fail",
      [SWEEP, "idle: five ledger calls at most, one expiry call, none to the storefront"],
      [SWEEP, "capped by chunks: fifty of owed and fifty of fresh work, three ledger calls each at most"],
      [SWEEP, "partially failed: chunk 2 of 5 answers 500, another hangs to its own timeout, the other three settle"],
      [STALL, "%s: it is asked once"],
    ],
  },
  "records-retention": {
    bounds: [
      "500 rows of a kind in one run, and of slots of a job, within the slot's deadline; what is left is the next run's",
      [SLOTS, "old slots are forgotten by the retention job, the newest stays"],
      [SLOTS, "a handler that outlasts the slot's deadline is failed, and its signal is aborted"],
    ],
    budget: [
      "five stored failures stop the job",
      [SLOTS, "five failed or unknown slots in a row stop the job, durably"],
    ],
    stop: [
      "before the claim and before its message is begun; a run that has begun ends by itself",
      [
        SLOTS,
        "stopped → nothing is claimed, and a message under way begins nothing; resumed → the next minute is claimed",
      ],
    ],
    identity: [
      "a slot is claimed and begun once, and deleting again what is gone deletes nothing",
      [SLOTS, "is claimed once by ticks that overlap, and once more by none in the same minute"],
      [SLOTS, "its message twice, also at once, runs once"],
    ],
    reads: [
      "old slots by the primary key, old steps and batches by an index of their age",
      [HERE, "owed work is found by its index, and old records by a key"],
    ],
    costs: [
      "a statement a job and three more; a failure ends it at the statement that failed",
      [HERE, "the retention makes a statement a job and three more, and none after one that fails"],
    ],
  },
  "webhooks.deliver": {
    bounds: [
      "one request of 15 s and 4 KiB an attempt, eleven attempts over a day",
      [
        HOOKS,
        "an endpoint that is down for a day loses nothing; then the item is a dead letter that names the failure",
      ],
      [HOOKS, "of four-byte characters is cut between two of them"],
    ],
    budget: [
      "attempts and lost deliveries are counted in the row, and end dead",
      [CONSUME, "a failure on the last attempt: dead, attempts_exhausted, and the last one is counted"],
      [CONSUME, "on its last attempt is not stuck: it ends dead and its key is free"],
    ],
    stop: [
      "a pause before each claim, an endpoint's end before each call; what was sent before a pause still runs",
      [OPERATE, "paused: nothing is claimed by tick, drain or pump, what was sent still runs, and a resume goes on"],
      [HOOKS, "what was on its way to an endpoint that is gone is dead without a call"],
    ],
    identity: [
      "an event's id is the key and the receiver's message id, the same at each attempt",
      [PUBLISH, "the same event id again adds nothing while its items live"],
      [SIGNING, "each attempt has the same id and body, and a signature of its own time"],
    ],
    reads: [
      "an endpoint is read once a batch, by its key; the claim reads what it takes",
      [PUBLISH, "a batch of 100 for two endpoints reads each once, and its settle and log are a statement each"],
      [PUBLISH, "finding them reads no endpoint of another subject"],
    ],
    costs: [
      "rows and calls of a delivery, and what a failure adds",
      [PUBLISH, "a delivery's log is one row billed"],
      [ENVELOPE, "docs/envelope.md says what else adds to it, as D1's own counts say"],
    ],
  },
  "merchants.poll": {
    bounds: [
      "one request of 10 s and 64 KiB on the account's grid; it is for ever by intent, as long as there is the account",
      [POLLS, "takes a body of exactly 64 KiB"],
      [POLLS, "polls when it is added, then on the account's own grid for ever"],
    ],
    budget: [
      "failures are counted in the row and slow it to one an hour; what kills its worker ends dead; a success sets back",
      [POLLS, "that fails backs off alone, to an hour at most, never dies, and is back on its grid when it succeeds"],
      [CONSUME, "nextAt: the row moves, is born again for its age, and counts nothing"],
      [CONSUME, "on its last attempt is not stuck: it ends dead and its key is free"],
    ],
    stop: [
      "a pause before each claim; what was sent before it still runs, once, and its next poll waits",
      [OPERATE, "paused: nothing is claimed by tick, drain or pump, what was sent still runs, and a resume goes on"],
    ],
    identity: [
      "the account's id is the key: one poller each, however often it is added",
      [POLLS, "again changes nothing and polls nobody twice"],
      [POLLS, "the same account twice at the same time makes one poller"],
    ],
    reads: [
      "none: the item carries what it needs",
      [POLLS, "of a batch of 100 costs nothing to read, and one statement to settle and one to record"],
    ],
    costs: [
      "rows and calls of a poll, and what a failure adds",
      [POLLS, "of a batch of 100 costs nothing to read, and one statement to settle and one to record"],
      [ENVELOPE, "docs/envelope.md says what else adds to it, as D1's own counts say"],
    ],
  },
};

describe("the checklist", () => {
  test("is answered by each job and each topic, and by nothing else", () => {
    const all = [...jobs.map(({ id }) => id), ...modules.flatMap(({ topics }) => topics.map(({ name }) => name))];
    expect(all.length).toBeGreaterThan(3);
    expect(Object.keys(ANSWERS).sort()).toEqual(all.sort());
  });

  test("has a point on the page for each answer, in its order", () => {
    const page = read("docs/patterns/move-a-job.md").split("\n## The checklist\n")[1]?.split("\n## ")[0] ?? "";
    const points = [...page.matchAll(/^\d\. \*\*(.+?)\.\*\*/gm)].map(([, title]) => title);
    expect(points).toEqual([
      "Bounds on work, attempts and age",
      "No progress spends a durable budget",
      "The stop is checked before work and before rescheduling",
      "Duplicates keep their identity",
      "Reads are indexed and bounded",
      "Costs are counted in success and in failure",
    ]);
    expect(points.length).toBe(POINTS.length);
  });

  test.each(Object.keys(ANSWERS))("%s: each answer names tests that exist", (name) => {
    for (const point of POINTS) {
      const [sentence = "", ...shown] = ANSWERS[name]?.[point] ?? [];
      expect(sentence, point).not.toBe("");
      expect(shown.length, point).toBeGreaterThan(0);
      const missing = shown.filter(([file, title]) => !existsSync(path.join(root, file)) || !titled(file, title));
      expect(missing, point).toEqual([]);
    }
  });
});

/** A title as a test has it: between quotes, at the place of a test's name. */
function titled(file: string, title: string): boolean {
  const parts = read(file).split(`"${title}"`).slice(0, -1);
  return parts.some((before) => /(?:\b(?:test|it|describe)(?:\.\w+)*|\))\(\s*$/.test(before));
}

test("the relations of jobs' bounds hold", () => {
  expect(slots.SLOT_DEADLINE_MS + Math.max(checkout.LEDGER_MS, checkout.EXPIRY_MS)).toBeLessThanOrEqual(
    slots.SLOT_LEASE_MS,
  );
  expect(slots.SLOT_LEASE_MS).toBeLessThan(5 * 60_000);
  expect(2 * checkout.OWED_MS).toBe(slots.SLOT_DEADLINE_MS);
  expect(checkout.CHUNKS.owed * checkout.CHUNK).toBe(LEDGER_BOUND);
  expect(checkout.BATCH_ROWS + checkout.HELD_ALERT).toBe(LEDGER_BOUND);
});

/** D1's prepare, over SQLite itself: what it was asked, in order. */
function ledger() {
  const sqlite = new DatabaseSync(":memory:");
  for (const file of ["0005_create_jobs.sql", "0006_create_ledger.sql"]) sqlite.exec(read(`src/db/migrations/${file}`));
  const asked: string[] = [];
  let failing = Number.POSITIVE_INFINITY;
  const statement = (sql: string, values: SQLInputValue[]) => {
    const named = Object.fromEntries(values.map((value, index) => [`?${index + 1}`, value]));
    const run = async () => {
      asked.push(sql);
      if (asked.length >= failing) throw new Error("D1 is away");
      const results = sqlite.prepare(sql).all(named);
      return { results, meta: { changes: 0 } };
    };
    return {
      bind: (...bound: SQLInputValue[]) => statement(sql, bound),
      all: run,
      run,
      plan: () =>
        sqlite
          .prepare(`EXPLAIN QUERY PLAN ${sql}`)
          .all(named)
          .map(({ detail }) => String(detail)),
    };
  };
  return {
    sqlite,
    asked,
    failAt: (call: number) => {
      failing = call;
    },
    db: { prepare: (sql: string) => statement(sql, []) },
  };
}

test("owed work is found by its index, and old records by a key", () => {
  const { db } = ledger();
  const plans = {
    "obligations_by_age (job=? AND state=?": readOwed(db, { job: "j", slot: 0, generation: 1 }, null, 101),
    "SEARCH slots USING PRIMARY KEY (job=? AND slot": slots.forgetSlots(db, "j", 1, 500),
    "workflow_steps_by_age (updated_at<?": forgetSteps(db, 1, 500),
    "expiry_batches_by_age (closed_at": forgetBatches(db, 1, 500),
  };
  for (const [key, statement] of Object.entries(plans)) {
    const plan = statement.plan().join("\n");
    expect(plan).toContain(key);
    expect(plan.replaceAll(/SCAN (?:j|json_each)\b.*/g, ""), key).not.toMatch(/\bSCAN\b|ORDER BY/);
  }
});

test("the retention makes a statement a job and three more, and none after one that fails", async () => {
  const processor = jobs.find(({ id }) => id === "records-retention")?.processor;
  if (processor?.handle === undefined) throw new Error("the retention is no module's job");
  const { db, sqlite, asked, failAt } = ledger();
  for (const id of ["a", "b", "c"]) sqlite.exec(`INSERT INTO jobs (id, generation, claimed) VALUES ('${id}', 1, 0)`);
  const context = { db, now: 0, signal: new AbortController().signal, mayGoOn: async () => true };
  await processor.handle({}, context);
  expect(asked.length).toBe(6);
  asked.length = 0;
  failAt(2);
  await expect(processor.handle({}, context)).rejects.toThrow("D1 is away");
  expect(asked.length).toBe(2);
});
