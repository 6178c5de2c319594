/** What a demo puts on the outbox, and how the other side will behave. Pure: both sides work it out from the size. */
export interface Plan {
  endpoints: number;
  /** Each goes to every endpoint. */
  events: number;
  merchants: number;
}

const ENDPOINTS_MAX = 10;
/** Of so many events or merchants, one fails once. */
const FAILS_ONCE_IN = 50;
const FAILING_REMAINDER = 7;

/** A plan of `deliveries` webhook deliveries, and half as many merchants. */
export function planOf(deliveries: number): Plan {
  let endpoints = ENDPOINTS_MAX;
  while (deliveries % endpoints !== 0) endpoints -= 1;
  return { endpoints, events: deliveries / endpoints, merchants: Math.floor(deliveries / 2) };
}

/** Items of a plan. */
export function itemsOf({ endpoints, events, merchants }: Plan): number {
  return endpoints * events + merchants;
}

/** True: this event, or merchant, is answered with an error the first time each asks. */
export function failsOnce(order: number): boolean {
  return order % FAILS_ONCE_IN === FAILING_REMAINDER;
}

/** True: this delivery is answered with an error however often it comes. One of all is. */
export function failsAlways(endpoint: number, event: number): boolean {
  return endpoint === 0 && event === 0;
}
