import { createApi, type Served } from "../../src/api/app.ts";
import { itemCommands } from "../../src/commands/items.ts";
import type { Job } from "../../src/jobs/catalog.ts";
import type { Selection } from "../../src/jobs/selection.ts";
import { meterDb } from "../../src/db/client.ts";
import { createMeter } from "../../src/db/meter.ts";
import type { Module } from "../../src/outbox/module.ts";
import { createWorld, DB } from "../outbox/world.ts";

const TOKEN = "the-token-of-ann";
const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(TOKEN)));
const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const tokens = [{ subject: "ann", sha256, grants: { actions: "all", channels: [], scopes: [] } }];

export interface Answer {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each test knows what it asked for
  json: any;
}

/** The API over a world's runtime and clock. `meter` counts what its reads and commands use of D1. */
export function createStage(
  modules: readonly Module[],
  jobs: { catalog?: readonly Job[]; selection?: Selection } = {},
) {
  const meter = createMeter();
  const world = createWorld(modules, { db: meterDb(DB, meter) });
  const app = createApi({
    runtime: world.runtime,
    problems: [],
    tokens,
    registry: new Map(itemCommands.map((command) => [command.name, command])),
    catalog: jobs.catalog ?? [],
    jobs: jobs.selection ?? { active: [], problems: [] },
    runs: null,
    clock: () => world.clock.now,
  } as unknown as Served);
  const ask = async (path: string, init: RequestInit = {}): Promise<Answer> => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
    const response = await app.request(`https://duework.test${path}`, { ...init, headers });
    return { status: response.status, json: await response.json() };
  };
  return {
    world,
    meter,
    get: ask,
    command: (name: string, args: unknown) =>
      ask(`/api/commands/${name}`, { method: "POST", body: JSON.stringify(args) }),
    /** Every page of a list, one after the other. */
    async pages(path: string): Promise<Answer["json"][]> {
      const items: unknown[] = [];
      let cursor: string | null = null;
      do {
        const at: string = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
        const { json } = await ask(`${path}${at}`);
        items.push(...json.items);
        cursor = json.nextCursor;
      } while (cursor !== null);
      return items;
    },
  };
}
