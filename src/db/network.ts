import type { Ports } from "../core/ports.ts";
import type { Meter } from "./meter.ts";

/**
 * A `fetch` that counts each call and carries the signal of whoever runs: at the deadline the request is aborted.
 * A caller's own signal is heeded too.
 */
export function meterFetch(fetch: Ports["fetch"], meter: Meter, signal?: AbortSignal): Ports["fetch"] {
  return (input, init = {}) => {
    meter.subrequests += 1;
    const signals = [signal, init.signal].filter((one) => one !== undefined && one !== null);
    const [only, other] = signals;
    if (only === undefined) return fetch(input, init);
    return fetch(input, { ...init, signal: other === undefined ? only : AbortSignal.any(signals) });
  };
}
