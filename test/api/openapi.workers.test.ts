import { describe, expect, test } from "vitest";
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
  DUEWORK_TOKENS: JSON.stringify([{ subject: "ann", sha256, grants: {} }]),
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
