import * as v from "valibot";
import { type Body, type Deployment, RefusedError, UnreachableError } from "./deployment.ts";
import { type Screen, styled } from "./screen.ts";
import { tableOf } from "./table.ts";
import { cut, visible } from "./visible.ts";

/** How a deployment stands, read by a bounded number of requests. */

/** One thing that waits for a person, and the line that begins to mend it. */
export interface Need {
  what: string;
  try: string;
}

export interface Status {
  health: v.InferOutput<typeof health>;
  needs: Need[];
  topics: v.InferOutput<typeof topics>["items"];
  jobs: v.InferOutput<typeof jobs>["items"];
  schedules: v.InferOutput<typeof schedules>["items"];
  /** What could not be looked at, and why. */
  unseen: string[];
}

const when = v.nullable(v.string());
const count = v.object({ value: v.number(), capped: v.boolean() });
const health = v.object({
  status: v.string(),
  lastTickAt: when,
  tickAgeSeconds: v.nullable(v.number()),
  problems: v.array(v.object({ code: v.string(), setting: v.string(), detail: v.string() })),
});
const topics = v.object({
  items: v.array(
    v.object({
      module: v.string(),
      topic: v.string(),
      path: v.string(),
      paused: v.boolean(),
      ready: count,
      leased: count,
      dead: count,
      oldestDueAt: when,
    }),
  ),
});
const jobs = v.object({
  items: v.array(
    v.object({
      id: v.string(),
      enabled: v.boolean(),
      stopped: v.boolean(),
      stopReason: when,
      failures: v.number(),
      lastSlot: when,
      nextAt: when,
    }),
  ),
});
const schedules = v.object({
  items: v.array(
    v.object({
      kind: v.string(),
      name: v.string(),
      state: v.string(),
      problem: when,
      nextAt: when,
    }),
  ),
});
const needs = v.object({
  items: v.array(
    v.object({ kind: v.string(), what: v.string(), subject: v.string(), id: v.string(), detail: v.string() }),
  ),
  unseen: v.array(v.string()),
});

