import { isIpv6, judgeIpv4, judgeIpv6, type AddressKind } from "./address.ts";

/** Longest URL, in characters. */
export const URL_MAX = 2_048;

/** Why a URL is not a destination. */
export type DestinationProblem =
  | "not_a_url"
  | "too_long"
  | "scheme"
  | "userinfo"
  | "local_name"
  | "private_address"
  | "reserved_address";

export type DestinationAnswer =
  /** `url` is the form to store and to call: what the URL parser made of the text. */
  { ok: true; url: string } | { ok: false; why: DestinationProblem; message: string };

/** Names that never mean a host on the public internet. */
const LOCAL_SUFFIXES = ["localhost", "local", "localdomain", "internal", "home.arpa"];
/** A cloud's metadata service by name: refused even where local names are allowed. */
const METADATA_NAMES = new Set(["metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"]);

/**
 * Holds a URL that somebody else chose to what this Worker may call: https, a public host, no credentials in it.
 * `allowPrivate` (for local use) also lets it be http, a local name, a loopback or a private address; metadata services,
 * link-local, multicast and reserved ranges stay refused.
 *
 * It judges the text. A public name may still resolve to a private address: on Cloudflare a Worker's `fetch` has no
 * private network to reach, elsewhere an egress rule must hold that line.
 */
export function checkDestination(text: string, options: { allowPrivate: boolean }): DestinationAnswer {
  if (text.length > URL_MAX) return no("too_long", `a URL has at most ${URL_MAX} characters`);
  const url = URL.parse(text);
  if (url === null) return no("not_a_url", "not an absolute URL");
  if (url.href.length > URL_MAX) return no("too_long", `a URL has at most ${URL_MAX} characters when encoded`);
  if (url.protocol !== "https:" && !(options.allowPrivate && url.protocol === "http:")) {
    return no("scheme", options.allowPrivate ? "only http and https are called" : "only https is called");
  }
  if (url.username !== "" || url.password !== "") return no("userinfo", "a URL carries no user name or password");
  const problem = judgeHost(url.hostname, options.allowPrivate);
  return problem ?? { ok: true, url: url.href };
}

function no(why: DestinationProblem, message: string): DestinationAnswer & { ok: false } {
  return { ok: false, why, message };
}

/** `host` is as the URL parser left it: lower case, ASCII, and every spelling of an IPv4 address made dotted decimal. */
function judgeHost(host: string, allowPrivate: boolean): (DestinationAnswer & { ok: false }) | null {
  if (isIpv6(host)) return judgeKind(judgeIpv6(host), host, allowPrivate);
  const kind = judgeIpv4(host);
  if (kind !== null) return judgeKind(kind, host, allowPrivate);
  if (host.endsWith(".")) return no("local_name", "a host name is written without a dot at its end");
  if (METADATA_NAMES.has(host)) return no("local_name", `${host} is a metadata service`);
  if (!allowPrivate && isLocalName(host)) return no("local_name", `${host} is a local name`);
  return null;
}

function isLocalName(host: string): boolean {
  return !host.includes(".") || LOCAL_SUFFIXES.some((suffix) => host.endsWith(`.${suffix}`));
}

function judgeKind(kind: AddressKind, host: string, allowPrivate: boolean): (DestinationAnswer & { ok: false }) | null {
  switch (kind) {
    case "public":
      return null;
    case "loopback":
    case "private":
      return allowPrivate ? null : no("private_address", `${host} is a ${kind} address`);
    case "reserved":
      return no("reserved_address", `${host} is a link-local, multicast, metadata or reserved address`);
  }
}
