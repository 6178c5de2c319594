import * as v from "valibot";
import { checkDestination, type Command, type CommandAnswer, command, type Context } from "../../index.ts";
import { deliver } from "./deliver.ts";
import { eventId, eventType, subject } from "./event.ts";
import { deadLettersToReplay, listDeliveries, listEndpoints, summarizeDeliveries } from "./find.ts";
import { hex, planEvent } from "./publish.ts";
import { KEEP_DAYS } from "./retention.ts";
import type { Settings } from "./settings.ts";
import { newSecret } from "./sign.ts";
import { dayOf, insertEndpoint, removeEndpoint, rotateSecret } from "./store.ts";

const DAY_SECONDS = 86_400;
const DAY_MS = DAY_SECONDS * 1_000;
/** An old secret beside the new one for at most this long, s. */
const KEEP_OLD_MAX_SECONDS = 7 * DAY_SECONDS;
/** Rows a report reads at most. */
const REPORT_ROWS = 10_000;
/** Endpoints that a report names. */
const REPORT_WORST = 10;

/** An instant of ISO 8601, as ms. */
const instant = v.pipe(
  v.string(),
  v.isoTimestamp("an instant is ISO 8601, like 2026-01-31T09:00:00.000Z"),
  v.transform((text) => Date.parse(text)),
);
const id = v.pipe(v.string(), v.minLength(1), v.maxLength(64));
const limit = (most: number, normal: number) =>
  v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(most)), normal);

const unknownEndpoint = (which: string): CommandAnswer => ({
  ok: false,
  code: "not_found",
  field: "id",
  message: `there is no ${which}`,
});

const endpointAdd = command({
  name: "webhooks.endpoint-add",
  effect: "write",
  grant: "webhooks:write",
  positional: ["url", "events"],
  secret: true,
  help: "Tells a URL of events from now on; the answer shows its signing secret, this once.",
  args: v.strictObject({
    url: v.string(),
    events: v.pipe(v.array(v.union([v.literal("*"), eventType])), v.minLength(1), v.maxLength(100)),
    subject: v.optional(subject),
  }),
  async handle(args, ctx: Context<Settings>) {
    const destination = checkDestination(args.url, ctx.settings);
    if (!destination.ok) {
      return { ok: false, code: "destination_refused", field: "url", message: destination.message };
    }
    const endpoint = {
      id: `ep_${hex(ctx.bytes(12))}`,
      url: destination.url,
      events: [...new Set(args.events)],
      subject: args.subject ?? null,
      secret: newSecret(ctx.bytes),
      now: ctx.now,
    };
    await insertEndpoint(ctx.db, endpoint).run();
    return { ok: true, result: { id: endpoint.id, secret: endpoint.secret } };
  },
});

const endpointRemove = command({
  name: "webhooks.endpoint-remove",
  effect: "write",
  grant: "webhooks:write",
  positional: ["id"],
  help: "Stops telling an endpoint; what is on its way to it is dropped, and logged as dropped.",
  args: v.strictObject({ id }),
  async handle(args, ctx: Context<Settings>) {
    const found = await removeEndpoint(ctx.db, args.id, ctx.now);
    return found ? { ok: true, result: { id: args.id } } : unknownEndpoint(`endpoint ${args.id}`);
  },
});

const endpointRotate = command({
  name: "webhooks.endpoint-rotate",
  effect: "write",
  grant: "webhooks:write",
  positional: ["id"],
  secret: true,
  help: "Gives an endpoint a new secret, shown this once; the present one signs too for keepOldSeconds (a day).",
  args: v.strictObject({
    id,
    keepOldSeconds: v.optional(
      v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(KEEP_OLD_MAX_SECONDS)),
      DAY_SECONDS,
    ),
  }),
  async handle(args, ctx: Context<Settings>) {
    const secret = newSecret(ctx.bytes);
    const oldUntil = args.keepOldSeconds === 0 ? null : ctx.clock() + args.keepOldSeconds * 1_000;
    const found = await rotateSecret(ctx.db, args.id, secret, oldUntil);
    return found ? { ok: true, result: { secret } } : unknownEndpoint(`active endpoint ${args.id}`);
  },
});

const endpointList = command({
  name: "webhooks.endpoint-list",
  effect: "read",
  grant: "webhooks:read",
  help: "Lists endpoints and whether they are active, gone or removed.",
  args: v.strictObject({ cursor: v.optional(v.string(), ""), limit: limit(200, 50) }),
  async handle(args, ctx: Context<Settings>) {
    const items = await listEndpoints(ctx.db, args.cursor, args.limit);
    return { ok: true, result: { items, nextCursor: items.length < args.limit ? null : items.at(-1)?.id } };
  },
});

