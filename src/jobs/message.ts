import * as v from "valibot";
import { NAME } from "../core/names.ts";
import type { Slot } from "./slots.ts";

const VERSION = 1;
const count = v.pipe(v.number(), v.safeInteger(), v.minValue(0));

const slotMessageSchema = v.strictObject({
  v: v.literal(VERSION),
  job: v.pipe(v.string(), v.regex(NAME)),
  slot: count,
  generation: count,
});

/** A slot on its way to the Queue consumer: a reference, like every message. */
export type SlotMessage = v.InferOutput<typeof slotMessageSchema>;

export function slotMessage({ job, slot, generation }: Slot): SlotMessage {
  return { v: VERSION, job, slot, generation };
}

/** Null: it is no message about a slot. */
export function parseSlotMessage(body: unknown): SlotMessage | null {
  // Most messages are about items: no schema need find that out.
  if (typeof body !== "object" || body === null || !("job" in body)) return null;
  const parsed = v.safeParse(slotMessageSchema, body);
  return parsed.success ? parsed.output : null;
}