/** @throws UnreachableError, RefusedError when the token itself is refused */
export async function readStatus(deployment: Deployment): Promise<Status> {
  const unseen: string[] = [];
  const look = async <Schema extends v.GenericSchema>(path: string, schema: Schema) => {
    try {
      return parsed(await deployment.read(path), schema, deployment);
    } catch (error) {
      if (!(error instanceof RefusedError) || /\(401 /.test(error.message)) throw error;
      unseen.push(`${path.split("?")[0]}: ${error.message}`);
      return null;
    }
  };
  const state = parsed(await deployment.health(), health, deployment);
  if (state.status === "misconfigured") {
    return { health: state, needs: healthNeeds(state), topics: [], jobs: [], schedules: [], unseen };
  }
  const [need, topic, job, schedule] = await Promise.all([
    look("/api/needs", needs),
    look("/api/topics?limit=200", topics),
    look("/api/jobs?limit=200", jobs),
    look("/api/schedules?limit=200", schedules),
  ]);
  const lacking = (need?.unseen ?? []).map((grant) => `/api/needs: what needs the grant ${grant}`);
  return {
    health: state,
    needs: [...healthNeeds(state), ...(need?.items ?? []).map(needOf)],
    topics: topic?.items ?? [],
    jobs: job?.items ?? [],
    schedules: schedule?.items ?? [],
    unseen: [...unseen, ...lacking],
  };
}

function parsed<Schema extends v.GenericSchema>(
  { value }: Body,
  schema: Schema,
  { url }: Deployment,
): v.InferOutput<Schema> {
  const read = v.safeParse(schema, value);
  if (read.success) return read.output;
  throw new UnreachableError(
    `${url} answers in a form that this version does not know (${v.getDotPath(read.issues[0])})`,
  );
}

/** What keeps it from starting; that a tick is late is among the needs that it lists itself. */
function healthNeeds({ status, problems }: Status["health"]): Need[] {
  return [
    ...problems.map(({ code, setting, detail }) => ({ what: `${setting}: ${detail} (${code})`, try: "" })),
    ...(status === "misconfigured" && problems.length === 0 ? [{ what: "it is misconfigured", try: "" }] : []),
  ];
}

/** Of each kind that this version knows, the line that begins to mend it. */
const TRY: Readonly<Record<string, (subject: string, id: string) => string>> = {
  tick_late: () => "ticks",
  tick_died: () => "ticks",
  job_stopped: (job) => `job resume ${job}`,
  quarantine: (job) => `job obligations ${job} --state quarantined`,
  ledger_filling: (job) => `job obligations ${job}`,
  schedule_invalid: (name) => `schedule show ${name}`,
  schedule_refused: (name) => `firings --schedule ${name}`,
  not_started: (name) => `schedule fire ${name}`,
  run_lost: (_, id) => `run show ${id}`,
  dead_letters: (topic) => `dead-letters ${topic}`,
};

function needOf({ kind, what, subject, id, detail }: v.InferOutput<typeof needs>["items"][number]): Need {
  const mend = Object.hasOwn(TRY, kind) ? TRY[kind] : undefined;
  return { what: detail === "" ? what : `${what}: ${detail}`, try: mend?.(subject, id) ?? "" };
}

/** Longest line on a pipe, characters. */
const LINE = 2_000;

/** A status as a screen of lines. */
export function toldStatus(status: Status, url: string, screen: Screen): string {
  const { needs, unseen } = status;
  const line = (text: string) => cut(visible(text), screen.columns ?? LINE);
  const todo = needs.flatMap((need) => [
    `${line(`  ${need.what}`)}\n`,
    ...(need.try === "" ? [] : [`${styled(screen, "dim", line(`    duework ${need.try}`))}\n`]),
  ]);
  return [
    `${headline(status, url, screen)}\n\n`,
    needs.length === 0 ? `${nothing(status)}\n` : `${styled(screen, "red", `Needs a person: ${needs.length}`)}\n`,
    ...todo,
    ...section("Topics", topicRows(status), screen),
    ...section("Jobs", jobRows(status), screen),
    ...section("Schedules", scheduleRows(status), screen),
    ...unseen.map((what) => `${styled(screen, "yellow", line(`Not looked at: ${what}`))}\n`),
  ].join("");
}

/** What is said where no need was found: nothing, or nothing that is known. */
function nothing({ unseen }: Status): string {
  return unseen.length === 0 ? "Nothing needs a person." : "Whether something needs a person is not known.";
}

function headline({ health: { status, tickAgeSeconds } }: Status, url: string, screen: Screen): string {
  const word = styled(screen, status === "ok" ? "green" : status === "starting" ? "yellow" : "red", visible(status));
  return `${url}: ${word}, ${tickAgeSeconds === null ? "no tick yet" : `last tick ${tickAgeSeconds} s ago`}`;
}

/** Rows of a list that a glance shows. */
const SHOWN = 15;

function section(title: string, rows: readonly object[], screen: Screen): string[] {
  if (rows.length === 0) return [];
  const more = rows.length > SHOWN ? [`  and ${rows.length - SHOWN} more\n`] : [];
  return ["\n", `${styled(screen, "bold", title)}\n`, tableOf(rows.slice(0, SHOWN), screen), ...more];
}

function topicRows({ topics }: Status) {
  return topics.map(({ module, topic, path, paused, ready, leased, dead, oldestDueAt }) => {
    return { topic: `${module}.${topic}`, path: paused ? `${path} (paused)` : path, ready, leased, dead, oldestDueAt };
  });
}

function jobRows({ jobs }: Status) {
  return jobs
    .filter(({ enabled, stopped }) => enabled || stopped)
    .map(({ id, stopped, failures, lastSlot, nextAt }) => {
      return { job: id, state: stopped ? "stopped" : "on", failures, lastSlot, nextAt };
    });
}

function scheduleRows({ schedules }: Status) {
  return schedules
    .filter(({ kind }) => kind === "stored")
    .map(({ name, state, nextAt }) => ({ schedule: name, state, nextAt }));
}

/** A status in one line, for a pipe. */
export function statusLine({ health, needs, topics }: Status, at: string): string {
  const sum = (of: "ready" | "leased" | "dead") => topics.reduce((total, topic) => total + topic[of].value, 0);
  const counts = `ready ${sum("ready")} leased ${sum("leased")} dead ${sum("dead")}`;
  const age = health.tickAgeSeconds === null ? "no tick" : `tick ${health.tickAgeSeconds} s`;
  return `${at} ${visible(health.status)} ${age} ${counts} needs ${needs.length}\n`;
}
