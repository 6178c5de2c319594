import { checkoutExpiry } from "../workflows/checkout-expiry.ts";
import { runWorkflow } from "../workflows/run.ts";
import { createWorker } from "./create-worker.ts";
import { recordsRetention } from "./jobs/retention.ts";
import { merchants } from "./modules/merchants/index.ts";
import { webhooks } from "./modules/webhooks/index.ts";

export { CheckoutExpiry } from "../workflows/checkout-expiry.ts";

const app = { modules: [webhooks, merchants], jobs: [recordsRetention, checkoutExpiry] };

/** The runs of dispatched commands, over the same modules and jobs as the handlers. */
export const RunCommand = runWorkflow(app);

/** This repository's own Worker: the built-in modules and jobs, ready to deploy. */
export default createWorker(app);
