/** One thing that happened. `event` is a fixed word of the glossary; the rest are its fields. Never holds a secret. */
export interface LogEvent {
  event: string;
  level: "info" | "warn" | "error";
  [field: string]: unknown;
}

/**
 * Everything the runtime takes from outside that a test must be able to hold: time, randomness, the network, the log.
 * Nothing in `src` but the composition of a Worker reads them from the platform.
 */
export interface Ports {
  /** The wall clock, in ms since 1970. */
  clock(): number;
  /** A number in [0, 1): jitter, nothing that must be secret. */
  random(): number;
  /** `length` cryptographically random bytes: ids and secrets. */
  bytes(length: number): Uint8Array;
  fetch(input: string | URL | Request, init?: RequestInit): Promise<Response>;
  log(event: LogEvent): void;
}
