import { env } from "cloudflare:workers";
import { beforeEach, describe, expect, test } from "vitest";
import { beginStep, executeStep } from "../../src/commands/run.ts";
import { CONFIRM_MS } from "../../src/commands/confirmations.ts";
import { MINUTE } from "../../src/core/time.ts";
import { ALL, clear, createStage, DB, type Stage } from "../schedules/stage.ts";

beforeEach(clear);

const say = (stage: Stage, text: string, more: Record<string, unknown> = {}, by = "amy") =>
  stage.command(by, "dispatch", { text, channel: "inbox:ops", ...more });
const kinds = async (stage: Stage, thread: unknown) =>
  (await stage.messages(thread as string)).map(({ kind, author }) => `${kind} ${author}`);

describe("a person's text", () => {
  test("`schedule add …` as chat text → the next tick fires it, with no restart", async () => {
    const stage = await createStage();
    const text = `schedule add chatty "* * * * *" text="probe look" channel=inbox:ops grants.actions=probe:read`;
    const said = await say(stage, text);
    expect(said).toMatchObject({ outcome: "admitted" });
    await stage.playAll();
    expect(await stage.run(said.runId as string)).toMatchObject({ status: "succeeded", actor: "http:amy" });
    stage.minutes(1);
    await stage.tick();
    await stage.playAll();
    expect(stage.seen).toEqual([{ command: "look", actor: "schedule:chatty", scope: null }]);
    expect(await kinds(stage, said.thread)).toEqual(["text http:amy", "receipt duework", "result duework"]);
  });

  test("goes on in its thread, and only in one of its channel", async () => {
    const stage = await createStage();
    const { thread } = await say(stage, "probe look");
    await stage.playAll();
    stage.minutes(1);
    expect(await say(stage, "probe go", { thread })).toMatchObject({ outcome: "admitted", thread });
    expect(await say(stage, "probe go", { thread, channel: "inbox:other" })).toMatchObject({ code: "not_found" });
    expect(await say(stage, "probe go", { thread: "thread-nowhere" })).toMatchObject({ code: "not_found" });
  });

  test("in a thread with a live run → thread_busy, and nothing more runs", async () => {
    const stage = await createStage();
    const { thread } = await say(stage, "probe go");
    const answers = await Promise.all(Array.from({ length: 4 }, () => say(stage, "probe go", { thread })));
    expect(answers.map(({ code }) => code)).toEqual(Array(4).fill("thread_busy"));
    await stage.playAll();
    expect(stage.seen).toHaveLength(1);
  });

  test("is refused what he does not hold: the command, the channel, the scope", async () => {
    const bob = {
      subject: "bob",
      grants: { actions: ["dispatch:run", "probe:read"], channels: ["inbox:ops"], scopes: ["shop-1"] },
    };
    const stage = await createStage({ people: [bob] });
    expect(await say(stage, "probe go", {}, "bob")).toMatchObject({ code: "not_granted", status: 403 });
    expect(await say(stage, "probe look", { channel: "inbox:hr" }, "bob")).toMatchObject({ code: "not_granted" });
    expect(await say(stage, "in shop-2: probe look", {}, "bob")).toMatchObject({ code: "not_granted" });
    expect(await say(stage, "in shop-1: probe look", {}, "bob")).toMatchObject({ outcome: "admitted" });
    expect(await say(stage, "do what I mean", {}, "bob")).toMatchObject({ code: "no_route" });
    await stage.playAll();
    expect(stage.seen).toEqual([{ command: "look", actor: "http:bob", scope: "shop-1" }]);
  });

  test("hostile text is refused or kept harmless, and starts nothing it does not say", async () => {
    const stage = await createStage();
    for (const text of [
      "",
      "   ",
      "a\0b",
      "\ud800",
      "x".repeat(200_000),
      "<img src=x onerror=alert(1)>",
      'probe look text="',
    ]) {
      expect(["no_route", "bad_arguments"]).toContain((await say(stage, text)).code);
    }
    expect(await say(stage, "x".repeat(1_000_000))).toMatchObject({ code: "body_too_large" });
    expect(await stage.allRuns()).toEqual([]);
    const texts = await DB.prepare("SELECT max(length(text)) AS n FROM messages").first<number>("n");
    expect(texts).toBeLessThanOrEqual(8_000);
  });

  test("the same message that comes twice from outside is dispatched once", async () => {
    const stage = await createStage();
    const { dispatchText } = await import("../../src/commands/dispatch.ts");
    const actor = { kind: "user" as const, id: "http:amy", grants: ALL };
    const ask = () =>
      dispatchText(stage.invocation(), stage.dispatcher, actor, {
        text: "probe go",
        channel: "inbox:ops",
        thread: null,
        messageId: "event-1",
      });
    await Promise.all([ask(), ask(), ask()]);
    await stage.playAll();
    await ask();
    await stage.playAll();
    expect(stage.seen).toHaveLength(1);
    expect(await stage.allRuns()).toHaveLength(1);
  });
});