const publishNow = command({
  name: "webhooks.publish",
  effect: "write",
  grant: "webhooks:write",
  help: "Tells the endpoints that hear of it of an event, at once. Its subject is the scope, where there is one.",
  positional: ["type"],
  scoped: true,
  args: v.strictObject({ type: eventType, data: v.unknown(), subject: v.optional(subject) }),
  async handle({ type, data, subject }, ctx: Context<Settings> & { scope: string | null }) {
    if (ctx.scope !== null && subject !== undefined && subject !== ctx.scope) {
      const message = `the subject is not the scope, ${ctx.scope}`;
      return { ok: false, code: "bad_arguments", field: "subject", message };
    }
    const about = subject ?? ctx.scope;
    const { eventId, items } = await planEvent(ctx, { type, data, ...(about === null ? {} : { subject: about }) });
    const answer = await ctx.outbox.enqueueNow(deliver, items);
    return answer.ok ? { ok: true, result: { eventId, items: items.length } } : answer;
  },
});

const deliveries = command({
  name: "webhooks.deliveries",
  effect: "read",
  grant: "webhooks:read",
  positional: ["eventId"],
  help: "Lists what was sent of an event, to whom, and what they answered, oldest first.",
  args: v.strictObject({
    eventId,
    cursor: v.optional(v.pipe(v.string(), v.regex(/^\d{1,15} .{1,200}$/, "not a cursor of this list"))),
    limit: limit(200, 200),
  }),
  async handle(args, ctx: Context<Settings>) {
    const space = args.cursor?.indexOf(" ") ?? 0;
    const after = { at: Number(args.cursor?.slice(0, space) ?? 0), item: args.cursor?.slice(space + 1) ?? "" };
    const today = dayOf(Math.max(ctx.now, ctx.clock()));
    const kept = { from: today - KEEP_DAYS - 1, to: today };
    const rows = await listDeliveries(ctx.db, args.eventId, kept, after, args.limit);
    const last = rows.length < args.limit ? undefined : rows.at(-1);
    const items = rows.map((row) => ({ ...row, at: new Date(row.at).toISOString() }));
    return { ok: true, result: { items, nextCursor: last === undefined ? null : `${last.at} ${last.item}` } };
  },
});

const report = command({
  name: "webhooks.report",
  effect: "read",
  grant: "webhooks:read",
  help: "Counts deliveries since an instant (a day ago) by what they came to, and names the endpoints that failed most.",
  args: v.strictObject({ since: v.optional(instant) }),
  async handle({ since = null }, ctx: Context<Settings>) {
    const from = since ?? ctx.now - DAY_MS;
    const days = { from: dayOf(from), to: dayOf(Math.max(ctx.now, ctx.clock())) };
    const { counts, read, worst } = await summarizeDeliveries(ctx.db, from, days, REPORT_ROWS, REPORT_WORST);
    const result = { since: new Date(from).toISOString(), ...counts, read, capped: read >= REPORT_ROWS, worst };
    return { ok: true, result };
  },
});

const replayDead = command({
  name: "webhooks.replay-dead",
  effect: "write",
  grant: "webhooks:write",
  help: "Sends dead letters again whose endpoint is active, the newest first.",
  args: v.strictObject({ limit: limit(50, 20) }),
  async handle(args, ctx: Context<Settings>) {
    let replayed = 0;
    for (const letter of await deadLettersToReplay(ctx, deliver, args.limit)) {
      if ((await ctx.outbox.replay(letter)) !== null) replayed += 1;
    }
    return { ok: true, result: { replayed } };
  },
});

const drainNow = command({
  name: "webhooks.drain-now",
  effect: "exec",
  grant: "webhooks:run",
  help: "Works deliveries that are due here and now, whatever path their topic is on.",
  args: v.strictObject({ limit: limit(100, 20) }),
  async handle(args, ctx: Context<Settings>) {
    return { ok: true, result: await ctx.outbox.drainWithin(deliver, ctx.budget, { limit: args.limit }) };
  },
});

export const commands: readonly Command<Settings>[] = [
  endpointAdd,
  endpointRemove,
  endpointRotate,
  endpointList,
  publishNow,
  deliveries,
  report,
  replayDead,
  drainNow,
];
