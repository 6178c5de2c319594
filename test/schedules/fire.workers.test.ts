import { beforeEach, describe, expect, test } from "vitest";
import { job } from "../../src/jobs/catalog.ts";
import { clear, createStage, DB, type Stage } from "./stage.ts";

beforeEach(clear);

const at = (text: string) => Date.parse(`2026-03-${text}:00.000Z`);

describe("the trace: a roll during the tick, and a schedule whose text would write", () => {
  test("one due minute is one firing however many versions see it; a text that would write starts no run; a claim that never started is seen, and fired by hand once", async () => {
    const stage = await createStage({ start: at("10T02:30") });
    await stage.add("nightly-audit", "0 3 * * *", "probe look", { thread: "standing" });
    await stage.add("nightly-bump", "30 3 * * *", "probe change");
    const old = await stage.version();
    const fresh = await stage.version();

    // 1 and 2: the old version's tick claims what is due, and returns without waiting for the run.
    stage.to(at("10T03:00") + 5_000);
    await stage.tick(undefined, old);
    const [audit] = await stage.firings("nightly-audit");
    expect(audit).toMatchObject({ slot: at("10T03:00"), missed: 0, outcome: "admitted", cron: "0 3 * * *" });
    expect(audit && audit.claimed_at - audit.slot).toBe(5_000);
    expect(await stage.run(audit?.run ?? null)).toMatchObject({
      actor: "schedule:nightly-audit",
      status: "admitted",
      grants: JSON.stringify({ actions: ["probe:read", "probe:run"], channels: [], scopes: [] }),
    });
    expect(await stage.firings("nightly-bump")).toEqual([]);

    // 3: the new version's first tick finds nothing due.
    stage.to(at("10T03:01"));
    await stage.tick(undefined, fresh);
    expect(await stage.firings()).toHaveLength(1);

    // 4: the run goes on, and its receipt and result stand in the standing thread.
    await stage.playAll();
    expect(stage.seen).toEqual([{ command: "look", actor: "schedule:nightly-audit", scope: null }]);
    const thread = (await stage.row("nightly-audit"))?.standing_thread ?? null;
    expect((await stage.messages(thread)).map(({ kind, author }) => [kind, author])).toEqual([
      ["lead", "schedule:nightly-audit"],
      ["receipt", "duework"],
      ["result", "duework"],
    ]);

    // 5: the text that would write is refused before a run.
    stage.to(at("10T03:30") + 2_000);
    await stage.tick();
    const [bump] = await stage.firings("nightly-bump");
    expect(bump).toMatchObject({ outcome: "refused:schedule_write", run: null });
    expect(await stage.allRuns()).toHaveLength(1);
    const said = await stage.messages(bump?.thread ?? null);
    expect(said.map(({ kind }) => kind)).toEqual(["lead", "refusal"]);
    expect(JSON.parse(said[1]?.data ?? "{}")).toMatchObject({
      code: "schedule_write",
      command: "probe.change",
      args: {},
    });
    expect(said[1]?.text).toMatch(/\nprobe change$/);

    // 6: a version dies between the claim and the instance, for as long as a run may wait.
    stage.runs.mode = "refuse";
    stage.to(at("17T03:00") + 1_000);
    await stage.tick();
    stage.to(at("17T03:11"));
    await stage.tick();
    const [, , lost] = await stage
      .firings("nightly-audit")
      .then((all) => [...all.slice(0, 1), undefined, ...all.slice(1)]);
    expect(lost).toMatchObject({ slot: at("17T03:00"), outcome: "claimed" });
    expect(stage.logs.map(({ event }) => event)).toContain("schedule_not_started");
    const view = await stage.http("amy", "GET", "/api/schedules/nightly-audit");
    expect(view.json).toMatchObject({ state: "claimed_not_started", lastFiring: { outcome: "claimed" } });

    stage.runs.mode = "take";
    stage.to(at("17T03:12"));
    await stage.tick();
    expect((await stage.firings("nightly-audit")).at(-1)).toMatchObject({ outcome: "claimed" });
    const pressed = await stage.command("amy", "schedule.fire", { name: "nightly-audit" });
    expect(pressed).toMatchObject({ firing: lost?.id, outcome: "admitted" });
    await stage.playAll();
    expect(await stage.run(pressed.runId as string)).toMatchObject({
      actor: "schedule:nightly-audit",
      status: "succeeded",
    });
    expect((await stage.firings("nightly-audit")).at(-1)).toMatchObject({ refired_by: "http:amy", refires: 1 });
  });
});

test("an hour of missed ticks is one firing, and says how many it stands for", async () => {
  const stage = await createStage({ start: at("10T02:00") });
  await stage.add("often", "* * * * *", "probe look");
  stage.to(at("10T02:01"));
  await stage.tick();
  await stage.playAll();
  stage.to(at("10T03:01") + 400);
  await stage.tick();
  expect(await stage.firings()).toMatchObject([
    { slot: at("10T02:01"), missed: 0 },
    { slot: at("10T03:01"), missed: 59 },
  ]);
});

