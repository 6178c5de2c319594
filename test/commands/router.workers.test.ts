import * as v from "valibot";
import { describe, expect, test } from "vitest";
import { define } from "../../src/commands/define.ts";
import { type Router, route } from "../../src/commands/router.ts";

const pause = define(
  { name: "topic.pause", effect: "write", grant: "topic:write", help: "Stop a topic.", positional: ["topic"] },
  v.strictObject({ topic: v.string(), version: v.optional(v.number()) }),
  async () => ({ ok: true, result: null }),
);
const note = define(
  { name: "topic.note", effect: "write", grant: "topic:write", help: "Note anything." },
  v.looseObject({}),
  async () => ({ ok: true, result: null }),
);
const registry = new Map([pause, note].map((one) => [one.name, one]));
const routed =
  (answer: unknown): Router =>
  () =>
    answer as never;
const prose = "in acme/api: please stop the deliveries";

describe("a text is routed", () => {
  test("by its own chat form, without the router", async () => {
    let asked = 0;
    const router: Router = () => {
      asked += 1;
      return null;
    };
    expect(await route("in acme/api: topic  pause   webhooks.deliver --version 2", registry, router)).toEqual({
      ok: true,
      command: pause,
      input: { topic: "webhooks.deliver", version: 2 },
      scope: "acme/api",
      inferred: false,
      form: "in acme/api: topic pause webhooks.deliver version:=2",
    });
    expect(await route("topic pause", registry, router)).toMatchObject({ code: "bad_arguments", field: "topic" });
    expect(asked).toBe(0);
  });

  test("by the router when no command begins it, and then it is inferred", async () => {
    const seen: unknown[] = [];
    const router: Router = async (text, commands) => {
      seen.push(text, commands);
      return { command: "topic.pause", args: { topic: "webhooks.deliver" }, scope: "acme/api" };
    };
    expect(await route(prose, registry, router)).toEqual({
      ok: true,
      command: pause,
      input: { topic: "webhooks.deliver" },
      scope: "acme/api",
      inferred: true,
      form: "in acme/api: topic pause webhooks.deliver",
    });
    expect(seen).toEqual([
      prose,
      [
        { name: "topic.pause", effect: "write", help: "Stop a topic." },
        { name: "topic.note", effect: "write", help: "Note anything." },
      ],
    ]);
    expect(await route(prose, registry, routed({ command: "topic.pause", args: { topic: "a" } }))).toMatchObject({
      ok: true,
      scope: null,
    });
  });

  const failing: [string, Router | null, RegExp][] = [
    ["there is none", null, /no command begins/],
    ["it finds nothing", routed(null), /no command begins/],
    [
      "it throws at once",
      () => {
        throw new Error("model down");
      },
      /model down/,
    ],
    [
      "it fails later",
      async () => {
        throw new Error("model gone");
      },
      /model gone/,
    ],
    ["it never answers", () => new Promise(() => {}), /did not answer within 30 ms/],
    ["its command is unknown", routed({ command: "topic.explode", args: {} }), /no command topic\.explode/],
    ["its arguments do not fit", routed({ command: "topic.pause", args: { topic: 5 } }), /topic\.pause: topic: /],
    [
      "an argument is none of the command's",
      routed({ command: "topic.pause", args: { topic: "a", as: "root" } }),
      /as/,
    ],
    ["an argument has a name that no text can hold", routed({ command: "topic.note", args: { "a b": 1 } }), /no text/],
    ["it answers nonsense", routed("topic pause a"), /no form/],
    ["it answers nothing at all", routed(undefined), /no JSON/],
    [
      "it adds what nobody asked",
      routed({ command: "topic.pause", args: { topic: "a" }, actor: "http:root" }),
      /no form/,
    ],
    ["its scope is none", routed({ command: "topic.pause", args: { topic: "a" }, scope: "a b: c" }), /no form/],
    ["it answers what is no data", routed({ command: "topic.pause", args: { topic: () => "a" } }), /no JSON/],
  ];
  test.each(failing)("no further when %s: no_route, and why", async (_, router, why) => {
    const answer = await route(prose, registry, router, 30);
    expect(answer).toMatchObject({ ok: false, code: "no_route", field: "text" });
    expect((answer as { message: string }).message).toMatch(why);
  });
});
