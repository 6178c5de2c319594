import { webhooks } from "../../src/modules/webhooks/index.ts";
import { createRig, type Rig } from "./rig.ts";

/** Where {@link addEndpoint} points. */
export const URL_A = "https://a.example/hook";

/** What a receiver was sent. */
export interface Call {
  url: string;
  headers: Record<string, string>;
  body: string;
}

/** A rig with receivers that answer as they are told, and what they were sent. */
export async function withReceivers(
  answer: (call: Call) => Response | Promise<Response> = () => new Response("ok"),
  options: Parameters<typeof createRig>[2] = {},
): Promise<Rig & { calls: Call[] }> {
  const calls: Call[] = [];
  const rig = await createRig(
    webhooks,
    async (request) => {
      const call = { url: request.url, headers: Object.fromEntries(request.headers), body: await request.text() };
      calls.push(call);
      return answer(call);
    },
    options,
  );
  return Object.assign(rig, { calls });
}

export const addEndpoint = (rig: Rig, more: object = {}): Promise<{ id: string; secret: string }> =>
  rig.result("webhooks.endpoint-add", { url: URL_A, events: ["*"], ...more });

export const publish = async (rig: Rig, data: unknown = { n: 1 }): Promise<string> =>
  (await rig.result("webhooks.publish", { type: "invoice.paid", data })).eventId;

// biome-ignore lint/suspicious/noExplicitAny: a test says what it expects
export const log = async (rig: Rig, eventId: string): Promise<any[]> =>
  (await rig.result("webhooks.deliveries", { eventId })).items;

export const deadLetters = async (rig: Rig) =>
  (await rig.db.prepare("SELECT id, reason, error, attempts FROM dead_letters").all()).results;

/** A rig whose receivers say ok, and the URLs that were called. */
export async function okRig(options: Parameters<typeof createRig>[2] = {}): Promise<Rig & { called: string[] }> {
  const called: string[] = [];
  const rig = await createRig(
    webhooks,
    (request) => {
      called.push(new URL(request.url).hostname);
      return new Response("ok");
    },
    options,
  );
  return Object.assign(rig, { called });
}

/** An endpoint on a host, for events of these types. */
export const add = (
  rig: Rig,
  host: string,
  events: string[],
  subject?: string,
): Promise<{ id: string; secret: string }> =>
  rig.result("webhooks.endpoint-add", {
    url: `https://${host}/`,
    events,
    ...(subject === undefined ? {} : { subject }),
  });
