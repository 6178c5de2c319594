import * as v from "valibot";
import { beforeEach, describe, expect, test } from "vitest";
import { type Actor, type Grants, scheduleActor, type Token } from "../../src/commands/actor.ts";
import { define, type Registered } from "../../src/commands/define.ts";
import { execute } from "../../src/commands/execute.ts";
import { checkPlan, PLAN_MS, type PlanRow, planCommands, readPlans } from "../../src/commands/plans.ts";
import { refuse } from "../../src/core/errors.ts";
import type { CommandAnswer } from "../../src/outbox/module.ts";
import { createWorld, DB } from "../outbox/world.ts";

const world = createWorld([]);
const ran: unknown[] = [];

const make = (name: string, more: Partial<Registered> = {}): Registered => ({
  ...define(
    { name, effect: "write", grant: `${name.split(".")[0]}:write`, help: "", positional: ["what"], scoped: true },
    v.strictObject({ what: v.string(), times: v.optional(v.number(), 1) }),
    async (args, _, actor, scope) => {
      ran.push([name, args, actor.id, scope]);
      return { ok: true, result: args.what };
    },
  ),
  ...more,
});

const ALL: Grants = { actions: "all", channels: "all", scopes: "all" };
const tokens: Token[] = [{ subject: "ann", sha256: "0".repeat(64), grants: ALL }];
const ann: Actor = { kind: "user", id: "http:ann", grants: ALL };
let registry: Map<string, Registered>;
let held: Token[];

beforeEach(async () => {
  ran.length = 0;
  held = [...tokens];
  await DB.exec("DELETE FROM plans");
  const list = [
    make("shop.open"),
    make("shop.close", { scoped: false }),
    make("stock.count"),
    make("shop.look", { effect: "read" }),
    make("shop.start", { effect: "exec" }),
    make("shop.key", { secret: true }),
    make("shop.mine", { personOnly: true }),
    ...planCommands({
      registry: () => registry,
      get tokens() {
        return held;
      },
    }),
  ];
  registry = new Map(list.map((one) => [one.name, one]));
});

const run = (name: string, input: unknown, actor: Actor = ann) =>
  execute(registry.get(name) as Registered, input, world.invocation(), actor, null);
const approve = (commands: unknown[], actor: Actor = ann) => run("plan.approve", { name: "nightly", commands }, actor);
const runner = (actions: string[], scopes: string[] = []) => scheduleActor("night", { actions, channels: [], scopes });
const stored = async (): Promise<PlanRow | null> =>
  (await readPlans(DB, ["nightly", "other"]).all<PlanRow>()).results[0] ?? null;
const check = async (actor: Actor, now = world.clock.now) =>
  checkPlan(await stored(), { tokens: held, registry, actor, now });

