import { env } from "cloudflare:workers";
import * as v from "valibot";
import { deploy } from "../../src/create-worker.ts";
import { done } from "../../src/core/outcomes.ts";
import { meterDb } from "../../src/db/client.ts";
import { createMeter } from "../../src/db/meter.ts";
import { job } from "../../src/jobs/catalog.ts";
import { defineModule } from "../../src/outbox/module.ts";
import { topic } from "../../src/outbox/topic.ts";
import { createWorld, DB } from "../outbox/world.ts";

/** A Worker's panel over the real database, and browsers that keep its cookies. */

export const ORIGIN = "https://duework.test";
export const ACCOUNT = "0123456789abcdef0123456789abcdef";
const { ASSETS } = env as unknown as { ASSETS: Fetcher };

const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");

/** Who there is: `ann` may do all, `bob` looks at topics and jobs only. */
export const TOKENS = { ann: "the-token-of-ann", bob: "the-token-of-bob" } as const;
const all = { actions: "all", channels: "all", scopes: "all" };
const tokens = [
  { subject: "ann", sha256: await sha256(TOKENS.ann), grants: all },
  { subject: "bob", sha256: await sha256(TOKENS.bob), grants: { actions: ["topic:read", "job:read"] } },
];

const work = topic("shop.work", { schema: v.object({ n: v.number() }), handle: () => done() });
const shop = defineModule("shop", { topics: [work] });
const sweep = job({ id: "sweep", cron: "*/5 * * * *", processor: { kind: "module", handle: async () => {} } });
const expiry = job({
  id: "expiry",
  cron: "*/5 * * * *",
  processor: { kind: "workflow", binding: "CHECKOUT_EXPIRY" },
});

/** Never asked: the tests of runs have the real one. */
const runs = {
  createBatch: async () => ({ instances: [], errors: [] }),
  get: async () => Promise.reject(new Error("gone")),
};

export function createStage(subjects: readonly (keyof typeof TOKENS)[] = ["ann", "bob"]) {
  const world = createWorld([shop]);
  const meter = createMeter();
  const deployment = deploy(
    { modules: [shop], catalog: [sweep, expiry] },
    {
      DB: meterDb(DB, meter),
      ASSETS,
      ITEMS: world.queue,
      RUN: runs,
      CLOUDFLARE_ACCOUNT_ID: ACCOUNT,
      ENABLED_JOBS: "sweep",
      WORKER_PROCESSORS: "sweep",
      DUEWORK_TOKENS: JSON.stringify(tokens.filter(({ subject }) => subjects.some((one) => one === subject))),
    },
    world.runtime.ports,
  );
  if (deployment.runtime === null) throw new Error(JSON.stringify(deployment.problems));
  return { world, meter, browser: () => createBrowser(deployment) };
}

export type Browser = ReturnType<typeof createBrowser>;

function createBrowser({ panel, api }: Pick<ReturnType<typeof deploy>, "panel" | "api">) {
  const cookies = new Map<string, string>();
  async function ask(path: string, init: RequestInit = {}) {
    const headers = new Headers(init.headers);
    if (cookies.size > 0) headers.set("cookie", [...cookies].map(([name, value]) => `${name}=${value}`).join("; "));
    const served = path.startsWith("/panel") ? panel : api;
    const response = await served.request(`${ORIGIN}${path}`, { ...init, headers });
    for (const cookie of response.headers.getSetCookie()) {
      const [, name = "", value = ""] = /^([^=]+)=([^;]*)/.exec(cookie) ?? [];
      if (/Max-Age=0/i.test(cookie)) cookies.delete(name);
      else cookies.set(name, value);
    }
    return { status: response.status, headers: response.headers, text: await response.text() };
  }
  const post = (path: string, fields: Record<string, string>, headers: Record<string, string> = { origin: ORIGIN }) =>
    ask(path, { method: "POST", body: new URLSearchParams(fields), headers });
  return {
    cookies,
    get: ask,
    post,
    signIn: (token: string, headers?: Record<string, string>) =>
      post("/panel/sign-in", { token }, { origin: ORIGIN, ...headers }),
    /** The CSRF token of the session, as any page has it. */
    async csrf(): Promise<string> {
      const { text } = await ask("/panel");
      return /name="csrf" value="([^"]+)"/.exec(text)?.[1] ?? "";
    },
    async act(command: string, args: object, more: Record<string, string> = {}) {
      const csrf = await this.csrf();
      return post(`/panel/act/${command}`, { csrf, args: JSON.stringify(args), back: "/panel/topics", ...more });
    },
  };
}
