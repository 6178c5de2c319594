import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTPayload, jwtVerify } from "jose";
import * as v from "valibot";
import { exchange } from "../core/exchange.ts";
import { parseJson } from "../core/payload.ts";
import type { Ports } from "../core/ports.ts";
import { errorText } from "../core/text.ts";
import { HOUR, MINUTE, SECOND } from "../core/time.ts";

/**
 * Cloudflare Access: a request that came through it bears a JWT, signed by a key of the team's. Whoever it names gets
 * the grants of the token entry with his e-mail address, and no others.
 */

/** Where Access's keys are, and for which application its tokens are. */
export interface AccessSettings {
  /** `team.cloudflareaccess.com` */
  teamDomain: string;
  audience: string;
}

/** How far Access's clock may be from ours, s. */
const LEEWAY_SECONDS = 60;
/** Keys are read anew after this long, ms: one that the team takes back is known no longer. */
const KEYS_MS = HOUR;
/** A key that is not known makes them be read anew this often at most, ms; likewise keys that could not be read. */
const REFETCH_MS = MINUTE;
const RETRY_MS = 5 * SECOND;
const KEYS_BOUNDS = { limitMs: 5 * SECOND, maxBytes: 64 * 1024 };
const KEYS_MOST = 32;
/** Longest token that is looked at, characters: what the platform lets through is more. */
const TOKEN_MOST = 16 * 1024;

const keySetSchema = v.object({
  keys: v.pipe(v.array(v.looseObject({ kty: v.picklist(["RSA", "EC"]), kid: v.string() })), v.maxLength(KEYS_MOST)),
});
const payloadSchema = v.looseObject({ email: v.pipe(v.string(), v.maxLength(254), v.toLowerCase()) });

export type AccessAnswer =
  | { kind: "person"; email: string }
  | { kind: "refused"; detail: string }
  | { kind: "unavailable"; detail: string };

export interface Access {
  /** Says whom a `Cf-Access-Jwt-Assertion` names. Throws nothing. */
  verify(jwt: string): Promise<AccessAnswer>;
}

/** Verifies Access's tokens; the team's keys are kept for the life of the isolate, and read anew as their bounds say. */
export function createAccess(
  { teamDomain, audience }: AccessSettings,
  ports: Pick<Ports, "clock" | "fetch" | "log">,
): Access {
  const issuer = `https://${teamDomain}`;
  let kept: { keys: JSONWebKeySet; readAt: number } | null = null;
  let failedAt = Number.NEGATIVE_INFINITY;

  /** @throws Unavailable */
  async function keysFor(unknown: boolean): Promise<JSONWebKeySet> {
    const now = ports.clock();
    const age = kept === null ? Number.POSITIVE_INFINITY : now - kept.readAt;
    if (kept !== null && age < (unknown ? REFETCH_MS : KEYS_MS)) return kept.keys;
    if (now - failedAt < RETRY_MS) throw new Unavailable("Access's keys could not be read a moment ago");
    try {
      kept = { keys: await readKeys(ports, `${issuer}/cdn-cgi/access/certs`), readAt: now };
      return kept.keys;
    } catch (error) {
      failedAt = now;
      ports.log({ event: "access_unavailable", level: "error", error: errorText(error) });
      throw new Unavailable("the keys of Access cannot be read");
    }
  }

  const check = async (jwt: string, keys: JSONWebKeySet): Promise<JWTPayload> => {
    const { payload } = await jwtVerify(jwt, createLocalJWKSet(keys), {
      // Named one by one: `none`, and a public key taken for a secret, are no choices.
      algorithms: ["RS256", "ES256"],
      issuer,
      audience,
      requiredClaims: ["exp", "iat"],
      clockTolerance: LEEWAY_SECONDS,
      currentDate: new Date(ports.clock()),
    });
    return payload;
  };

  return {
    async verify(jwt) {
      if (jwt.length > TOKEN_MOST) return { kind: "refused", detail: "the token of Access is too long" };
      try {
        const payload = await check(jwt, await keysFor(false)).catch(async (error: unknown) => {
          // The team changes its keys every few weeks: a key that is not known may be a new one.
          if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
          return check(jwt, await keysFor(true));
        });
        const person = v.safeParse(payloadSchema, payload);
        if (!person.success) return { kind: "refused", detail: "the token of Access names no e-mail address" };
        return { kind: "person", email: person.output.email };
      } catch (error) {
        if (error instanceof Unavailable) return { kind: "unavailable", detail: error.message };
        return { kind: "refused", detail: `the token of Access is refused: ${reasonOf(error)}` };
      }
    },
  };
}

class Unavailable extends Error {
  override readonly name = "Unavailable";
}

/** A stable word for why: the library's code, nothing out of the token. */
function reasonOf(error: unknown): string {
  if (error instanceof errors.JWTClaimValidationFailed || error instanceof errors.JWTExpired) {
    return `${error.claim} ${error.reason}`;
  }
  return error instanceof errors.JOSEError ? error.code : "it cannot be read";
}

async function readKeys(ports: Pick<Ports, "fetch">, url: string): Promise<JSONWebKeySet> {
  const { status, body, cut } = await exchange(ports.fetch, url, {}, KEYS_BOUNDS);
  if (status !== 200) throw new Error(`${url} answered ${status}`);
  if (cut !== null) throw new Error(cut);
  const json = parseJson(new TextDecoder().decode(body));
  const keys = json.ok ? v.safeParse(keySetSchema, json.value) : null;
  if (!keys?.success) throw new Error(`${url} answered no key set`);
  return keys.output as JSONWebKeySet;
}

/** A team's domain: a host name, and nothing that would make an address of another. */
const DOMAIN = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)+$/;

/** Reads `ACCESS_TEAM_DOMAIN` and `ACCESS_AUD`: both or neither. */
export function readAccess(env: Record<string, unknown>): {
  access: AccessSettings | null;
  problem: { setting: string; detail: string } | null;
} {
  const text = (name: string) => (env[name] === undefined ? "" : String(env[name]));
  const [teamDomain, audience] = [text("ACCESS_TEAM_DOMAIN"), text("ACCESS_AUD")];
  if (teamDomain === "" && audience === "") return { access: null, problem: null };
  const refused = (setting: string, detail: string) => ({ access: null, problem: { setting, detail } });
  if (!DOMAIN.test(teamDomain)) {
    return refused("ACCESS_TEAM_DOMAIN", "it is the team's host name, like team.cloudflareaccess.com");
  }
  if (!/^[\w-]{1,256}$/.test(audience)) return refused("ACCESS_AUD", "it is the application's audience tag");
  return { access: { teamDomain, audience }, problem: null };
}
