import { defineModule } from "../../index.ts";
import { commands } from "./commands.ts";
import { deliver } from "./deliver.ts";
import { expireLog } from "./retention.ts";
import { type Settings, settings } from "./settings.ts";

export { publish } from "./publish.ts";

/**
 * Signed webhooks: an event is an item for each endpoint that hears of it, delivered at least once, tried again for a
 * day, logged for thirty.
 */
export const webhooks = defineModule<Settings>("webhooks", {
  topics: [deliver],
  commands,
  settings,
  scheduled: expireLog,
});
