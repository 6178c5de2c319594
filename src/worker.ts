import { createWorker } from "./create-worker.ts";
import { merchants } from "./modules/merchants/index.ts";
import { webhooks } from "./modules/webhooks/index.ts";

/** This repository's own Worker: the built-in modules, ready to deploy. */
export default createWorker({ modules: [webhooks, merchants] });