describe("a router's guess", () => {
  const router = (text: string) =>
    text.includes("change")
      ? { command: "probe.change", args: { n: 3 } }
      : text.includes("look")
        ? { command: "probe.look", args: {} }
        : text.includes("odd")
          ? { command: "probe.look", args: { n: "many" } }
          : null;

  test("a read runs with its receipt; a write is handed back and runs only once its person has confirmed it", async () => {
    const stage = await createStage({ router });
    expect(await say(stage, "have a look please")).toMatchObject({ outcome: "admitted" });
    const offered = await say(stage, "please change it");
    expect(offered).toMatchObject({ outcome: "offered" });
    await stage.playAll();
    expect(stage.seen.map(({ command }) => command)).toEqual(["look"]);
    const asked = await stage.command("amy", "run.as-me", { message: offered.message });
    expect(asked).toMatchObject({ command: "probe.change", args: { n: 3 } });
    expect(await stage.command("amy", "run.confirm", { id: asked.confirmation })).toMatchObject({
      thread: offered.thread,
    });
    await stage.playAll();
    expect(stage.seen.at(-1)).toEqual({ command: "change", actor: "http:amy", scope: null });
  });

  test("what is nonsense is no_route, and a schedule's inferred write is refused schedule_write", async () => {
    const stage = await createStage({ router });
    expect((await say(stage, "something odd")).code).toMatch(/no_route|bad_arguments/);
    await stage.add("guessed", "* * * * *", "please change it", { grants: { actions: ["probe:write"] } });
    stage.minutes(1);
    await stage.tick();
    expect(await stage.firings()).toMatchObject([{ outcome: "refused:schedule_write" }]);
    expect(stage.runs.made.size).toBe(0);
  });
});

describe("run as me", () => {
  const people = [
    { subject: "amy", grants: ALL },
    { subject: "bob", grants: ALL },
    { subject: "eve", grants: { actions: ["dispatch:run"], channels: ["inbox:ops"] } },
  ];

  async function refused() {
    const stage = await createStage({ people });
    await stage.add("bump", "* * * * *", "probe change n=7");
    stage.minutes(1);
    await stage.tick();
    const [firing] = await stage.firings();
    const message = (await stage.messages(firing?.thread ?? null)).find(({ kind }) => kind === "refusal")?.id;
    return { stage, message, thread: firing?.thread };
  }

  test("a refused write of a schedule is run by a person under his own grants, once, however many confirm", async () => {
    const { stage, message, thread } = await refused();
    const first = await stage.command("amy", "run.as-me", { message });
    const second = await stage.command("bob", "run.as-me", { message });
    const answers = await Promise.all([
      stage.command("amy", "run.confirm", { id: first.confirmation }),
      stage.command("bob", "run.confirm", { id: second.confirmation }),
      stage.command("amy", "run.confirm", { id: first.confirmation }),
    ]);
    expect(answers.filter(({ runId }) => runId !== undefined)).toHaveLength(1);
    await stage.playAll();
    expect(await stage.command("bob", "run.confirm", { id: second.confirmation })).toMatchObject({
      code: "already_run",
    });
    expect(stage.seen).toHaveLength(1);
    expect(stage.seen[0]?.actor).toMatch(/^http:/);
    expect(await kinds(stage, thread)).toEqual([
      "lead schedule:bump",
      "refusal duework",
      "text duework",
      "text duework",
      "receipt duework",
      "result duework",
    ]);
  });

  test("it is authorized at that moment, given to nobody else, and for ten minutes", async () => {
    const { stage, message } = await refused();
    expect(await stage.command("eve", "run.as-me", { message })).toMatchObject({ code: "not_granted" });
    const { confirmation } = await stage.command("amy", "run.as-me", { message });
    expect(await stage.command("bob", "run.confirm", { id: confirmation })).toMatchObject({ code: "not_found" });
    const later = await stage.command("bob", "run.as-me", { message });
    await stage.redeploy([{ subject: "amy", grants: { actions: ["dispatch:run"], channels: "all" } }, people[1]!]);
    expect(await stage.command("amy", "run.confirm", { id: confirmation })).toMatchObject({ code: "not_granted" });
    stage.to(stage.clock.now + CONFIRM_MS);
    expect(await stage.command("bob", "run.confirm", { id: later.confirmation })).toMatchObject({
      code: "confirmation_expired",
    });
    expect(await stage.allRuns()).toEqual([]);
    expect(await stage.command("bob", "run.as-me", { message: "no-such" })).toMatchObject({ code: "not_found" });
  });
});

