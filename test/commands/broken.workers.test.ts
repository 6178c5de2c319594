import * as v from "valibot";
import { beforeEach, expect, test } from "vitest";
import { scheduleActor } from "../../src/commands/actor.ts";
import { missingFor } from "../../src/commands/plan-steps.ts";
import type { Router } from "../../src/commands/router.ts";
import { refuse } from "../../src/core/errors.ts";
import { readOnlyDb } from "../../src/db/read-only.ts";
import { command, defineModule } from "../../src/index.ts";
import { clear, createStage, DB } from "../schedules/stage.ts";

beforeEach(clear);

const at = (text: string) => Date.parse(`2026-03-${text}:00.000Z`);
const none = v.strictObject({});

test("a command whose answer is a secret is not run as me", async () => {
  const vault = defineModule("vault", {
    commands: [
      command({
        name: "vault.open",
        effect: "write",
        grant: "vault:write",
        help: "Answers a secret.",
        secret: true,
        args: none,
        handle: async () => ({ ok: true, result: { secret: "hush" } }),
      }),
    ],
  });
  const stage = await createStage({ modules: [vault] });
  const refused = await stage.command("amy", "dispatch", { text: "vault open", channel: "inbox:ops" });
  expect(refused).toMatchObject({ code: "secret_answer" });
  const thread = await DB.prepare("SELECT thread FROM messages LIMIT 1").first<string>("thread");
  const refusal = (await stage.messages(thread)).find(({ kind }) => kind === "refusal");
  const asked = await stage.command("amy", "run.as-me", { message: refusal?.id });
  expect(asked).toMatchObject({ code: "secret_answer" });
  expect(await stage.allRuns()).toEqual([]);
});

test("a command that ran and answered what is no JSON is said to have succeeded", async () => {
  const circle: Record<string, unknown> = {};
  circle.self = circle;
  for (const result of [{ n: 10n }, circle, { text: "x".repeat(10_000_000) }, undefined, "a\0\ud800"]) {
    await clear();
    const odd = defineModule("odd", {
      commands: [
        command({
          name: "odd.go",
          effect: "write",
          grant: "odd:write",
          help: "Answers oddly.",
          args: none,
          handle: async () => ({ ok: true, result }),
        }),
      ],
    });
    const stage = await createStage({ modules: [odd] });
    await stage.command("amy", "dispatch", { text: "odd go", channel: "inbox:ops" });
    await stage.playAll();
    const [run] = await stage.allRuns();
    expect(run).toMatchObject({ status: "succeeded" });
    expect(() => JSON.parse(run?.result ?? "")).not.toThrow();
  }
});

test("a run whose command refuses with a text that no store takes ends as failed, and its text is cut", async () => {
  for (const message of ["x".repeat(3_000_000), "a\0b", "\ud800"]) {
    await clear();
    const no = defineModule("no", {
      commands: [
        command({
          name: "no.go",
          effect: "exec",
          grant: "no:run",
          help: "Refuses.",
          args: none,
          handle: async () => refuse("nope", "field", message),
        }),
      ],
    });
    const stage = await createStage({ modules: [no] });
    await stage.command("amy", "dispatch", { text: "no go", channel: "inbox:ops" });
    await stage.playAll();
    const [run] = await stage.allRuns();
    expect(run).toMatchObject({ status: "failed" });
    expect(run?.error).toMatch(/^nope: [xa\uFFFD]/);
    expect(run?.error?.length).toBeLessThanOrEqual(1024);
    expect(run?.error).not.toContain("\0");
  }
});

