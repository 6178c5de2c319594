import * as v from "valibot";

/** The kind of an event, `invoice.paid`: what an endpoint filters by. */
export const eventType = v.pipe(
  v.string(),
  v.regex(/^[a-zA-Z0-9_.-]{1,128}$/, "an event type is 1 to 128 of a-z A-Z 0-9 _ . -"),
);

/** Whom an event is about. An endpoint with a subject hears of no other. */
export const subject = v.pipe(
  v.string(),
  v.minLength(1),
  v.maxLength(255),
  v.check((text) => text.isWellFormed() && !text.includes("\0"), "a subject is well-formed text without NUL"),
);

/** Goes into a header and into the signed text, whose parts a dot separates: so it has none. */
export const eventId = v.pipe(
  v.string(),
  v.regex(/^[a-zA-Z0-9_-]{1,128}$/, "an event id is 1 to 128 of a-z A-Z 0-9 _ -"),
);

/** The payload of one item: one event, for one endpoint. */
export const delivery = v.strictObject({
  endpointId: v.pipe(v.string(), v.minLength(1), v.maxLength(64)),
  eventId,
  type: eventType,
  /** When the event happened, ISO 8601. */
  timestamp: v.pipe(v.string(), v.isoTimestamp()),
  subject: v.optional(subject),
  data: v.unknown(),
});

export type Delivery = v.InferOutput<typeof delivery>;