test("added → due at the first minute strictly after it; enabled anew → counted from then, so it does not fire at once", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("hourly", "0 * * * *", "probe look");
  stage.to(at("10T02:59") + 59_000);
  await stage.tick();
  expect(await stage.firings()).toEqual([]);
  await stage.command("amy", "schedule.disable", { name: "hourly" });
  stage.to(at("12T11:30"));
  await stage.tick();
  await stage.command("amy", "schedule.enable", { name: "hourly" });
  await stage.tick();
  expect(await stage.firings()).toEqual([]);
  stage.to(at("12T12:00"));
  await stage.tick();
  expect(await stage.firings()).toMatchObject([{ slot: at("12T12:00"), missed: 0 }]);
});

test("removed and added anew within its due minute → another row, which is not due in it", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("hourly", "0 * * * *", "probe look");
  stage.to(at("10T03:00") + 1_000);
  await stage.tick();
  await stage.command("amy", "schedule.remove", { name: "hourly" });
  await stage.add("hourly", "0 * * * *", "probe look");
  await stage.tick();
  expect(await stage.firings()).toHaveLength(1);
  stage.to(at("10T04:00"));
  await stage.tick();
  const firings = await stage.firings("hourly");
  expect(firings).toHaveLength(2);
  expect(new Set(firings.map(({ schedule }) => schedule)).size).toBe(2);
});

test("a standing thread that is busy → refused:thread_busy, not tried again at the next tick, fired at the next due minute", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("quarterly", "*/15 * * * *", "probe go", { thread: "standing" });
  stage.to(at("10T03:00"));
  await stage.tick();
  const [first] = await stage.firings();
  stage.to(at("10T03:15"));
  // The run is running: nothing of it is played yet.
  stage.runs.made.set(first?.run ?? "", "running");
  await DB.prepare("UPDATE runs SET status = 'running', started_at = ?1, checked_at = ?2")
    .bind(at("10T03:00"), at("10T03:14"))
    .run();
  await stage.tick();
  expect((await stage.firings()).at(-1)).toMatchObject({ outcome: "refused:thread_busy", run: null });
  stage.to(at("10T03:16"));
  await stage.tick();
  expect(await stage.firings()).toHaveLength(2);
  await stage.play(first?.run ?? "");
  stage.to(at("10T03:17"));
  await stage.tick();
  expect(await stage.firings()).toHaveLength(2);
  stage.to(at("10T03:30"));
  await stage.tick();
  expect((await stage.firings()).at(-1)).toMatchObject({ slot: at("10T03:30"), outcome: "admitted" });
});

