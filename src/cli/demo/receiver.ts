import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Webhook } from "standardwebhooks";
import { failsAlways, failsOnce, type Plan } from "./plan.ts";

/** What the other side has seen. It knows nothing of the runtime. */
export interface Seen {
  requests: number;
  /** How often each delivery and poll was answered with an error, on purpose. */
  failed: Map<string, number>;
  /** One sentence each: a signature that does not verify, a delivery nobody planned. */
  complaints: string[];
  /** How often each delivery and poll was answered with success. */
  succeeded: Map<string, number>;
}

/** The other side of a demo: endpoints that verify what they get, and merchants' accounts. */
export interface Receiver {
  readonly url: string;
  readonly seen: Seen;
  /** Tells endpoint `index` its secret. */
  trust(index: number, secret: string): void;
  close(): Promise<void>;
}

export const hookPath = (index: number) => `/hooks/${index}`;
export const merchantPath = (index: number) => `/merchants/${index}`;

/** The name of a delivery in {@link Seen.succeeded}. */
export const deliveryKey = (endpoint: number, event: number) => `${endpoint}/${event}`;
/** The name of a poll in {@link Seen.succeeded}. */
export const pollKey = (merchant: number) => `merchant ${merchant}`;

interface Answer {
  status: number;
  body: unknown;
}

const OK: Answer = { status: 200, body: { ok: true } };
const FAILED: Answer = { status: 500, body: { ok: false } };
const NOT_FOUND: Answer = { status: 404, body: { ok: false } };

/** Listens on 127.0.0.1. */
export async function startReceiver(plan: Plan): Promise<Receiver> {
  const seen: Seen = { requests: 0, failed: new Map(), complaints: [], succeeded: new Map() };
  const secrets = new Map<number, Webhook>();
  const server = createServer(async (request, response) => {
    const answer = await take(request, plan, seen, secrets).catch((error: unknown) => {
      seen.complaints.push(`${request.url}: ${error}`);
      return NOT_FOUND;
    });
    reply(response, answer);
  });
  // The runtime's connections may idle longer than Node keeps them by default; a reset would look like a failure.
  server.keepAliveTimeout = 120_000;
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    seen,
    trust: (index, secret) => void secrets.set(index, new Webhook(secret)),
    close: () => close(server),
  };
}

async function take(
  request: IncomingMessage,
  plan: Plan,
  seen: Seen,
  secrets: ReadonlyMap<number, Webhook>,
): Promise<Answer> {
  seen.requests += 1;
  const [, kind, index] = /^\/(hooks|merchants)\/(\d+)$/.exec(request.url ?? "") ?? [];
  const number = Number(index);
  const body = await bodyOf(request);
  if (kind === "merchants" && number < plan.merchants && request.method === "GET") {
    return settle(seen, pollKey(number), failsOnce(number) ? 1 : 0);
  }
  const webhook = secrets.get(number);
  if (kind !== "hooks" || webhook === undefined || request.method !== "POST") {
    seen.complaints.push(`nobody planned ${request.method} ${request.url}`);
    return NOT_FOUND;
  }
  const event = verified(webhook, body, request.headers as Record<string, string>);
  if (typeof event === "string") {
    seen.complaints.push(`${request.url}: ${event}`);
    return { status: 401, body: { ok: false } };
  }
  if (!(event.order >= 0 && event.order < plan.events)) seen.complaints.push(`nobody planned event ${event.order}`);
  const failures = failsAlways(number, event.order) ? Number.POSITIVE_INFINITY : failsOnce(event.order) ? 1 : 0;
  return settle(seen, deliveryKey(number, event.order), failures);
}

/** The event's place in the demo, or why its signature is refused. */
function verified(webhook: Webhook, body: string, headers: Record<string, string>): { order: number } | string {
  try {
    const { data } = webhook.verify(body, headers) as { data?: { order?: unknown } };
    return { order: Number(data?.order) };
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

function settle(seen: Seen, key: string, failures: number): Answer {
  const failed = seen.failed.get(key) ?? 0;
  if (failed < failures) {
    seen.failed.set(key, failed + 1);
    return FAILED;
  }
  seen.succeeded.set(key, (seen.succeeded.get(key) ?? 0) + 1);
  return OK;
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  let body = "";
  for await (const chunk of request.setEncoding("utf8")) body += chunk;
  return body;
}

function reply(response: ServerResponse, { status, body }: Answer): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
}
