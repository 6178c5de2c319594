import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import { createStorefrontApp } from "../../checkout/storefront-app.ts";

/** The expired checkouts of a demo. Those of the first workspaces come first. Pure. */
export interface CheckoutPlan {
  checkouts: number;
  workspaces: number;
}

const WORKSPACES_MOST = 300;
/** The workspace that always fails, and the one that fails {@link FLAKY_FAILURES} times first. */
export const POISON = workspaceId(0);
const FLAKY = workspaceId(1);
const FLAKY_FAILURES = 2;

export function checkoutPlanOf(checkouts: number): CheckoutPlan {
  return { checkouts, workspaces: Math.min(WORKSPACES_MOST, checkouts) };
}

/** The id of workspace `index`, a UUID. */
export function workspaceId(index: number): string {
  return `00000000-0000-4000-8000-${index.toString(16).padStart(12, "0")}`;
}

/** What the storefront has seen, by its own count. It knows nothing of the runtime. */
export interface StorefrontSeen {
  /** How often each workspace was to be shown anew, and how often that succeeded. */
  asked: Map<string, number>;
  revalidated: Map<string, number>;
  /** Calls of the route that worked the job before. */
  routed: number;
  /** One sentence each: a call that nobody planned, or that was refused. */
  complaints: string[];
}

/** The app on the other side of checkout expiry. */
export interface Storefront {
  /** Where workspaces are shown anew. */
  readonly url: string;
  /** The app's own route for the whole job. */
  readonly routeUrl: string;
  readonly seen: StorefrontSeen;
  close(): Promise<void>;
}

const add = (counts: Map<string, number>, key: string) => void counts.set(key, (counts.get(key) ?? 0) + 1);

/** Listens on 127.0.0.1. `token` is asked for by both addresses. */
export async function startStorefront({ workspaces }: CheckoutPlan, token: string): Promise<Storefront> {
  const seen: StorefrontSeen = { asked: new Map(), revalidated: new Map(), routed: 0, complaints: [] };
  const planned = new Set(Array.from({ length: workspaces }, (_, index) => workspaceId(index)));
  const app = createStorefrontApp({
    token,
    invalidate(wsId) {
      if (!planned.has(wsId)) seen.complaints.push(`nobody planned the workspace ${wsId}`);
      add(seen.asked, wsId);
      if (wsId === POISON) throw new Error("this one always fails");
      if (wsId === FLAKY && (seen.asked.get(wsId) ?? 0) <= FLAKY_FAILURES) throw new Error("this one fails at first");
      add(seen.revalidated, wsId);
    },
  });
  const answer = async (request: IncomingMessage): Promise<Response> => {
    if (request.url === "/route" && request.headers.authorization === `Bearer ${token}`) {
      seen.routed += 1;
      return Response.json({ ok: true });
    }
    const { method = "GET", url = "/" } = request;
    const body = method === "GET" || method === "HEAD" ? null : new Uint8Array(await buffer(request));
    const headers = request.headers as Record<string, string>;
    return app.fetch(new Request(new URL(url, "http://127.0.0.1"), { method, headers, body }));
  };
  const server = createServer(async (request, response) => {
    const came = await answer(request).catch((error: unknown) => Response.json({ error: `${error}` }, { status: 500 }));
    if (!came.ok) seen.complaints.push(`${request.method} ${request.url} was answered ${came.status}`);
    response.writeHead(came.status, Object.fromEntries(came.headers));
    response.end(await came.text());
  });
  server.keepAliveTimeout = 120_000;
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url: `${url}/revalidate`,
    routeUrl: `${url}/route`,
    seen,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