describe("grants", () => {
  test("a write is refused schedule_write whether its row holds the grant or not", async () => {
    const stage = await createStage({ start: at("10T02:59") });
    await stage.add("with", "0 3 * * *", "probe change", { grants: { actions: ["probe:write"] } });
    await stage.add("without", "0 3 * * *", "probe change", { grants: { actions: [] } });
    stage.to(at("10T03:00"));
    await stage.tick();
    expect((await stage.firings()).map(({ outcome }) => outcome)).toEqual([
      "refused:schedule_write",
      "refused:schedule_write",
    ]);
    expect(stage.runs.made.size).toBe(0);
    expect(await stage.allRuns()).toEqual([]);
  });

  test("a schedule does what its row grants, and is refused all else", async () => {
    const stage = await createStage({ start: at("10T02:59") });
    const grants = { actions: ["probe:read"], scopes: ["shop-7"] };
    await stage.add("granted", "0 3 * * *", "probe look", { grants: { actions: ["probe:read"] } });
    await stage.add("unsaid", "0 3 * * *", "probe look", { grants });
    await stage.add("scoped", "0 3 * * *", "in shop-7: probe look", { grants });
    await stage.add("foreign", "0 3 * * *", "in shop-8: probe look", { grants });
    await stage.add("exec", "0 3 * * *", "probe go", { grants });
    await stage.add("fires", "0 3 * * *", "schedule fire granted", { grants: { actions: ["schedule:fire"] } });
    await stage.add("nested", "0 3 * * *", 'dispatch "probe look" channel=inbox:ops', {
      grants: { actions: ["dispatch:run"] },
    });
    await stage.add("prose", "0 3 * * *", "please look at it", { grants });
    await stage.add("odd", "0 3 * * *", "probe look n=many", { grants });
    stage.to(at("10T03:00"));
    await stage.tick();
    const outcomes = Object.fromEntries((await stage.firings()).map(({ name, outcome }) => [name, outcome]));
    expect(outcomes).toEqual({
      granted: "admitted",
      unsaid: "refused:not_granted",
      scoped: "admitted",
      foreign: "refused:not_granted",
      exec: "refused:not_granted",
      fires: "refused:schedule_fire",
      nested: "refused:schedule_fire",
      prose: "refused:no_route",
      odd: "refused:bad_arguments",
    });
    await stage.playAll();
    expect(stage.seen.map(({ scope }) => scope).sort()).toEqual([null, "shop-7"].sort());
  });

  test("an author who has lost a grant that the row holds, or is gone → refused:author_lost_grant, never narrowed", async () => {
    const people = [
      { subject: "amy", grants: { actions: "all" as const, channels: "all" as const } },
      { subject: "bob", grants: { actions: ["schedule:write", "probe:read", "probe:run"], channels: ["inbox:ops"] } },
    ];
    const stage = await createStage({ start: at("10T02:59"), people });
    await stage.add("bobs", "* * * * *", "probe look", {}, "bob");
    stage.to(at("10T03:00"));
    await stage.tick();
    await stage.redeploy([
      people[0]!,
      { subject: "bob", grants: { actions: ["probe:read"], channels: ["inbox:ops"] } },
    ]);
    stage.to(at("10T03:01"));
    await stage.tick();
    await stage.redeploy([people[0]!]);
    stage.to(at("10T03:02"));
    await stage.tick();
    expect((await stage.firings()).map(({ outcome, detail }) => [outcome, detail])).toEqual([
      ["admitted", ""],
      ["refused:author_lost_grant", "http:bob no longer holds probe:run"],
      ["refused:author_lost_grant", "http:bob is gone"],
    ]);
  });

  test("an author cannot give what he does not hold, nor name a channel that is not his", async () => {
    const bob = { subject: "bob", grants: { actions: ["schedule:write", "probe:read"], channels: ["inbox:ops"] } };
    const stage = await createStage({ people: [bob] });
    const grants = { actions: ["probe:read"] };
    expect(await stage.add("a", "* * * * *", "probe go", {}, "bob")).toMatchObject({
      code: "not_granted",
      field: "grants.actions",
    });
    expect(await stage.add("b", "* * * * *", "probe look", { grants, channel: "inbox:hr" }, "bob")).toMatchObject({
      code: "not_granted",
      field: "channel",
    });
    expect(await stage.add("c", "* * * * *", "probe look", { grants }, "bob")).toMatchObject({ name: "c" });
  });
});

test("rows that are bad all the same fire nothing, are shown as invalid, and stop no other", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("good", "* * * * *", "probe look");
  const put = (name: string, change: string) =>
    DB.prepare(
      `INSERT INTO schedules (id, name, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by, anchored_at)
       SELECT 'id-' || ?1, ?1, cron, time_zone, text, channel, thread, grants, enabled, created_at, created_by, anchored_at FROM schedules WHERE name = 'good'`,
    )
      .bind(name)
      .run()
      .then(() => DB.prepare(`UPDATE schedules SET ${change} WHERE name = '${name}'`).run());
  await put("bad-cron", "cron = '0 0 31 2 *'");
  await put("bad-zone", "time_zone = '+05:30'");
  await put("bad-grants", "grants = 'nonsense'");
  await put("all-grants", `grants = '{"actions":"all"}'`);
  await put("bad-channel", "channel = 'pigeon:ops'");
  await put("webhook", "channel = 'webhook:ops'");
  await put("empty", "text = ''");
  await put("html", "text = '<img src=x onerror=alert(1)>'");
  stage.to(at("10T03:00"));
  await stage.tick();
  const outcomes = Object.fromEntries((await stage.firings()).map(({ name, outcome }) => [name, outcome]));
  expect(outcomes).toEqual({
    good: "admitted",
    "bad-grants": "refused:invalid_row",
    "all-grants": "refused:invalid_row",
    "bad-channel": "refused:invalid_row",
    webhook: "refused:invalid_row",
    empty: "refused:invalid_row",
    html: "refused:no_route",
  });
  expect(stage.logs.filter(({ event }) => event === "firing_failed")).toEqual([]);
  const { json } = await stage.http("amy", "GET", "/api/schedules");
  const states = Object.fromEntries(
    (json.items as { name: string; state: string }[]).map(({ name, state }) => [name, state]),
  );
  expect(states).toMatchObject({
    "bad-cron": "invalid",
    "bad-zone": "invalid",
    "bad-grants": "invalid",
    good: "starting",
  });
});

test("a clock that steps back fires no minute anew; one that steps forward fires each schedule once", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("often", "*/5 * * * *", "probe look");
  stage.to(at("10T03:05") + 1_000);
  await stage.tick();
  stage.to(at("10T03:00") + 1_000);
  await stage.tick();
  expect(await stage.firings()).toHaveLength(1);
  stage.to(at("10T04:05"));
  await stage.tick();
  expect(await stage.firings()).toMatchObject([{ slot: at("10T03:05") }, { slot: at("10T04:05"), missed: 11 }]);
});

