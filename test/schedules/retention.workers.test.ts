import { beforeEach, expect, test } from "vitest";
import { DAY, MINUTE } from "../../src/core/time.ts";
import { KEEP_RUNS_MS } from "../../src/commands/runs.ts";
import { KEEP_THREADS_MS } from "../../src/commands/threads.ts";
import { KEEP_FIRINGS_MS, KEEP_NEWEST } from "../../src/schedules/firings.ts";
import { clear, createStage, DB, type Stage } from "./stage.ts";

beforeEach(clear);

/** Makes a schedule's history: a firing a day, the latest as old as may be kept. */
async function putHistory(stage: Stage, name: string, count: number): Promise<void> {
  const row = await stage.row(name);
  const latest = Math.floor((stage.clock.now - KEEP_FIRINGS_MS) / DAY) * DAY - DAY;
  await DB.batch(
    Array.from({ length: count }, (_, nth) =>
      DB.prepare(
        `INSERT INTO firings (id, schedule, name, slot, claimed_at, missed, cron, time_zone, fired_by, outcome)
         VALUES (?1, ?2, ?3, ?4, ?4, 0, '* * * * *', 'UTC', 'service:tick', 'refused:no_route')`,
      ).bind(`old-${name}-${nth}`, row?.id, name, latest - nth * DAY),
    ),
  );
}

test("old firings go, a few each time their schedule fires; its newest stay, and no other schedule's go", async () => {
  const stage = await createStage();
  await stage.add("often", "* * * * *", "probe look");
  await stage.add("yearly", "0 0 1 1 *", "probe look");
  await putHistory(stage, "often", KEEP_NEWEST + 10);
  await putHistory(stage, "yearly", KEEP_NEWEST + 10);

  stage.minutes(1);
  await stage.tick();
  const left = (await stage.firings("often")).length;
  expect(left).toBeLessThan(KEEP_NEWEST + 11);
  expect(left).toBeGreaterThan(KEEP_NEWEST);
  for (let nth = 0; nth < 12; nth += 1) {
    stage.minutes(1);
    await stage.tick();
  }
  const kept = await stage.firings("often");
  expect(kept).toHaveLength(KEEP_NEWEST);
  expect(kept.filter(({ id }) => !id.startsWith("old-"))).toHaveLength(13);
  expect(await stage.firings("yearly")).toHaveLength(KEEP_NEWEST + 10);
});

test("ended runs, messages and the threads they were in go after ninety days; a standing thread and a live run stay", async () => {
  const stage = await createStage();
  await stage.add("standing", "0 0 1 1 *", "probe look", { thread: "standing" });
  const standing = (await stage.row("standing"))?.standing_thread ?? null;
  const say = (text: string) => stage.command("amy", "dispatch", { text, channel: "inbox:ops" });
  const ended = await say("probe look");
  await stage.playAll();
  const live = await say("probe look");

  stage.to(stage.clock.now + Math.max(KEEP_RUNS_MS, KEEP_THREADS_MS) + MINUTE);
  await say("probe look");
  const latest = [...stage.runs.made.keys()].at(-1) ?? "";
  await stage.play(latest);

  expect((await stage.allRuns()).map(({ id }) => id).sort()).toEqual([live.runId, latest].sort());
  expect(await stage.run(ended.runId as string)).toBeNull();
  expect(await stage.messages(ended.thread as string)).toEqual([]);
  const threads = await DB.prepare("SELECT id FROM threads").all<{ id: string }>();
  const ids = threads.results.map(({ id }) => id);
  expect(ids).not.toContain(ended.thread);
  expect(ids).toContain(standing);
});
