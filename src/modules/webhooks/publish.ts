import * as v from "valibot";
import { type Context, DueworkError, type NewItem } from "../../index.ts";
import { deliver } from "./deliver.ts";
import { type Delivery, eventId as eventIdSchema, eventType, subject as subjectSchema } from "./event.ts";
import { endpointsFor } from "./find.ts";

/** An event to tell endpoints of. */
export interface NewEvent {
  type: string;
  /** Any JSON. */
  data: unknown;
  /** Whom it is about: endpoints of another subject do not hear of it. */
  subject?: string;
  /** The caller's own id, the same for the same event: publishing it again adds nothing while its items live. */
  eventId?: string;
}

/** What a publishing context must hold: any module's does. */
type Publisher = Pick<Context, "db" | "bytes" | "clock" | "outbox">;

/**
 * An event as statements for the caller's own `db.batch([...])`: it is told if and only if the batch commits, to the
 * endpoints that are active now. The next tick finds the items.
 * @throws DueworkError `payload_refused` naming the field.
 */
export async function publish(
  ctx: Publisher,
  event: NewEvent,
): Promise<{ eventId: string; items: number; statements: D1PreparedStatement[] }> {
  const { eventId, items } = await planEvent(ctx, event);
  return { eventId, items: items.length, statements: ctx.outbox.enqueue(deliver, items) };
}

/** One item for each endpoint that hears of the event. Reads once. */
export async function planEvent(
  ctx: Publisher,
  event: NewEvent,
): Promise<{ eventId: string; items: NewItem<Delivery>[] }> {
  const { type, data, subject } = event;
  hold(eventType, type, "type");
  if (subject !== undefined) hold(subjectSchema, subject, "subject");
  if (event.eventId !== undefined) hold(eventIdSchema, event.eventId, "eventId");

  const eventId = event.eventId ?? `evt_${hex(ctx.bytes(16))}`;
  const timestamp = new Date(ctx.clock()).toISOString();
  const endpoints = await endpointsFor(ctx.db, type, subject ?? null);
  const items = endpoints.map((endpointId) => ({
    payload: { endpointId, eventId, type, timestamp, ...(subject === undefined ? {} : { subject }), data },
    // A key costs rows: only an id that can come twice has one.
    ...(event.eventId === undefined ? {} : { key: `${eventId}:${endpointId}` }),
  }));
  return { eventId, items };
}

function hold(schema: v.GenericSchema<string>, value: string, field: string): void {
  const { issues } = v.safeParse(schema, value);
  if (issues !== undefined) throw new DueworkError("payload_refused", field, issues[0].message);
}

/** Lower-case hex. */
export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
