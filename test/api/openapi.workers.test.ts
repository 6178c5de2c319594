import { describe, expect, test, vi } from "vitest";
import * as v from "valibot";
import { command, createWorker, defineModule } from "../../src/index.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

const TOKEN = "the-token-of-ann";
const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(TOKEN)));
const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const standard = { "~standard": { version: 1 as const, vendor: "another", validate: (value: unknown) => ({ value }) } };
const answer = async () => ({ ok: true as const, result: {} });
const shop = defineModule("shop", {
  commands: [
    command({
      name: "shop.open",
      effect: "write",
      grant: "shop:write",
      help: "Open it.",
      args: v.strictObject({
        at: v.pipe(v.string(), v.isoTimestamp(), v.transform(Date.parse)),
        day: v.optional(v.date()),
        doors: v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(1)), 2),
        even: v.optional(
          v.pipe(
            v.number(),
            v.check((n) => n % 2 === 0),
          ),
        ),
      }),
      positional: ["at"],
      handle: answer,
    }),
    command({
      name: "shop.burn",
      effect: "write",
      grant: "shop:write",
      help: "Fail.",
      args: v.strictObject({}),
      handle: async () => Promise.reject(new Error("it burns")),
    }),
    command({
      name: "shop.close",
      effect: "write",
      grant: "shop:write",
      help: "Close it.",
      args: standard,
      handle: answer,
    }),
  ],
});
const worker = createWorker({ modules: [shop] });
const env = {
  DB,
  ITEMS: new HeldQueue(),
  DUEWORK_TOKENS: JSON.stringify([{ subject: "ann", sha256, grants: { actions: ["shop:write"] } }]),
};

async function call(path: string) {
  const request = new Request(`https://duework.test${path}`, { headers: { authorization: `Bearer ${TOKEN}` } });
  const response = await worker.fetch(request as never, env as never, {} as ExecutionContext);
  return { status: response.status, json: (await response.json()) as never as Record<string, never> };
}

describe("GET /api/commands", () => {
  test("lists all commands with what each takes, to whoever is signed in", async () => {
    const { status, json } = await call("/api/commands");
    expect(status).toBe(200);
    const { items, nextCursor } = json as unknown as {
      items: { name: string; args: object | null }[];
      nextCursor: null;
    };
    expect(nextCursor).toBeNull();
    const names = items.map(({ name }) => name);
    expect(names).toEqual([...names].sort());
    expect(names).toEqual(expect.arrayContaining(["item.enqueue", "job.stop", "schedule.add", "dispatch", "plan.run"]));
    expect(items.filter(({ args }) => args === null).map(({ name }) => name)).toEqual(["shop.close"]);
  });

  test("says what is sent, not what a transform makes of it, and leaves out what it cannot say", async () => {
    const { json } = await call("/api/commands");
    const open = (json.items as unknown as { name: string }[]).find(({ name }) => name === "shop.open");
    expect(open).toEqual({
      name: "shop.open",
      effect: "write",
      grant: "shop:write",
      help: "Open it.",
      positional: ["at"],
      scoped: false,
      secret: false,
      personOnly: false,
      args: {
        type: "object",
        properties: {
          at: { type: "string", format: "date-time" },
          day: { type: "string", format: "date-time" },
          doors: { type: "integer", minimum: 1, default: 2, maximum: expect.any(Number) },
          even: { type: "number" },
        },
        required: ["at"],
        additionalProperties: false,
      },
    });
  });
});

describe("/docs", () => {
  test("of a Worker without assets says where they are", async () => {
    for (const path of ["/docs", "/docs/"]) {
      const request = new Request(`https://duework.test${path}`, { headers: { authorization: `Bearer ${TOKEN}` } });
      const response = await worker.fetch(request as never, env as never, {} as ExecutionContext);
      expect(response.status, path).toBe(200);
      expect(await response.text()).toContain("node_modules/duework/dist/assets");
    }
    expect((await call("/docs/docs.js")).status).toBe(404);
  });
});

test("a request that failed is logged once, by its path alone, and one that was refused is not", async () => {
  const logged = vi.spyOn(console, "error").mockImplementation(() => {});
  const post = async (name: string) => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
    const request = new Request(`https://duework.test/api/commands/${name}`, { method: "POST", headers, body: "{}" });
    return (await worker.fetch(request as never, env as never, {} as ExecutionContext)).status;
  };
  expect(await post("shop.burn")).toBe(500);
  expect(await post("shop.open")).toBe(400);
  expect((await call("/api/nothing?token=hunter2")).status).toBe(404);
  const lines = logged.mock.calls.map(([line]) => JSON.parse(String(line)) as object);
  logged.mockRestore();
  const failure = { method: "POST", path: "/api/commands/shop.burn", status: 500, error: "Error: it burns" };
  expect(lines).toEqual([{ level: "error", event: "request_failed", ...failure }]);
});
