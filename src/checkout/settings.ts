import type { Ports } from "../core/ports.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import { CHECKOUTS, type CheckoutStatements, d1Expiry } from "./d1.ts";
import { expireOverRpc } from "./rpc.ts";
import { revalidate } from "./storefront-client.ts";
import type { Expiry, Sweep } from "./sweep.ts";

/** Whom a sweep asks, as the environment says it. */
export interface CheckoutSettings {
  storefront: Pair;
  /** Null: the checkouts are in this database. */
  supabase: Pair | null;
}

/**
 * Reads the settings of checkout expiry: `STOREFRONT_URL` and `STOREFRONT_TOKEN`, which it cannot do without, and
 * `SUPABASE_URL` with `SUPABASE_SERVICE_KEY`; without those two the checkouts are in this database.
 */
export function readCheckoutSettings(
  env: Bindings,
): { settings: CheckoutSettings; problems: [] } | { settings: null; problems: Problem[] } {
  const problems: Problem[] = [];
  const storefront = readPair(env, "STOREFRONT_URL", "STOREFRONT_TOKEN", problems);
  if (storefront === null) problems.push(wrong("STOREFRONT_URL", "checkout expiry needs the storefront that it asks"));
  const supabase = readPair(env, "SUPABASE_URL", "SUPABASE_SERVICE_KEY", problems);
  if (storefront === null || problems.length > 0) return { settings: null, problems };
  return { settings: { storefront, supabase }, problems: [] };
}

/**
 * The adapters that these settings choose.
 * @param checkouts the statements over the table of checkouts, while it is in this database
 */
export function connect(
  { storefront, supabase }: CheckoutSettings,
  fetch: Ports["fetch"],
  checkouts: CheckoutStatements = CHECKOUTS,
): Pick<Sweep, "expiry" | "storefront"> {
  return {
    expiry: supabase === null ? d1Expiry(checkouts) : supabaseExpiry(fetch, supabase),
    storefront: (workspaces, ms) =>
      revalidate(fetch, { url: storefront.url, token: storefront.secret }, workspaces, ms),
  };
}

/** Expires checkouts by the database's own function. */
function supabaseExpiry(fetch: Ports["fetch"], { url, secret }: Pair): Expiry {
  return { kind: "supabase", ask: (ask, ms) => expireOverRpc(fetch, { url, serviceKey: secret }, ask, ms) };
}

/** An address, and the secret that it is asked with. */
interface Pair {
  url: string;
  secret: string;
}

/** An address and its secret; null when neither is set. One without the other is a problem. */
function readPair(env: Bindings, urlName: string, secretName: string, problems: Problem[]): Pair | null {
  const url = env[urlName] ?? "";
  const secret = env[secretName] ?? "";
  if (url === "" && secret === "") return null;
  if (typeof url !== "string" || !/^https?:\/\//.test(url) || !URL.canParse(url)) {
    problems.push(wrong(urlName, "an address that begins with https:// or http://"));
  }
  if (typeof secret !== "string" || secret === "") {
    problems.push(wrong(secretName, `${urlName} is set, and its secret is not`));
  }
  return { url: String(url), secret: String(secret) };
}

function wrong(setting: string, detail: string): Problem {
  return { code: "bad_setting", setting, detail };
}