test.each(["put", "go"])(
  "a text with JSON deeper than the database reads (any %s) is refused, and stops no other schedule",
  async (verb) => {
    const args = v.strictObject({ data: v.unknown() });
    const handle = async () => ({ ok: true as const, result: {} });
    const any = defineModule("any", {
      commands: [
        command({ name: "any.put", effect: "write", grant: "any:write", help: "Takes all.", args, handle }),
        command({ name: "any.go", effect: "exec", grant: "any:run", help: "Takes all.", args, handle }),
      ],
    });
    const stage = await createStage({ modules: [any] });
    const deep = `data:=${"[".repeat(2000)}${"]".repeat(2000)}`;
    await stage.add("deep", "* * * * *", `any ${verb} ${deep}`, { grants: { actions: ["any:run"] } });
    await stage.add("good", "* * * * *", "probe look");
    stage.minutes(1);
    await stage.tick();
    expect(await stage.firings("good")).toMatchObject([{ outcome: "admitted" }]);
    expect(await stage.firings("deep")).toMatchObject([{ outcome: "refused:bad_arguments" }]);
    const said = await stage.command("amy", "dispatch", { text: `any ${verb} data:=1e999`, channel: "inbox:ops" });
    expect(said).toMatchObject({ code: "bad_arguments", field: "data" });
  },
);

test("a read command that throws at once when its write is refused answers read_command_writes", async () => {
  const liar = defineModule("liar", {
    commands: [
      command({
        name: "liar.look",
        effect: "read",
        grant: "liar:read",
        help: "Lies.",
        args: none,
        handle: (_, ctx) =>
          ctx.db
            .prepare("DELETE FROM runs")
            .run()
            .then(() => ({ ok: true as const, result: {} })),
      }),
    ],
  });
  const stage = await createStage({ modules: [liar] });
  expect(await stage.command("amy", "liar.look")).toMatchObject({ code: "read_command_writes" });
});

test("a write behind a byte order mark is refused", () => {
  for (const sql of [
    "WITH x AS (SELECT 1) \uFEFFINSERT INTO plans SELECT * FROM x",
    "\uFEFFDELETE FROM plans",
    "WITH x AS (SELECT 1)\uFEFFDELETE FROM plans WHERE 1 IN (1) AND (SELECT 1)",
  ]) {
    expect(() => readOnlyDb(DB).prepare(sql), sql).toThrow(/writes/);
  }
});

test("a plan's step without a scope asks of a runner of some scopes which one, as every surface does", () => {
  const stock = {
    grant: "stock:write",
    scoped: true,
    name: "stock.set",
    effect: "write" as const,
    personOnly: false,
  };
  const runner = (scopes: string[]) => scheduleActor("n", { actions: ["stock:write"], channels: [], scopes });
  expect(
    missingFor({ command: "stock.set", args: {}, scope: null }, stock as never, runner(["shop-a"])),
  ).not.toBeNull();
  expect(
    missingFor({ command: "stock.set", args: {}, scope: "shop-a" }, stock as never, runner(["shop-a"])),
  ).toBeNull();
  expect(missingFor({ command: "stock.set", args: {}, scope: null }, stock as never, runner([]))).toBeNull();
});

test("a write within a text that a router inferred waits for confirmation", async () => {
  const router: Router = () => ({ command: "dispatch", args: { text: "probe change", channel: "inbox:ops" } });
  const stage = await createStage({ router });
  await stage.command("amy", "dispatch", { text: "please change it", channel: "inbox:ops" });
  await stage.playAll();
  await stage.playAll();
  expect(stage.seen).toEqual([]);
});

test("a command confirmed by text in the thread that asks runs there", async () => {
  const stage = await createStage();
  await stage.add("n", "0 3 * * *", "probe change", { thread: "standing" });
  stage.to(at("10T03:00"));
  await stage.tick();
  const { standing_thread: thread } = (await stage.row("n")) ?? {};
  const refusal = (await stage.messages(thread ?? "")).find(({ kind }) => kind === "refusal");
  const { confirmation } = await stage.command("amy", "run.as-me", { message: refusal?.id });
  await stage.command("amy", "dispatch", { text: `run confirm ${confirmation}`, channel: "inbox:ops", thread });
  await stage.playAll();
  await stage.playAll();
  expect(stage.seen).toMatchObject([{ command: "change", actor: "http:amy" }]);
});
