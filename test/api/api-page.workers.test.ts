import { expect, test } from "vitest";
import { checkoutExpiry } from "../../src/checkout/job.ts";
import { deploy } from "../../src/create-worker.ts";
import { recordsRetention } from "../../src/jobs/retention.ts";
import { merchants } from "../../src/modules/merchants/index.ts";
import { webhooks } from "../../src/modules/webhooks/index.ts";
import { platformPorts } from "../../src/platform.ts";
import { DB, HeldQueue } from "../outbox/world.ts";
import { apiPage, type Document } from "./api-page.ts";

test("docs/api.md is what the OpenAPI document says; npm run docs:api writes it", async () => {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode("token")));
  const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const env = { DB, ITEMS: new HeldQueue(), DUEWORK_TOKENS: JSON.stringify([{ subject: "ann", sha256, grants: {} }]) };
  const program = { modules: [webhooks, merchants], catalog: [recordsRetention, checkoutExpiry] };
  const { api } = deploy(program, env, platformPorts);
  const answer = await api.request("/openapi.json", { headers: { authorization: "Bearer token" } });
  expect(answer.status).toBe(200);
  await expect(apiPage((await answer.json()) as Document)).toMatchFileSnapshot("../../docs/api.md");
});
