import { job } from "../jobs/catalog.ts";
import { connect, readCheckoutSettings } from "./settings.ts";

/** Expires checkouts that ran out of time, and has their storefronts shown anew. */
export const checkoutExpiry = job({
  id: "inventory-checkout-expiry",
  cron: "*/5 * * * *",
  route: { urlSetting: "CHECKOUT_EXPIRY_ROUTE_URL", secretSetting: "CHECKOUT_EXPIRY_ROUTE_SECRET" },
  processor: {
    kind: "workflow",
    binding: "CHECKOUT_EXPIRY",
    problems: (env) => readCheckoutSettings(env).problems,
    asks(env, fetch) {
      const { settings } = readCheckoutSettings(env);
      return settings === null ? null : connect(settings, fetch).storefront;
    },
  },
});
