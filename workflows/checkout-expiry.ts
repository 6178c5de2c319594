import { WorkflowEntrypoint, type WorkflowEvent, type WorkflowStep } from "cloudflare:workers";
import * as v from "valibot";
import { CHECKOUTS, type CheckoutStatements } from "../src/checkout/d1.ts";
import { runSweep } from "../src/checkout/run.ts";
import { connect, readCheckoutSettings } from "../src/checkout/settings.ts";
import { SLOT_DEADLINE_MS, type Slot } from "../src/jobs/slots.ts";
import { platformPorts } from "../src/platform.ts";

const count = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
const slotSchema = v.object({
  job: v.pipe(v.string(), v.nonEmpty()),
  slot: count,
  generation: count,
  missed: count,
  claimedAt: count,
  deadline: count,
}) satisfies v.GenericSchema<unknown, Slot>;

export { checkoutExpiry } from "../src/checkout/job.ts";

/** A step is never retried by the platform: what timed out may still land. It may run again all the same. */
const STEP = { retries: { limit: 0, delay: 1_000 }, timeout: SLOT_DEADLINE_MS };

/** One slot of checkout expiry as a Workflow instance: its phases are steps. */
export class CheckoutExpiry extends WorkflowEntrypoint<Cloudflare.Env, unknown> {
  /** The statements over the table of checkouts. An app that has its own table extends this class and says its own. */
  protected readonly checkouts: CheckoutStatements = CHECKOUTS;

  override async run({ payload }: Readonly<WorkflowEvent<unknown>>, step: WorkflowStep) {
    const slot = v.parse(slotSchema, payload);
    const env = this.env as unknown as Record<string, unknown> & { DB: D1Database };
    const { settings, problems } = readCheckoutSettings(env);
    if (settings === null) throw new Error(`misconfigured: ${JSON.stringify(problems)}`);
    const sweep = { slot, db: env.DB, ports: platformPorts, ...connect(settings, platformPorts.fetch, this.checkouts) };
    return runSweep(sweep, (name, work) => step.do(name, STEP, work as () => Promise<never>));
  }
}
