import type { LogEvent, Ports } from "./core/ports.ts";

/** The ports of a real deployment. The one place in `src` that reads the clock, randomness and the network. */
export const platformPorts: Ports = {
  clock: () => Date.now(),
  random: () => Math.random(),
  bytes: (length) => crypto.getRandomValues(new Uint8Array(length)),
  fetch: (input, init) => fetch(input, init),
  log: ({ level, ...event }: LogEvent) =>
    console[level === "info" ? "log" : level](JSON.stringify({ level, ...event })),
};
