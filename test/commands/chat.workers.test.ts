import { env } from "cloudflare:workers";
import fc from "fast-check";
import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { chatForm, readChat, TEXT_MAX_BYTES } from "../../src/commands/chat.ts";
import { define, type Registered } from "../../src/commands/define.ts";
import { deploy } from "../../src/create-worker.ts";
import { recordsRetention } from "../../src/index.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { webhooks } from "../../src/modules/webhooks/index.ts";
import { platformPorts } from "../../src/platform.ts";
import { valuesOf } from "./schema-values.ts";

/** The commands of this repository's own Worker. */
const builtIn: ReadonlyMap<string, Registered> = deploy(
  { modules: [webhooks, merchants], catalog: [recordsRetention] },
  { ...env, DUEWORK_TOKENS: "[]" },
  platformPorts,
).dispatcher.registry();

const names = v.array(v.pipe(v.string(), v.minLength(1)));
const made = (name: string, args: v.GenericSchema, positional: string[] = []): Registered =>
  define({ name, effect: "read", grant: "x:read", help: name, positional }, args, async () => ({
    ok: true,
    result: null,
  }));
const add = made(
  "schedule.add",
  v.strictObject({
    name: v.string(),
    cron: v.string(),
    text: v.optional(v.string()),
    count: v.optional(v.number()),
    loud: v.optional(v.boolean()),
    until: v.optional(v.nullable(v.number())),
    grants: v.optional(
      v.strictObject({ actions: v.optional(v.union([v.literal("all"), names])), scopes: v.optional(names) }),
    ),
    any: v.optional(v.unknown()),
  }),
  ["name", "cron"],
);
const registry = new Map(
  [
    add,
    made("schedule", v.strictObject({})),
    made("schedule.add.now", v.strictObject({})),
    made("dispatch", v.looseObject({})),
  ].map((one) => [one.name, one]),
);
const read = (text: string) => readChat(text, registry);
const input = async (text: string) => {
  const answer = await read(text);
  if (!answer.ok) throw new Error(`${answer.code} ${answer.field}: ${answer.message}`);
  return answer.input;
};

describe("a text is a command", () => {
  test("by its name's words, the longest name first, whatever blanks stand between", async () => {
    expect(await read(" \n schedule \t add   nightly\n'0 3 * * *' ")).toMatchObject({
      ok: true,
      command: { name: "schedule.add" },
      input: { name: "nightly", cron: "0 3 * * *" },
      scope: null,
    });
    expect(await read("schedule add now")).toMatchObject({ ok: true, command: { name: "schedule.add.now" } });
    expect(await read("schedule")).toMatchObject({ ok: true, command: { name: "schedule" }, input: {} });
    expect(await read("dispatch")).toMatchObject({ ok: true, command: { name: "dispatch" } });
  });

  test("in the scope that stands before it", async () => {
    expect(await read("in acme/api: schedule")).toMatchObject({ ok: true, scope: "acme/api" });
    expect(await read("  in   a.b@c-1:schedule add x y")).toMatchObject({ scope: "a.b@c-1", input: { name: "x" } });
    expect(await read("in a b: schedule")).toMatchObject({ code: "no_route" });
  });

  test("or it has no route, even where its quotes are never closed", async () => {
    for (const text of [
      "",
      "   ",
      "don't",
      "in x:",
      "Schedule add a b",
      "scheduleadd",
      "schedule.add a b",
      "in acme/api: list it",
    ]) {
      expect(await read(text), text).toMatchObject({ ok: false, code: "no_route" });
    }
  });

  test("and a near name is named when there is none", async () => {
    for (const text of ["shedule", "schedul ad"])
      expect((await read(text)) as object).toMatchObject({
        code: "no_route",
        message: expect.stringContaining('"schedule'),
      });
  });
});