describe("a run", () => {
  test("interrupted while its command may have had its effect → lost, and the command is not run again", async () => {
    const stage = await createStage();
    const { runId } = await say(stage, "probe go");
    const begun = await beginStep(stage.invocation(), runId as string);
    if (begun === null) throw new Error("it did not begin");
    await executeStep(stage.invocation(), stage.dispatcher, begun);
    // The step's answer was lost with its isolate: the instance runs it again.
    expect(await stage.play(runId as string)).toBe("ended");
    expect(await stage.run(runId as string)).toMatchObject({ status: "lost" });
    expect(stage.seen).toHaveLength(1);
  });

  test("of a read that is interrupted → run again, since it changes nothing", async () => {
    const stage = await createStage();
    const { runId } = await say(stage, "probe look");
    const begun = await beginStep(stage.invocation(), runId as string);
    if (begun === null) throw new Error("it did not begin");
    await executeStep(stage.invocation(), stage.dispatcher, begun);
    await stage.play(runId as string);
    expect(await stage.run(runId as string)).toMatchObject({ status: "succeeded" });
  });

  test("that fails says why, harmlessly; a read that writes fails loudly", async () => {
    const stage = await createStage();
    const failing = await say(stage, "probe fail");
    const lying = await say(stage, "probe lie");
    await stage.playAll();
    expect(await stage.run(failing.runId as string)).toMatchObject({ status: "failed", error: "Error: it <broke>" });
    expect((await stage.run(lying.runId as string))?.error).toMatch(/^read_command_writes/);
  });

  test("is cancelled → ended, its thread is free, and what its instance still does changes nothing", async () => {
    const stage = await createStage();
    const { runId, thread } = await say(stage, "probe go");
    expect(await stage.command("amy", "run.cancel", { id: runId })).toMatchObject({ status: "cancelled" });
    expect(await stage.command("amy", "run.cancel", { id: runId })).toMatchObject({ code: "no_live_run" });
    expect(await stage.play(runId as string)).toBe("stale");
    expect(stage.seen).toEqual([]);
    expect(await say(stage, "probe go", { thread })).toMatchObject({ outcome: "admitted" });
  });

  test("cancelled while its command runs → stays cancelled, and says so once", async () => {
    const stage = await createStage();
    const { runId, thread } = await say(stage, "probe go");
    const begun = await beginStep(stage.invocation(), runId as string);
    if (begun === null) throw new Error("it did not begin");
    const end = await executeStep(stage.invocation(), stage.dispatcher, begun);
    await stage.command("amy", "run.cancel", { id: runId });
    const { finishStep } = await import("../../src/commands/run.ts");
    expect(await finishStep(stage.invocation(), stage.dispatcher, begun, end)).toBe("stale");
    expect(await stage.run(runId as string)).toMatchObject({ status: "cancelled" });
    expect((await kinds(stage, thread)).filter((kind) => kind.startsWith("result"))).toHaveLength(1);
  });

  test("whose instance was never made is made by the tick; one that nobody began in ten minutes ends, and its thread is free", async () => {
    const stage = await createStage();
    stage.runs.mode = "refuse";
    const first = await say(stage, "probe go");
    expect(first).toMatchObject({ outcome: "admitted" });
    stage.runs.mode = "take";
    stage.minutes(1);
    await stage.tick();
    expect([...stage.runs.made.keys()]).toEqual([first.runId]);
    await stage.playAll();
    stage.runs.mode = "refuse";
    const second = await say(stage, "probe go");
    for (let minute = 0; minute < 11; minute += 1) {
      stage.minutes(1);
      await stage.tick();
    }
    expect(await stage.run(second.runId as string)).toMatchObject({ status: "not_started" });
    stage.runs.mode = "take";
    expect(await say(stage, "probe go", { thread: second.thread })).toMatchObject({ outcome: "admitted" });
  });

  test("whose instance has started and is gone → lost, and said in its thread", async () => {
    const stage = await createStage();
    const { runId, thread } = await say(stage, "probe go");
    await beginStep(stage.invocation(), runId as string);
    stage.runs.made.set(runId as string, "errored");
    stage.minutes(6);
    await stage.tick();
    expect(await stage.run(runId as string)).toMatchObject({ status: "lost", error: "its instance is errored" });
    expect((await kinds(stage, thread)).at(-1)).toBe("result duework");
  });

  test("that outlasts its time → lost, though its instance says that it is running", async () => {
    const stage = await createStage();
    const { runId } = await say(stage, "probe go");
    await beginStep(stage.invocation(), runId as string);
    stage.runs.made.set(runId as string, "running");
    stage.minutes(6);
    await stage.tick();
    expect(await stage.run(runId as string)).toMatchObject({ status: "running" });
    stage.minutes(25);
    await stage.tick();
    expect(await stage.run(runId as string)).toMatchObject({ status: "lost" });
  });

  test("of twenty minutes does not lengthen the tick that admitted it, nor those after", async () => {
    const stage = await createStage();
    await stage.add("long", "*/5 * * * *", "probe go");
    stage.minutes(1);
    const before = Date.now();
    await stage.tick();
    const [made] = [...stage.runs.made.keys()];
    await beginStep(stage.invocation(), made ?? "");
    stage.runs.made.set(made ?? "", "running");
    for (let minute = 0; minute < 20; minute += 1) {
      stage.minutes(1);
      const { calls } = await stage.tick();
      expect(calls).toBeLessThanOrEqual(5);
    }
    expect(Date.now() - before).toBeLessThan(20 * MINUTE);
    expect(await stage.run(made ?? "")).toMatchObject({ status: "running" });
  });
});

