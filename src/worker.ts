import { checkoutExpiry } from "../workflows/checkout-expiry.ts";
import { createWorker } from "./create-worker.ts";
import { recordsRetention } from "./jobs/retention.ts";
import { merchants } from "./modules/merchants/index.ts";
import { webhooks } from "./modules/webhooks/index.ts";

export { CheckoutExpiry } from "../workflows/checkout-expiry.ts";

/** This repository's own Worker: the built-in modules and jobs, ready to deploy. */
export default createWorker({ modules: [webhooks, merchants], jobs: [recordsRetention, checkoutExpiry] });
