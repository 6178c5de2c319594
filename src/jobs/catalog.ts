import { DueworkError } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { nextFire } from "../core/calendar.ts";
import { type Cron, parseCron } from "../core/cron.ts";
import type { Ports } from "../core/ports.ts";
import { SECOND } from "../core/time.ts";
import { parseZone } from "../core/zone.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import type { Context } from "../outbox/context.ts";
import type { AskStorefront } from "./quarantine.ts";
import { type Completion, type Slot, SLOT_LEASE_MS } from "./slots.ts";

/** Who works a job's slots: the legacy HTTP route, a handler here, or a Workflow. */
export type ProcessorKind = "route" | "module" | "workflow";

/** The app's own route that worked the job before: `POST`ed with its secret and `{}`; 2xx is success. */
export interface Route {
  /** The variable that holds the URL. */
  urlSetting: string;
  /** The secret that holds the bearer token. */
  secretSetting: string;
}

/** What a handler of slots gets besides its slot: the module's context, aborted at the slot's deadline. */
export interface SlotContext extends Context {
  readonly signal: AbortSignal;
  /** False once the job was stopped or a later claim was given: asked before each part of the work. */
  mayGoOn(): Promise<boolean>;
}

/** The processor of this Worker, once the job's id is in `WORKER_PROCESSORS`. */
export type Processor =
  | {
      kind: "module";
      /** Works one slot. Runs at least once. A throw is a failed slot; answering nothing is a success. */
      handle(slot: Slot, ctx: SlotContext): Promise<Completion | void>;
    }
  | {
      kind: "workflow";
      /** The binding of the Workflow; an instance gets the {@link Slot} as its parameters. */
      binding: string;
      /** What the environment lacks for it. Any problem keeps the job off. */
      problems?(env: Bindings): readonly Problem[];
      /** Whom a person asks again about the job's quarantined work; null: the environment does not say. */
      asks?(env: Bindings, fetch: Ports["fetch"]): AskStorefront | null;
    };

export interface JobOptions {
  id: string;
  /** Five fields; 0 or 7 is Sunday. */
  cron: string;
  /** IANA; default UTC. */
  timeZone?: string;
  route?: Route;
  processor?: Processor;
}

/** A catalog entry. Made by {@link job}. */
export interface Job {
  readonly id: string;
  readonly cron: Cron;
  readonly timeZone: string;
  readonly route: Route | null;
  readonly processor: Processor | null;
}

/**
 * Declares a job.
 * @throws DueworkError `bad_job` naming the field: a bad id, cron or zone, or nobody to work it.
 */
export function job(options: JobOptions): Job {
  const fail = (field: string, message: string): never => {
    throw new DueworkError("bad_job", `${options.id}.${field}`, message);
  };
  if (!NAME.test(options.id)) fail("id", `a job is named in a-z, 0-9 and -, not "${options.id}"`);
  const cron = parseCron(options.cron);
  if (!cron.ok) return fail("cron", cron.message);
  const zone = parseZone(options.timeZone ?? "UTC");
  if (!zone.ok) return fail("timeZone", zone.message);
  if (options.route === undefined && options.processor === undefined) fail("processor", "nobody works this job");
  if (options.processor?.kind === "workflow" && leastGap(cron.cron, zone.zone) < SLOT_LEASE_MS) {
    fail(
      "cron",
      `a Workflow outlasts the minute: its job fires at most every ${SLOT_LEASE_MS / SECOND} s, a claim's lease`,
    );
  }
  return {
    id: options.id,
    cron: cron.cron,
    timeZone: zone.zone,
    route: options.route ?? null,
    processor: options.processor ?? null,
  };
}

/** The shortest time between two of a cron's next fires from a fixed instant on, ms. */
function leastGap(cron: Cron, zone: string): number {
  let least = Number.POSITIVE_INFINITY;
  let last = nextFire(cron, 0, zone);
  for (let n = 0; n < GAPS && last !== null; n += 1) {
    const next = nextFire(cron, last, zone);
    if (next !== null) least = Math.min(least, next - last);
    last = next;
  }
  return least;
}

/** Fires looked at: more than there are in a day of every five minutes. */
const GAPS = 300;