describe("a plan", () => {
  test("runs what was approved, in its order, as the runner and under his grants", async () => {
    expect(await approve(["in acme/api: shop open a times=2", { command: "shop.close", args: { what: "b" } }])).toEqual(
      {
        ok: true,
        result: {
          name: "nightly",
          digest: expect.stringMatching(/^[0-9a-f]{64}$/),
          expiresAt: new Date(world.clock.now + PLAN_MS).toISOString(),
        },
      },
    );
    const night = runner(["plan:run", "shop:write"], ["acme/api"]);
    expect(await check(night)).toBeNull();
    expect(await run("plan.run", { name: "nightly" }, night)).toEqual({
      ok: true,
      result: {
        ran: 2,
        of: 2,
        results: [
          { command: "shop.open", result: "a" },
          { command: "shop.close", result: "b" },
        ],
      },
    });
    expect(ran).toEqual([
      ["shop.open", { what: "a", times: 2 }, "schedule:night", "acme/api"],
      ["shop.close", { what: "b", times: 1 }, "schedule:night", null],
    ]);
  });

  test("is known by what it says, not by how it was typed", async () => {
    const digest = async (commands: unknown[]) =>
      ((await approve(commands)) as { result: { digest: string } }).result.digest;
    const first = await digest(["shop open a times=2"]);
    expect(await digest([{ command: "shop.open", args: { times: 2, what: "a" }, scope: null }])).toBe(first);
    expect(await digest(["shop open a times=3"])).not.toBe(first);
    expect(await digest(["in x: shop open a times=2"])).not.toBe(first);
  });

  test("is replaced by another approval under its name, and taken back", async () => {
    await approve(["shop open a"]);
    await approve(["shop close b"]);
    expect(await run("plan.list", {})).toMatchObject({
      result: { items: [{ name: "nightly", commands: ["shop close b"], approvedBy: "http:ann" }], nextCursor: null },
    });
    expect(await run("plan.remove", { name: "nightly" })).toMatchObject({ ok: true });
    expect(await run("plan.remove", { name: "nightly" })).toMatchObject({ code: "not_found" });
    expect(await run("plan.run", { name: "nightly" })).toMatchObject({ code: "plan_not_approved" });
  });

  const refused: [string, unknown[], string, RegExp][] = [
    ["no command", [], "commands", /./],
    ["more than twenty", Array(21).fill("shop open a"), "commands", /./],
    ["a text that is no command", ["shop open a", "please close"], "commands[1]", /no command begins/],
    ["an unknown command", [{ command: "shop.burn", args: {} }], "commands[0]", /no such command/],
    ["wrong arguments", ["shop open a times=many"], "commands[0]", /times/],
    ["wrong arguments of an object", [{ command: "shop.open", args: { what: 1 } }], "commands[0]", /what/],
    [
      "an argument that no text can name",
      [{ command: "shop.open", args: { what: "a", "a b": 1 } }],
      "commands[0]",
      /no text/,
    ],
    ["one that reads", ["shop look a"], "commands[0]", /writes nothing/],
    ["one that starts work", ["shop start a"], "commands[0]", /writes nothing/],
    ["one whose answer is a secret", ["shop key a"], "commands[0]", /secret/],
    ["one that is a person's alone", ["shop mine a"], "commands[0]", /only a person/],
    ["a plan", ["plan remove nightly"], "commands[0]", /no plans/],
  ];
  test.each(refused)("is not approved with %s", async (_, commands, field, message) => {
    const answer = await approve(commands);
    expect(answer).toMatchObject({ ok: false, code: "bad_arguments", field });
    expect((answer as { message: string }).message).toMatch(message);
    expect(await stored()).toBeNull();
  });

  test("is not approved by who lacks a grant or a scope that it needs", async () => {
    const bob = (grants: Partial<Grants>): Actor => ({ ...ann, id: "http:bob", grants: { ...ALL, ...grants } });
    expect(await approve(["shop open a", "stock count b"], bob({ actions: ["shop:write"] }))).toMatchObject({
      code: "not_granted",
      field: "stock:write",
    });
    expect(await approve(["in acme/api: shop open a"], bob({ scopes: ["acme/web"] }))).toMatchObject({
      code: "not_granted",
      field: "acme/api",
    });
    expect(await stored()).toBeNull();
  });

  test("does not run when it was changed, ended, or its approver is gone or lost a grant", async () => {
    const night = runner(["plan:run", "shop:write"]);
    const why = async (now?: number) => {
      const refusal = await check(night, now);
      expect(refusal).toMatchObject({ ok: false, code: "plan_not_approved" });
      return refusal?.message;
    };
    await approve(["shop open a"]);
    expect(await check(night, world.clock.now + PLAN_MS - 1)).toBeNull();
    expect(await why(world.clock.now + PLAN_MS)).toMatch(/ended/);
    held = [];
    expect(await why()).toMatch(/http:ann, who approved plan nightly, is gone/);
    held = [{ ...(tokens[0] as Token), grants: { ...ALL, actions: ["plan:write"] } }];
    expect(await why()).toMatch(/no longer holds shop:write/);
    held = [...tokens];
    registry.set("shop.open", make("shop.open", { secret: true }));
    expect(await why()).toMatch(/secret/);
    registry.delete("shop.open");
    expect(await why()).toMatch(/no such command/);
    registry.set("shop.open", make("shop.open"));
    await DB.exec("UPDATE plans SET commands = replace(commands, '\"a\"', '\"b\"')");
    expect(await why()).toMatch(/changed/);
    await DB.exec("UPDATE plans SET commands = '[5]'");
    expect(await why()).toMatch(/changed/);
    expect(await run("plan.run", { name: "nightly" }, night)).toMatchObject({ code: "plan_not_approved" });
    expect(await checkPlan(null, { tokens, registry, actor: night, now: 0 })).toMatchObject({
      code: "plan_not_approved",
    });
    expect(ran).toEqual([]);
  });

  test("runs nothing when its runner lacks what its last command needs", async () => {
    await approve(["shop close a", "in acme/api: stock count b"]);
    for (const [actor, missing] of [
      [runner(["plan:run", "shop:write"], ["acme/api"]), "stock:write"],
      [runner(["plan:run", "shop:write", "stock:write"]), "acme/api"],
    ] as const) {
      expect(await check(actor)).toMatchObject({ code: "not_granted", field: missing });
      expect(await run("plan.run", { name: "nightly" }, actor)).toMatchObject({ code: "not_granted", field: missing });
    }
    expect(ran).toEqual([]);
  });

  test("stops at the first command that is refused or throws, and says how many ran", async () => {
    await approve(["shop open a", "shop close b", "shop open c"]);
    const original = registry.get("shop.close") as Registered;
    const close = (answer: () => CommandAnswer) =>
      registry.set("shop.close", { ...original, run: async () => answer() });
    close(() => refuse("busy", "what", "it is busy"));
    expect(await run("plan.run", { name: "nightly" })).toEqual({
      ok: false,
      code: "busy",
      field: "what",
      message: "plan nightly: 1 of 3 ran, then shop.close was refused: it is busy",
    });
    close(() => {
      throw new Error("D1_ERROR: down");
    });
    await expect(run("plan.run", { name: "nightly" })).rejects.toThrow(
      /1 of 3 ran, then shop\.close threw Error: D1_ERROR: down/,
    );
    expect(ran.map((one) => (one as unknown[])[1])).toEqual([
      { what: "a", times: 1 },
      { what: "a", times: 1 },
    ]);
  });
});
