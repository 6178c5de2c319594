import { deploy } from "../../src/create-worker.ts";
import type { Job } from "../../src/jobs/catalog.ts";
import { meterDb } from "../../src/db/client.ts";
import { createMeter } from "../../src/db/meter.ts";
import type { Module } from "../../src/outbox/module.ts";
import { createWorld, DB } from "../outbox/world.ts";

const TOKEN = "the-token-of-ann";
const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(TOKEN)));
const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const DUEWORK_TOKENS = JSON.stringify([{ subject: "ann", sha256, grants: { actions: "all" } }]);

export interface Answer {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each test knows what it asked for
  json: any;
}

/** A Worker's API over a world's database, queue and clock. `meter` counts what its reads and commands use of D1. */
export function createStage(modules: readonly Module[], options: { catalog?: readonly Job[]; env?: object } = {}) {
  const meter = createMeter();
  const world = createWorld(modules);
  const env = { DB: meterDb(DB, meter), ITEMS: world.queue, DUEWORK_TOKENS, ...options.env };
  const { api, problems } = deploy({ modules, catalog: options.catalog ?? [] }, env, world.runtime.ports);
  if (problems.length > 0) throw new Error(JSON.stringify(problems));
  const ask = async (path: string, init: RequestInit = {}): Promise<Answer> => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
    const response = await api.request(`https://duework.test${path}`, { ...init, headers });
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
