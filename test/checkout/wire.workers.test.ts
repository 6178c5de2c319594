import { expect, it } from "vitest";
import { runSweep } from "../../src/checkout/run.ts";
import { connect } from "../../src/checkout/settings.ts";
import { Stage, Steps, workspace } from "./stage.ts";

/** A sweep over the real adapters, whose other sides misbehave. */

const SETTINGS = {
  storefront: { url: "https://storefront.test/revalidate", secret: "storefront-secret" },
  supabase: { url: "https://db.test", secret: "service-key" },
};

type Answer = (body: { workspaceIds: string[]; p_key: string }) => Response;

async function sweepOver(stage: Stage, rpc: Answer, storefront: Answer) {
  const requests: Request[] = [];
  const fetch = async (input: string | URL | Request, init?: RequestInit) => {
    const request = new Request(input as string, init);
    requests.push(request);
    const answer = request.url.startsWith("https://db.test") ? rpc : storefront;
    return answer(await request.clone().json());
  };
  const slot = await stage.claim();
  await runSweep({ ...stage.sweep(slot), ...connect(SETTINGS, fetch) }, new Steps().run);
  return { ...(await stage.slot(slot)), requests };
}

const row = (n: number) => ({ checkout_id: workspace(5_000 + n), ws_id: workspace(n) });
const rows: Answer = () => Response.json([row(1), row(2)]);
const confirm: Answer = ({ workspaceIds }) =>
  Response.json({ results: workspaceIds.map((wsId) => ({ wsId, ok: true })) });
const html = () => new Response("<html>sign in</html>", { headers: { "content-type": "text/html" } });
const redirect = () => new Response(null, { status: 302, headers: { location: "https://elsewhere.test/" } });

it("asks each side in its own way, and settles what is confirmed", async () => {
  const stage = await Stage.create("supabase");
  const { result, detail, requests } = await sweepOver(stage, rows, confirm);
  expect(result).toBe("succeeded");
  expect(detail).toMatchObject({ expired: 2, revalidated: 2, calls: { expiry: 1, storefront: 1 } });
  expect(requests.map(({ method, url }) => `${method} ${url}`)).toEqual([
    "POST https://db.test/rest/v1/rpc/expire_inventory_checkout_sessions",
    "POST https://storefront.test/revalidate",
  ]);
  expect(requests[0]?.headers.get("apikey")).toBe("service-key");
  expect(requests[1]?.headers.get("authorization")).toBe("Bearer storefront-secret");
});

it.each<[string, Answer]>([
  ["HTML", html],
  ["a redirect", redirect],
  ["10 MB", () => new Response(`[${" ".repeat(10 * 1024 * 1024)}]`)],
  ["rows that are no UUIDs", () => Response.json([{ checkout_id: "1", ws_id: "2" }])],
  ["an object", () => Response.json({ expired: 3 })],
  ["a checkout twice", () => Response.json([row(1), row(1)])],
  ["401", () => new Response("no", { status: 401 })],
  ["503", () => new Response("no", { status: 503 })],
])("the database answers %s: the slot fails and says why, nothing is recorded", async (_, rpc) => {
  const stage = await Stage.create("supabase");
  const { result, detail, requests } = await sweepOver(stage, rpc, confirm);
  expect(result).toBe("failed");
  expect(detail).toMatchObject({ stoppedBy: "expiry", expired: 0, error: expect.any(String) });
  expect(detail.error).not.toContain("service-key");
  expect(requests).toHaveLength(1);
  expect(await stage.obligations()).toEqual([]);
  expect(await stage.openKeys()).toHaveLength(1);
});

it.each<[string, Answer]>([
  ["HTML", html],
  ["a redirect", redirect],
  ["the old aggregate", () => Response.json({ ok: true, revalidated: 2 })],
  ["10 MB", () => new Response(`[${" ".repeat(10 * 1024 * 1024)}]`)],
  ["503", () => new Response("no", { status: 503 })],
])("the storefront answers %s: all stay owed, nobody is charged", async (_, storefront) => {
  const stage = await Stage.create("supabase");
  const { result, detail, requests } = await sweepOver(stage, rows, storefront);
  expect(result).toBe("failed");
  expect(detail).toMatchObject({ expired: 2, revalidated: 0, owed: 2 });
  expect(requests).toHaveLength(2);
  expect(await stage.charges()).toBe(0);
});

it.each<[string, Answer, number]>([
  ["for one only", ({ workspaceIds }) => Response.json({ results: [{ wsId: workspaceIds[0], ok: true }] }), 1],
  [
    "that contradict each other",
    ({ workspaceIds }) => Response.json({ results: [true, false].map((ok) => ({ wsId: workspaceIds[0], ok })) }),
    0,
  ],
  ["for a workspace that was not asked", () => Response.json({ results: [{ wsId: workspace(77), ok: true }] }), 0],
])("receipts %s: the others stay owed, and are charged", async (_, storefront, revalidated) => {
  const stage = await Stage.create("supabase");
  const { result, detail } = await sweepOver(stage, rows, storefront);
  expect(result).toBe("degraded");
  expect(detail).toMatchObject({ revalidated, owed: 2 - revalidated });
  expect(await stage.charges()).toBe(2 - revalidated);
});
