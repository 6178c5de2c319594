import type { DatabaseSync } from "node:sqlite";
import { type Client, fireTick } from "../client.ts";
import { instanceStatus, type KnownInstance } from "./instances.ts";
import { within } from "./within.ts";

/** The schedules of a demo: each as the text that a person sends to add it, and what must come of its first minute. */
const SCHEDULES = [
  {
    name: "demo-report",
    add: 'schedule add demo-report "* * * * *" text="webhooks report" channel=inbox:demo grants.actions=webhooks:read',
    outcome: "admitted",
  },
  {
    name: "demo-replay",
    // It holds the grant, and is refused all the same: a schedule writes nothing.
    add: 'schedule add demo-replay "* * * * *" text="webhooks replay-dead" channel=inbox:demo grants.actions=webhooks:write',
    outcome: "refused:schedule_write",
  },
] as const;

const WORKFLOW = "run";
const MINUTE_MS = 60_000;

/** What is stored of the schedules' firings. */
interface StoredFiring {
  schedule: string;
  outcome: string;
  /** Of the run that it became; null = it became none. */
  run: string | null;
  /** Messages of its thread, by their kinds in order. */
  said: string;
}

/** What is stored of runs. */
interface StoredRun {
  id: string;
  actor: string;
  command: string;
  status: string;
}

/** What is known of the schedules when a demo ends. */
export interface ScheduleEvidence {
  firings: StoredFiring[];
  runs: StoredRun[];
  /** The instances of the runs, as the local platform shows them. */
  instances: KnownInstance[];
}

/** What the schedules' part needs. */
interface ScheduleStage {
  url: string;
  client: Client;
  database: DatabaseSync;
  signal: AbortSignal;
  phase(name: string): void;
}

/**
 * Sends the texts that add the schedules, fires the tick of the next minute, and waits until what it admitted has ended.
 * Then removes them: time is driven by more minutes later, and what they would begin in those would not end in time.
 * @param from how far time was driven before, ms
 * @returns how far it is driven now, ms
 */
export async function fireSchedules(
  stage: ScheduleStage,
  from: number,
): Promise<{ evidence: ScheduleEvidence; driven: number }> {
  const { url, client, database, signal, phase } = stage;
  phase("add schedules by text");
  await addSchedules(client);
  await allEnded(stage, SCHEDULES.length);
  phase("fire schedules");
  const driven = (Math.floor(Math.max(from, Date.now()) / MINUTE_MS) + 1) * MINUTE_MS;
  await fireTick(url, driven, signal);
  await allEnded(stage, SCHEDULES.length + 1);
  for (const { name } of SCHEDULES) await client.command("schedule.remove", { name });
  const runs = readRuns(database);
  const instances = await Promise.all(runs.map(({ id }) => instanceStatus(url, WORKFLOW, id, signal)));
  return { evidence: { firings: readFirings(database), runs, instances }, driven };
}

/** Adds the schedules as a person does who writes: each text becomes a run. */
export async function addSchedules(client: Client): Promise<void> {
  await Promise.all(SCHEDULES.map(({ add }) => client.command("dispatch", { text: add, channel: "inbox:demo" })));
}

async function allEnded({ database, signal }: ScheduleStage, count: number): Promise<void> {
  await within(`${count} runs have not ended`, signal, async () => {
    const ended = readRuns(database).filter(({ status }) => status !== "admitted" && status !== "running");
    return ended.length >= count ? { value: null } : null;
  });
}

function readRuns(database: DatabaseSync): StoredRun[] {
  return database
    .prepare("SELECT id, actor, command, status FROM runs ORDER BY admitted_at, id")
    .all() as unknown as StoredRun[];
}

function readFirings(database: DatabaseSync): StoredFiring[] {
  return database
    .prepare(
      `SELECT name AS schedule, outcome, run,
         (SELECT group_concat(kind) FROM (SELECT kind FROM messages WHERE thread = f.thread ORDER BY at, id)) AS said
       FROM firings f ORDER BY name DESC, slot`,
    )
    .all() as unknown as StoredFiring[];
}

/** Everything about the schedules that is not as it must be, one sentence each. Pure. */
export function scheduleComplaints({ firings, runs, instances }: ScheduleEvidence): string[] {
  const found: string[] = [];
  const hold = (fine: boolean, complaint: string) => fine || found.push(complaint);
  for (const { name, outcome } of SCHEDULES) {
    const own = firings.filter(({ schedule }) => schedule === name);
    hold(own.length === 1, `${name} has fired ${own.length} times for one minute`);
    const [firing] = own;
    if (firing === undefined) continue;
    hold(firing.outcome === outcome, `${name} came to ${firing.outcome}, not to ${outcome}`);
    const said = outcome === "admitted" ? "lead,receipt,result" : "lead,refusal";
    hold(firing.said === said, `the thread of ${name} holds ${firing.said}, not ${said}`);
    const fired = runs.filter(({ actor }) => actor === `schedule:${name}`);
    const wanted = outcome === "admitted" ? 1 : 0;
    hold(fired.length === wanted, `${name} has ${fired.length} runs, where ${wanted} are meant to be`);
  }
  for (const { id, command, status } of runs) hold(status === "succeeded", `the run ${id} of ${command} is ${status}`);
  hold(
    runs.map(({ id }) => id).join() === instances.map(({ id }) => id).join(),
    `${runs.length} runs became ${instances.length} instances`,
  );
  for (const { id, status } of instances) hold(status === "complete", `the instance ${id} is ${status}`);
  return found;
}
