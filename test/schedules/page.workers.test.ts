import { beforeEach, describe, expect, test } from "vitest";
import readme from "../../README.md?raw";
import page from "../../docs/schedules.md?raw";
import decideSource from "../../src/commands/decide.ts?raw";
import viewsSource from "../../src/schedules/views.ts?raw";
import { MINUTE } from "../../src/core/time.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { webhooks } from "../../src/modules/webhooks/index.ts";
import { clear, createStage, type Stage } from "./stage.ts";

/** The page about stored schedules is held to the code: what it shows is run, what it lists is all there is. */

beforeEach(clear);

/** Lines of the page's examples, in their order. */
const lines = [...page.matchAll(/^```(sh|text)\n([\s\S]*?)^```$/gm)].flatMap(([, kind, block = ""]) =>
  block
    .split("\n")
    .filter((line) => line !== "" && !/^\w+\(\)/.test(line))
    .map((line) => ({ kind, line })),
);

/** The first cells of the table whose head begins with `first`, each word of them. */
function cells(first: string): string[] {
  const table = page.split(`\n| ${first} |`)[1]?.split("\n\n")[0] ?? "";
  return table
    .split("\n")
    .slice(2)
    .flatMap((row) => [...(row.split("|")[1] ?? "").matchAll(/`([^`]+)`/g)].map(([, word = ""]) => word));
}

/** The words of a type that is a list of texts. */
function wordsOf(source: string, type: string): string[] {
  const [, union = ""] = new RegExp(`export type ${type} =([^;]+);`).exec(source) ?? [];
  return [...union.matchAll(/"(\w+)"/g)].map(([, word = ""]) => word);
}

describe("the page about schedules", () => {
  test("shows calls, reads and texts that are taken as they stand, from top to bottom", async () => {
    const stage = await createStage({ modules: [webhooks, merchants] });
    let ran = 0;
    for (const { kind, line } of lines) {
      stage.clock.now += MINUTE;
      const [, name, json = ""] = /^call (\S+) '(.+)'$/.exec(line) ?? [];
      const [, path] = /^get '(.+)'$/.exec(line) ?? [];
      if (path !== undefined) expect((await stage.http("amy", "GET", `/api/${path}`)).status, line).toBe(200);
      else if (name !== undefined) {
        const args = await filledIn(stage, name, JSON.parse(json));
        const { status, json: answer } = await stage.http("amy", "POST", `/api/commands/${name}`, args);
        expect(status, `${line}: ${JSON.stringify(answer)}`).toBe(200);
      } else {
        expect(kind, `${line} is neither a call nor a read`).toBe("text");
        const { json: answer } = await stage.http("amy", "POST", "/api/commands/dispatch", {
          text: line,
          channel: "inbox:ops",
        });
        expect(answer, line).toMatchObject({ ok: true, result: { outcome: "admitted" } });
      }
      await stage.playAll();
      ran += 1;
    }
    expect(ran).toBeGreaterThan(15);
    const runs = await stage.allRuns();
    expect(runs.filter(({ status }) => status !== "succeeded").map(({ command, error }) => [command, error])).toEqual(
      [],
    );
    expect(runs.map(({ actor }) => actor)).toContain("schedule:nightly-report");
  });

  test("and the README's text adds a schedule as it stands", async () => {
    const stage = await createStage({ modules: [webhooks] });
    const [, text = ""] = /^```text\n(schedule add .+)\n```$/m.exec(readme) ?? [];
    await stage.command("amy", "dispatch", { text, channel: "inbox:ops" });
    await stage.playAll();
    expect((await stage.allRuns()).map(({ status }) => status)).toEqual(["succeeded"]);
    expect((await stage.row("nightly-report"))?.time_zone).toBe("Europe/Berlin");
  });

  test("lists every outcome of a firing, and every other code of a dispatch", () => {
    const codes = wordsOf(decideSource, "RefusalCode");
    expect(codes.length).toBeGreaterThan(8);
    const listed = cells("outcome").map((word) => word.replace("refused:", ""));
    const persons = ["secret_answer", "not_configured"];
    expect(listed.sort()).toEqual([...codes.filter((code) => !persons.includes(code)), "admitted", "claimed"].sort());
    for (const code of persons) expect(page).toContain(`\`${code}\``);
  });

  test("lists every state of a schedule", () => {
    expect(cells("state").sort()).toEqual(wordsOf(viewsSource, "ScheduleState").sort());
  });

  test("lists every argument of schedule.add", async () => {
    const stage = await createStage();
    const { json } = await stage.http("amy", "GET", "/api/commands");
    const add = (json.items as { name: string; args: { properties: object } }[]).find(
      ({ name }) => name === "schedule.add",
    );
    expect(
      cells("argument")
        .filter((word) => word !== "UTC")
        .sort(),
    ).toEqual(Object.keys(add?.args.properties ?? {}).sort());
  });
});

test("a firing that was refused is dispatched again by hand in its own minute, once it may; later it is another firing", async () => {
  const stage = await createStage({ modules: [webhooks] });
  const ask = () => stage.command("amy", "schedule.fire", { name: "planned" });
  await stage.add("planned", "* * * * *", "plan run morning", { grants: { actions: ["plan:run", "topic:write"] } });
  stage.minutes(1);
  await stage.tick();
  const [refused] = await stage.firings();
  expect(refused?.outcome).toBe("refused:plan_not_approved");
  expect(await ask()).toMatchObject({ code: "plan_not_approved" });
  expect(await stage.allRuns()).toEqual([]);

  await stage.command("amy", "plan.approve", { name: "morning", commands: ["topic resume webhooks.deliver"] });
  const again = await ask();
  expect(again).toMatchObject({ firing: refused?.id, outcome: "admitted" });
  expect(await ask()).toMatchObject({ firing: refused?.id, runId: again.runId });
  expect(await stage.firings()).toMatchObject([{ outcome: "admitted", refires: 1, refired_by: "http:amy" }]);

  await stage.playAll();
  stage.minutes(1);
  expect((await ask()).firing).not.toBe(refused?.id);
  expect(await stage.firings()).toHaveLength(2);
});

/** The ids that an example leaves out: of a refusal that a schedule was given, and of what was asked for. */
async function filledIn(stage: Stage, name: string, args: Record<string, unknown>): Promise<Record<string, unknown>> {
  if (name === "run.as-me") {
    const grants = { actions: ["topic:write"] };
    await stage.add("would-write", "* * * * *", "topic resume webhooks.deliver", { grants });
    stage.minutes(1);
    await stage.tick();
    const [firing] = await stage.firings("would-write");
    expect(firing?.outcome).toBe("refused:schedule_write");
    await stage.command("amy", "schedule.remove", { name: "would-write" });
    const refusal = (await stage.messages(firing?.thread ?? null)).find(({ kind }) => kind === "refusal");
    asked = (await stage.command("amy", "run.as-me", { message: refusal?.id })).confirmation;
    return { ...args, message: refusal?.id };
  }
  return name === "run.confirm" ? { ...args, id: asked } : args;
}

let asked: unknown = null;