describe("arguments", () => {
  test("stand in order, or under their names in any of four forms, nested by dots", async () => {
    expect(await input("schedule add n c text=a --count 5 --loud=true until:=null grants.actions=all")).toEqual({
      name: "n",
      cron: "c",
      text: "a",
      count: 5,
      loud: true,
      until: null,
      grants: { actions: "all" },
    });
    expect(await input("schedule add cron=c n")).toEqual({ name: "n", cron: "c" });
  });

  test("are quoted from any place of a word: with escapes in double quotes, verbatim in single ones", async () => {
    expect(await input(String.raw`schedule add n 'it is \n' text="say \"hi\" \\ twice\nand \d"'"'`)).toEqual({
      name: "n",
      cron: String.raw`it is \n`,
      text: 'say "hi" \\ twice\nand \\d"',
    });
    expect(await input(`schedule add "" "a=b"`)).toEqual({ name: "", cron: "a=b" });
    expect(await input(`schedule add https://x/?a=b "--loud"`)).toEqual({ name: "https://x/?a=b", cron: "--loud" });
  });

  test("are text where the schema takes text, else JSON, else a list", async () => {
    expect(await input("schedule add 5 null count=5 loud=false until=null")).toEqual({
      name: "5",
      cron: "null",
      count: 5,
      loud: false,
      until: null,
    });
    expect(await input("schedule add n c grants.actions=a:read,b:read grants.scopes=x")).toMatchObject({
      grants: { actions: ["a:read", "b:read"], scopes: ["x"] },
    });
    expect(await input(`schedule add n c grants={"actions": ["a b"], "scopes": []}`)).toMatchObject({
      grants: { actions: ["a b"], scopes: [] },
    });
    expect(await input("schedule add n c any=5")).toMatchObject({ any: "5" });
    expect(await input(`schedule add n c any:=[1,{"a":"b c"}]`)).toMatchObject({ any: [1, { a: "b c" }] });
  });

  test("are read by a schema that says one thing at a time, later, or only that all of it is wrong", async () => {
    const slow: Registered = {
      ...made("slow", v.strictObject({})),
      args: {
        "~standard": {
          version: 1,
          vendor: "test",
          validate: async (value) => {
            const { a, b, c } = value as Record<string, unknown>;
            const fits = typeof a === "number" && typeof b === "string" && Array.isArray(c);
            return fits ? { value } : { issues: [{ message: "all wrong" }] };
          },
        },
      },
    };
    expect(await readChat("slow a=1 b=2 c=3", new Map([["slow", slow]]))).toMatchObject({
      ok: true,
      input: { a: 1, b: "2", c: ["3"] },
    });
    expect(await readChat("slow a=x b=2 c=3", new Map([["slow", slow]]))).toMatchObject({
      code: "bad_arguments",
      message: "all wrong",
    });
  });

  test("cost a bounded number of tries", async () => {
    let tries = 0;
    const never: Registered = {
      ...made("never", v.strictObject({})),
      args: {
        "~standard": {
          version: 1,
          vendor: "test",
          validate: () => {
            tries += 1;
            return { issues: [{ message: "no" }] };
          },
        },
      },
    };
    const text = `never ${Array.from({ length: 500 }, (_, index) => `k${index}=${index}`).join(" ")}`;
    expect(await readChat(text, new Map([["never", never]]))).toMatchObject({ code: "bad_arguments" });
    expect(tries).toBeGreaterThan(1);
    expect(tries).toBeLessThanOrEqual(64);
  });

  const wrong: [string, string, string, string | RegExp][] = [
    ["a quote that is never closed", `schedule add n "c`, "text", "position 16"],
    ["a single one", `schedule add n c text='a`, "text", "position 23"],
    ["a key twice", "schedule add n c text=a text=b", "text", "given twice"],
    ["one with a name that stood in order", "schedule add n c name=m", "name", "given twice"],
    ["an object and its part", "schedule add n c grants.actions=all grants={}", "grants", "given twice"],
    ["a part and its object", "schedule add n c grants={} grants.actions=all", "grants.actions", "given twice"],
    ["one in order too many", "schedule add n c extra", "text", "at most 2 (name, cron)"],
    ["a key without a value", "schedule add n c --text", "text", "no value"],
    ["no JSON after :=", "schedule add n c count:=five", "count", "not JSON"],
    ["a key that nobody knows", "schedule add n c colour=red", "colour", "colour"],
    ["one that is missing", "schedule add n", "cron", "cron"],
    ["a number that is none", "schedule add n c count=many", "count", /Expected number but received "many"/],
    ["an element that is refused", 'schedule add n c grants.scopes:=[""]', "grants.scopes[0]", "scopes[0]"],
    ["a step into the machinery", "schedule add n c __proto__.x=1", "__proto__.x", "no argument"],
    ["a NUL", "schedule add n c\0", "text", "position 17"],
    ["half a surrogate pair", "schedule add n \ud83d", "text", "position 16"],
  ];
  test.each(wrong)("are refused for %s", async (_, text, field, message) => {
    const answer = await read(text);
    expect(answer).toMatchObject({ ok: false, code: "bad_arguments", field });
    expect((answer as { message: string }).message).toMatch(message);
  });

  test("reach into nothing that objects inherit", async () => {
    for (const step of ["toString", "constructor", "valueOf", "hasOwnProperty"]) {
      expect(await input(`dispatch ${step}.polluted=1`)).toEqual({ [step]: { polluted: "1" } });
    }
    expect(Object.prototype.toString).not.toHaveProperty("polluted");
    expect(Object).not.toHaveProperty("polluted");
    expect(await read("dispatch a.__proto__.polluted=1")).toMatchObject({ code: "bad_arguments" });
    expect({}).not.toHaveProperty("polluted");
  });

  test("are no more than 8 KiB of UTF-8 with their command", async () => {
    const fill = TEXT_MAX_BYTES - "schedule add n ".length;
    expect(await read(`schedule add n ${"x".repeat(fill)}`)).toMatchObject({ ok: true });
    expect(await read(`schedule add n ${"x".repeat(fill + 1)}`)).toMatchObject({ code: "bad_arguments" });
    expect(await read(`schedule add n ${"é".repeat(fill / 2 + 1)}`)).toMatchObject({ code: "bad_arguments" });
  });

  test("of any text are answered, whatever it holds", async () => {
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: "binary", maxLength: 60 }), async (text) => {
        const answer = await read(`schedule add ${text}`);
        if (!answer.ok) expect(["bad_arguments", "no_route"]).toContain(answer.code);
      }),
    );
  });
});

