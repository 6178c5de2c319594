import { type Context, safeText, type Settlement } from "../../index.ts";
import type { Delivery } from "./event.ts";
import { type DeliveryOutcome, type DeliveryRow, logDeliveries, markGone } from "./store.ts";

/** What a delivery says of itself. There is none when the handler was cut off. */
export interface Note {
  /** When it was called, ms. */
  at: number;
  ms: number;
  /** Null: no answer, or not called. */
  status: number | null;
  /** The beginning of the answer's body, safe text. */
  response: string | null;
  /** The endpoint was removed: not called. */
  dropped?: true;
  /** It answered 410: never to be called again. */
  gone?: true;
}

/** Longest error in the log, characters. */
const ERROR_CHARS = 500;

/** The log of a batch in one statement; endpoints that answered 410 end in the same commit. */
export function logSettled(settled: readonly Settlement<Delivery>[], ctx: Context): D1PreparedStatement[] {
  const rows = settled.flatMap((one) => rowOf(one, ctx.clock()));
  const gone = settled.filter(({ note }) => noteOf(note)?.gone).map(({ item }) => item.payload.endpointId);
  return [
    ...(rows.length > 0 ? [logDeliveries(ctx.db, rows)] : []),
    ...(gone.length > 0 ? [markGone(ctx.db, gone, ctx.now)] : []),
  ];
}

/** No row for a payload that does not parse: there is no event to log it under, and its dead letter says why. */
function rowOf(settlement: Settlement<Delivery>, now: number): DeliveryRow[] {
  const { item, kind } = settlement;
  if (kind === "dead" && settlement.reason === "malformed") return [];
  const note = noteOf(settlement.note) ?? { at: now, ms: 0, status: null, response: null };
  return [
    {
      eventId: item.payload.eventId,
      at: note.at,
      item: item.id,
      endpointId: item.payload.endpointId,
      attempt: item.attempts + 1,
      outcome: outcomeOf(settlement, note),
      status: note.status,
      ms: note.ms,
      error: errorOf(settlement),
      response: note.response,
    },
  ];
}

function noteOf(note: unknown): Note | undefined {
  return note as Note | undefined;
}

function outcomeOf({ kind }: Settlement, note: Note): DeliveryOutcome {
  if (kind === "retryAt") return "retried";
  if (kind === "dead") return "dead";
  return note.dropped ? "dropped" : "delivered";
}

function errorOf(settlement: Settlement): string | null {
  if (settlement.kind === "retryAt") return safeText(settlement.error, ERROR_CHARS);
  if (settlement.kind !== "dead") return null;
  const { reason, error } = settlement;
  return safeText(error === "" ? reason : `${reason}: ${error}`, ERROR_CHARS);
}