test("a hundred due rows in one tick: ten calls to D1 at most, one to the Workflow, and each fires", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  for (let n = 0; n < 100; n += 1) await stage.add(`s${n}`, "* * * * *", `probe look n=${n}`);
  expect(await stage.add("one-more", "* * * * *", "probe look")).toMatchObject({ code: "schedules_full" });
  stage.to(at("10T03:00"));
  stage.runs.calls = 0;
  const report = await stage.tick();
  expect(report.firings).toBe(100);
  expect(report.calls).toBeLessThanOrEqual(10);
  expect(stage.runs.calls).toBe(1);
  expect(stage.runs.made.size).toBe(100);
  expect((await stage.firings()).map(({ outcome }) => outcome)).toEqual(Array(100).fill("admitted"));
});

test("with no stored row a tick writes nothing about schedules", async () => {
  const stage = await createStage();
  const before = await stage.tick();
  expect(before).toMatchObject({ firings: 0, failed: 0 });
  const tables = ["schedules", "firings", "runs", "threads", "messages"];
  for (const table of tables) expect(await DB.prepare(`SELECT count(*) AS n FROM ${table}`).first("n")).toBe(0);
  expect(before.rowsWritten).toBeLessThanOrEqual(2);
});

test("the catalog's jobs fire exactly the same beside rows that are due, off, bad and as many as there may be", async () => {
  const work = (id: string, cron: string) => job({ id, cron, processor: { kind: "module", handle: async () => {} } });
  const jobs = [work("minutely", "* * * * *"), work("fifth", "*/5 * * * *")];
  const env = { ENABLED_JOBS: "minutely,fifth", WORKER_PROCESSORS: "minutely,fifth" };
  const slotsOf = async (prepare: (stage: Stage) => Promise<void>) => {
    await clear();
    const stage = await createStage({ start: at("10T02:58"), jobs, env });
    await prepare(stage);
    const sent: unknown[] = [];
    for (let minute = 0; minute < 7; minute += 1) {
      stage.minutes(minute === 3 ? 4 : 1);
      await stage.tick();
      sent.push(...stage.queue.take().map(({ body }) => body));
    }
    const { results } = await DB.prepare("SELECT * FROM slots ORDER BY job, slot").all();
    return { results, sent };
  };
  const alone = await slotsOf(async () => {});
  const beside = await slotsOf(async (stage) => {
    for (let n = 0; n < 97; n += 1) await stage.add(`s${n}`, "* * * * *", n % 2 === 0 ? "probe look" : "probe change");
    await stage.add("off", "* * * * *", "probe look");
    await stage.command("amy", "schedule.disable", { name: "off" });
    await stage.add("bad", "* * * * *", "probe look");
    await DB.prepare("UPDATE schedules SET cron = 'nonsense', grants = '[' WHERE name = 'bad'").run();
    expect(await stage.add("minutely", "* * * * *", "probe look")).toMatchObject({ code: "name_taken", status: 409 });
  });
  expect(beside).toEqual(alone);
  expect(alone.results.length).toBeGreaterThan(3);
});

test("a read that fails fires nothing, is said once, and the next tick makes good", async () => {
  const stage = await createStage({ start: at("10T02:59") });
  await stage.add("often", "* * * * *", "probe look");
  stage.to(at("10T03:00"));
  const shut = new Proxy(DB, {
    get(target, name) {
      if (name === "batch") return () => Promise.reject(new Error("D1_ERROR: D1 DB is overloaded."));
      const member = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
  await expect(stage.tick(undefined, await stage.version(shut))).rejects.toThrow("overloaded");
  expect(await stage.firings()).toEqual([]);
  expect(stage.logs.filter(({ level }) => level === "error")).toEqual([]);
  stage.to(at("10T03:01"));
  await stage.tick();
  expect(await stage.firings()).toMatchObject([{ slot: at("10T03:01"), missed: 1, outcome: "admitted" }]);
});

test("an argument that is missing, or that there is not, is said in plain words", async () => {
  const stage = await createStage();
  const add = (args: Record<string, unknown>) => stage.command("amy", "schedule.add", args);
  expect(await add({ name: "a", text: "probe look" })).toMatchObject({ field: "cron", detail: "cron: it is needed" });
  expect(await add({ name: "a", cron: "* * * * *", text: "x", grants: { action: [] } })).toMatchObject({
    field: "grants.action",
    detail: "grants.action: there is no such argument",
  });
  const zone = { name: "a", cron: "* * * * *", text: "x", timeZone: "CET" };
  expect(await add(zone)).toMatchObject({ field: "timeZone", detail: expect.stringContaining("names no area") });
});
