import * as v from "valibot";
import { checkDestination, type Command, type CommandAnswer, command, type Context } from "../../index.ts";
import { deliver } from "./deliver.ts";
import { eventId, eventType, subject } from "./event.ts";
import { countDeliveries, deadLettersToReplay, listDeliveries, listEndpoints } from "./find.ts";
import { hex, planEvent } from "./publish.ts";
import { KEEP_DAYS } from "./retention.ts";
import type { Settings } from "./settings.ts";
import { newSecret } from "./sign.ts";
import { dayOf, insertEndpoint, removeEndpoint, rotateSecret } from "./store.ts";

const DAY_SECONDS = 86_400;
/** An old secret beside the new one for at most this long, s. */
const KEEP_OLD_MAX_SECONDS = 7 * DAY_SECONDS;
/** Rows a report reads at most. */
const REPORT_ROWS = 10_000;

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
  help: "Tells the endpoints that hear of it of an event, at once.",
  args: v.strictObject({ type: eventType, data: v.unknown(), subject: v.optional(subject) }),
  async handle({ type, data, subject }, ctx: Context<Settings>) {
    const { eventId, items } = await planEvent(ctx, { type, data, ...(subject === undefined ? {} : { subject }) });
    const answer = await ctx.outbox.enqueueNow(deliver, items);
    return answer.ok ? { ok: true, result: { eventId, items: items.length } } : answer;
  },
});

const deliveries = command({
  name: "webhooks.deliveries",
  effect: "read",
  grant: "webhooks:read",
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
  help: "Counts this UTC day's deliveries by what they came to.",
  args: v.strictObject({}),
  async handle(_, ctx: Context<Settings>) {
    const rows = await countDeliveries(ctx.db, dayOf(ctx.now), REPORT_ROWS);
    const counts = { delivered: 0, retried: 0, dead: 0, dropped: 0 };
    for (const { outcome, count } of rows) counts[outcome] = count;
    const total = rows.reduce((sum, { count }) => sum + count, 0);
    const day = new Date(ctx.now).toISOString().slice(0, 10);
    return { ok: true, result: { day, ...counts, capped: total >= REPORT_ROWS } };
  },
});

const replayDead = command({
  name: "webhooks.replay-dead",
  effect: "write",
  grant: "webhooks:write",
  help: "Sends dead letters again whose endpoint is active, oldest first.",
  args: v.strictObject({ limit: limit(50, 20) }),
  async handle(args, ctx: Context<Settings>) {
    let replayed = 0;
    for (const letter of await deadLettersToReplay(ctx.db, deliver.name, args.limit)) {
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