describe("the texts of the contract", () => {
  const said: [string, string, object][] = [
    ["topic path webhooks.deliver queue", "topic.path", { topic: "webhooks.deliver", path: "queue" }],
    ["topic pause module=webhooks topic=deliver", "topic.pause", { module: "webhooks", topic: "deliver" }],
    ['job stop expiry "it hurts"', "job.stop", { id: "expiry", reason: "it hurts" }],
    [
      'item enqueue shop.work [{"payload": {"n": 1}}]',
      "item.enqueue",
      { topic: "shop.work", items: [{ payload: { n: 1 } }] },
    ],
    [
      "webhooks endpoint-add https://a.example/x?y=z *",
      "webhooks.endpoint-add",
      { url: "https://a.example/x?y=z", events: ["*"] },
    ],
    ["webhooks drain-now limit=5", "webhooks.drain-now", { limit: 5 }],
    ["webhooks report", "webhooks.report", {}],
    ["in acme/api: webhooks publish a.b data:={}", "webhooks.publish", { type: "a.b", data: {} }],
    [
      "plan approve nightly commands='topic pause webhooks.deliver'",
      "plan.approve",
      { name: "nightly", commands: ["topic pause webhooks.deliver"] },
    ],
    ["plan run nightly", "plan.run", { name: "nightly" }],
    [
      'schedule add nightly "0 3 * * *" text="webhooks report" channel=inbox:ops thread=standing grants.actions=webhooks:read',
      "schedule.add",
      {
        name: "nightly",
        cron: "0 3 * * *",
        text: "webhooks report",
        channel: "inbox:ops",
        thread: "standing",
        grants: { actions: ["webhooks:read"] },
      },
    ],
  ];
  test.each(said)("%s", async (text, name, input) => {
    expect(await readChat(text, builtIn)).toMatchObject({ ok: true, command: { name }, input });
  });
});

test("a value of the right type that is refused is blamed as what it is, not as text", async () => {
  const answer = await readChat("webhooks replay-dead limit=100", builtIn);
  expect(answer).toMatchObject({ ok: false, field: "limit", message: expect.stringContaining("received 100") });
});

describe("a chat form", () => {
  test("is what a person would type", () => {
    expect(
      chatForm(
        add,
        { cron: "0 3 * * *", name: "n", text: "webhooks report", count: 5, grants: { actions: ["a:read"] } },
        "acme/api",
      ),
    ).toBe('in acme/api: schedule add n "0 3 * * *" text="webhooks report" count:=5 grants.actions:=["a:read"]');
    expect(chatForm(add, { cron: "c" }, null)).toBe("schedule add cron=c");
  });

  test.each([...builtIn.keys()])("of %s reads back as the same command, arguments and scope", async (name) => {
    const command = builtIn.get(name) as Registered;
    const scopes = fc.option(fc.stringMatching(/^[\w./@-]{1,20}$/), { nil: null });
    await fc.assert(
      fc.asyncProperty(valuesOf(command.args), scopes, async (value, scope) => {
        const text = chatForm(command, value as Record<string, unknown>, scope);
        fc.pre(new TextEncoder().encode(text).length <= TEXT_MAX_BYTES && !text.includes("\0") && text.isWellFormed());
        const answer = await readChat(text, builtIn);
        expect(answer, text).toMatchObject({ ok: true, scope, command: { name } });
        // -0 is 0 in JSON, and in a text.
        expect((answer as { input: unknown }).input, text).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
  });
});