describe("on the real Workflow", () => {
  const real = (env as unknown as { RUN: Workflow }).RUN;

  const ended = async (stage: Stage, id: string) => {
    for (let look = 0; look < 200; look += 1) {
      const run = await stage.run(id);
      if (run?.ended_at != null) return run;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`${id} did not end`);
  };

  test("a firing's run executes in its steps, is shown with them, and is there once however often it is made", async () => {
    const stage = await createStage({ start: Date.now(), env: { RUN: real } });
    await stage.add("audit", "* * * * *", "schedule list", { grants: { actions: ["schedule:read"] } });
    stage.minutes(1);
    await stage.tick();
    const [firing] = await stage.firings();
    const id = firing?.run ?? "";
    const run = await ended(stage, id);
    expect(run).toMatchObject({ status: "succeeded", actor: "schedule:audit", command: "schedule.list" });
    expect(JSON.parse(run.result ?? "{}")).toMatchObject({ items: expect.any(Array) });
    const steps = await DB.prepare("SELECT name FROM workflow_steps WHERE instance_id = ?1 ORDER BY position")
      .bind(id)
      .all();
    expect(steps.results.map(({ name }) => name)).toEqual(["begin", "execute", "finish"]);
    const again = await real.createBatch({ instances: [{ id, params: { run: id } }] });
    expect(again.errors).toMatchObject([{ code: 10_405 }]);
    const shown = await stage.http("amy", "GET", `/api/workflows/run/${id}`);
    expect(shown.json).toMatchObject({ status: "succeeded", platformStatus: "complete" });
  });
});
