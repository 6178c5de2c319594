import { exportJWK, exportSPKI, generateKeyPair, importJWK, type JWK, SignJWT, UnsecuredJWT } from "jose";
import { beforeEach, describe, expect, test } from "vitest";
import { HOUR, MINUTE, SECOND } from "../../src/core/time.ts";
import { deploy } from "../../src/create-worker.ts";
import { platformPorts } from "../../src/platform.ts";
import { DB, HeldQueue } from "../outbox/world.ts";

const TEAM = "team.cloudflareaccess.test";
const AUD = "a".repeat(64);
const CERTS = `https://${TEAM}/cdn-cgi/access/certs`;
const BEARER = "the-token-of-bob";
const sha256 = async (text: string) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
const TOKENS = JSON.stringify([
  {
    subject: "ann",
    sha256: await sha256("x"),
    grants: { actions: ["topic:read", "tick:fire"] },
    email: "Ann@example.com",
  },
  { subject: "bob", sha256: await sha256(BEARER), grants: {} },
]);

interface Key {
  alg: string;
  kid: string;
  // biome-ignore lint/suspicious/noExplicitAny: as the library makes them
  privateKey: any;
  // biome-ignore lint/suspicious/noExplicitAny: likewise
  publicKey: any;
  jwk: JWK;
}

async function makeKey(kid: string, alg = "RS256"): Promise<Key> {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true });
  return { alg, kid, privateKey, publicKey, jwk: { ...(await exportJWK(publicKey)), kid, alg, use: "sig" } };
}

const keys = { rsa: await makeKey("one"), ec: await makeKey("two", "ES256"), other: await makeKey("one") };

let clock = Date.now();
/** What Access's address serves; a number is a status without keys. */
let served: JWK[] | number | string;
let fetched: number;
beforeEach(() => {
  served = [keys.rsa.jwk, keys.ec.jwk];
  fetched = 0;
});

function serve(env: object = {}) {
  const ports = {
    ...platformPorts,
    clock: () => clock,
    log: () => {},
    fetch: async (input: string | URL | Request) => {
      expect(String(input)).toBe(CERTS);
      fetched += 1;
      if (typeof served === "number") return new Response("", { status: served });
      return new Response(typeof served === "string" ? served : JSON.stringify({ keys: served }));
    },
  };
  const bindings = {
    ...{ DB, ITEMS: new HeldQueue(), DUEWORK_TOKENS: TOKENS, ACCESS_TEAM_DOMAIN: TEAM, ACCESS_AUD: AUD },
    ...env,
  };
  const { api, panel, problems } = deploy({ modules: [], catalog: [] }, bindings, ports);
  return {
    problems,
    async visit(jwt: string | null, path: string, form?: Record<string, string>, origin = "https://duework.test") {
      const headers = {
        ...(jwt !== null && { "cf-access-jwt-assertion": jwt }),
        ...(form !== undefined && { origin }),
      };
      const init = form === undefined ? {} : { method: "POST", body: new URLSearchParams(form) };
      const response = await panel.request(`https://duework.test${path}`, { ...init, headers });
      return { status: response.status, location: response.headers.get("location"), text: await response.text() };
    },
    async ask(jwt: string | null, headers: Record<string, string> = {}, init: RequestInit = {}, path = "/api/topics") {
      const all = { ...headers, ...(jwt !== null && { "cf-access-jwt-assertion": jwt }) };
      const response = await api.request(`https://duework.test${path}`, { ...init, headers: all });
      return { status: response.status, json: (await response.json()) as { code?: string; detail?: string } };
    },
  };
}

const seconds = (ms: number) => Math.floor(ms / SECOND);

/** A token as Access makes them, with what a test changes. */
function sign(key: Key, changes: Record<string, unknown> = {}, header: { kid?: string } = { kid: key.kid }) {
  const claims = {
    ...{ iss: `https://${TEAM}`, aud: [AUD], email: "ann@Example.com", sub: "1" },
    ...{ iat: seconds(clock), nbf: seconds(clock), exp: seconds(clock + HOUR) },
    ...changes,
  };
  return new SignJWT(claims).setProtectedHeader({ alg: key.alg, ...header }).sign(key.privateKey);
}

describe("a request through Cloudflare Access", () => {
  test.for(["rsa", "ec"] as const)(
    "signed by the team's key (%s) has the grants of the entry with its address",
    async (key) => {
      const { ask } = serve();
      const jwt = await sign(keys[key]);
      expect((await ask(jwt)).status).toBe(200);
      expect(await ask(jwt, {}, {}, "/api/ticks")).toMatchObject({ status: 403, json: { code: "not_granted" } });
      expect(fetched).toBe(1);
    },
  );

  test("of an address that no entry has is not granted anything", async () => {
    const answer = await serve().ask(await sign(keys.rsa, { email: "eve@example.com" }));
    expect(answer).toMatchObject({ status: 403, json: { code: "not_granted" } });
  });

  test("a bearer token wins, also a bad one", async () => {
    const { ask } = serve();
    const jwt = await sign(keys.rsa);
    expect(await ask(jwt, { authorization: `Bearer ${BEARER}` })).toMatchObject({ json: { grant: "topic:read" } });
    expect(await ask(jwt, { authorization: "Bearer guess" })).toMatchObject({ status: 401 });
    expect(await ask(jwt, { authorization: "" })).toMatchObject({ status: 401 });
    expect(fetched).toBe(0);
  });

  const spki = async (key: Key) => new TextEncoder().encode(await exportSPKI(key.publicKey));
  const claims = () => ({ iss: `https://${TEAM}`, aud: AUD, email: "ann@example.com", iat: seconds(clock) });
  const bad: [string, () => Promise<string>][] = [
    ["for another application", () => sign(keys.rsa, { aud: ["b".repeat(64)] })],
    ["without an application", () => sign(keys.rsa, { aud: undefined })],
    ["of another team", () => sign(keys.rsa, { iss: "https://other.cloudflareaccess.test" })],
    ["that has expired", () => sign(keys.rsa, { exp: seconds(clock) - 61 })],
    ["that never expires", () => sign(keys.rsa, { exp: undefined })],
    ["that is not valid yet", () => sign(keys.rsa, { nbf: seconds(clock) + 120 })],
    ["signed by another key of the same name", () => sign(keys.other)],
    ["signed by a key that is not known", () => sign(keys.rsa, {}, { kid: "three" })],
    ["without an address", () => sign(keys.rsa, { email: undefined })],
    ["whose address is none", () => sign(keys.rsa, { email: ["ann@example.com"] })],
    ["that is not signed (none)", async () => new UnsecuredJWT(claims()).setExpirationTime("1h").encode()],
    [
      "signed HS256 with the public key as the secret",
      async () =>
        new SignJWT(claims())
          .setProtectedHeader({ alg: "HS256", kid: "one" })
          .setExpirationTime("1h")
          .sign(await spki(keys.rsa)),
    ],
    [
      "changed after it was signed",
      async () => (await sign(keys.rsa)).replace(/\.(.)/, (_, c) => `.${c === "e" ? "f" : "e"}`),
    ],
    ["that is none", async () => "a.b.c"],
    ["that is empty", async () => ""],
    ["that is 1 MB", async () => "a".repeat(1_000_000)],
  ];
  test.for(bad)("with a token %s is refused", async ([, make]) => {
    const { ask } = serve();
    const jwt = await make();
    const answer = await ask(jwt);
    expect(answer).toMatchObject({ status: 401, json: { code: "unauthorized" } });
    if (jwt.length > 9) expect(JSON.stringify(answer.json)).not.toContain(jwt.slice(0, 100));
  });

  test.for(["RS512", "PS256"])("signed %s, by the right key, is refused", async (alg) => {
    const { alg: _, ...bare } = keys.rsa.jwk;
    served = [bare];
    const privateKey = await importJWK(await exportJWK(keys.rsa.privateKey), alg);
    expect((await serve().ask(await sign(keys.rsa))).status).toBe(200);
    expect((await serve().ask(await sign({ ...keys.rsa, alg, privateKey }))).status).toBe(401);
  });

  test("a clock that is a minute off is forgiven", async () => {
    const { ask } = serve();
    expect((await ask(await sign(keys.rsa, { exp: seconds(clock) - 59 }))).status).toBe(200);
    expect((await ask(await sign(keys.rsa, { nbf: seconds(clock) + 59 }))).status).toBe(200);
  });

  test("from a page of another site writes nothing", async () => {
    const { ask } = serve();
    const jwt = await sign(keys.rsa);
    const post = (headers: Record<string, string>) => ask(jwt, headers, { method: "POST" }, "/api/tick");
    for (const headers of [
      { origin: "https://evil.test" },
      { "sec-fetch-site": "cross-site" },
      { "sec-fetch-site": "same-site", origin: "https://duework.test" },
    ]) {
      expect(await post(headers as Record<string, string>)).toMatchObject({
        status: 403,
        json: { code: "cross_site" },
      });
    }
    expect((await DB.prepare("SELECT count(*) AS n FROM ticks").first<{ n: number }>())?.n).toBe(0);
    expect((await post({ origin: "https://duework.test", "sec-fetch-site": "same-origin" })).status).toBe(200);
    expect((await post({})).status).toBe(200);
  });
});

describe("the panel", () => {
  const csrfIn = (text: string) => /name="csrf" value="([^"]+)"/.exec(text)?.[1] ?? "";

  test("lets a person in whom Access names, without a form, with his grants and nothing kept", async () => {
    const { visit } = serve();
    const { status, text } = await visit(await sign(keys.rsa), "/panel/topics");
    expect(status).toBe(200);
    expect(text).toContain("http:ann");
    expect(text).not.toContain("sign-in");
    expect((await visit(await sign(keys.rsa), "/panel/jobs")).status).toBe(403);
    expect(await DB.prepare("SELECT count(*) AS n FROM sessions").first("n")).toBe(0);
    expect((await visit(null, "/panel/topics")).status).toBe(302);
  });

  test("takes his form only with the token of his own pages, and from the panel", async () => {
    const { visit } = serve();
    const jwt = await sign(keys.rsa);
    const csrf = csrfIn((await visit(jwt, "/panel/topics")).text);
    const other = csrfIn((await visit(await sign(keys.rsa, { sub: "2" }), "/panel/topics")).text);
    expect(csrf).toMatch(/^[\w-]{43}$/);
    expect(csrf).not.toBe(other);
    expect((await visit(jwt, "/panel/sign-out", {})).status).toBe(403);
    expect((await visit(jwt, "/panel/sign-out", { csrf: other })).status).toBe(403);
    expect((await visit(jwt, "/panel/sign-out", { csrf }, "https://evil.test")).status).toBe(403);
    const out = await visit(jwt, "/panel/sign-out", { csrf });
    expect([out.status, out.location]).toEqual([303, "/cdn-cgi/access/logout"]);
  });

  test.for([
    ["for another application", 401, { aud: ["b".repeat(64)] }],
    ["that has expired", 401, { exp: seconds(clock) - 61 }],
    ["of an address that no entry has", 403, { email: "eve@example.com" }],
  ] as const)("shows who comes with a token %s why he is not let in: %i", async ([, status, changes]) => {
    const { visit } = serve();
    const jwt = await sign(keys.rsa, changes);
    for (const form of [undefined, { csrf: "x" }]) {
      const answer = await visit(jwt, "/panel/topics", form);
      expect(answer.status).toBe(status);
      expect(answer.text).toContain("You come by Cloudflare Access");
      expect(answer.text).toContain('href="/panel/sign-in"');
      expect(answer.text).not.toContain(jwt.slice(0, 40));
    }
  });

  test("lets nobody in while the keys cannot be read, and does not look at a token where Access is not set up", async () => {
    served = 500;
    expect((await serve().visit(await sign(keys.rsa), "/panel")).status).toBe(503);
    const without = serve({ ACCESS_TEAM_DOMAIN: "", ACCESS_AUD: "" });
    expect((await without.visit(await sign(keys.rsa), "/panel")).status).toBe(302);
  });
});

describe("the team's keys", () => {
  test.for([
    ["an error", 500],
    ["a redirect", 302],
    ["no JSON", "<html>"],
    ["no keys", "{}"],
    ["a secret for a key", JSON.stringify({ keys: [{ kty: "oct", kid: "one", k: "c2VjcmV0" }] })],
    ["more than their bound", `{"keys":[],"pad":"${"x".repeat(70_000)}"}`],
  ] as const)("that cannot be read (%s): 503, nobody gets in, and a bearer token still does", async ([, answer]) => {
    served = answer;
    const { ask } = serve();
    expect(await ask(await sign(keys.rsa))).toMatchObject({ status: 503, json: { code: "unavailable" } });
    expect(await ask(null, { authorization: `Bearer ${BEARER}` })).toMatchObject({ status: 403 });
  });

  test("that could not be read are asked for again after five seconds, not before", async () => {
    served = 500;
    const { ask } = serve();
    const jwt = await sign(keys.rsa);
    await ask(jwt);
    served = [keys.rsa.jwk];
    expect((await ask(jwt)).status).toBe(503);
    expect(fetched).toBe(1);
    clock += 5 * SECOND;
    expect((await ask(jwt)).status).toBe(200);
  });

  test("change: a new one is found at once, one taken back is refused within the hour", async () => {
    const { ask } = serve();
    expect((await ask(await sign(keys.rsa))).status).toBe(200);
    clock += 2 * MINUTE;
    const next = await makeKey("next");
    served = [next.jwk];
    expect((await ask(await sign(next))).status).toBe(200);
    expect(fetched).toBe(2);
    expect((await ask(await sign(keys.rsa))).status).toBe(401);
    clock += HOUR;
    served = [keys.ec.jwk];
    expect((await ask(await sign(next))).status).toBe(401);
    expect((await ask(await sign(keys.ec))).status).toBe(200);
  });

  test("that nobody knows make them be read once a minute at most", async () => {
    const { ask } = serve();
    await ask(await sign(keys.rsa));
    for (let i = 0; i < 5; i += 1) expect((await ask(await sign(keys.rsa, {}, { kid: `kid-${i}` }))).status).toBe(401);
    expect(fetched).toBe(1);
    clock += MINUTE;
    for (let i = 0; i < 5; i += 1) await ask(await sign(keys.rsa, {}, { kid: `kid-${i}` }));
    expect(fetched).toBe(2);
  });
});

describe("the settings of Access", () => {
  test.for([
    ["ACCESS_AUD", { ACCESS_AUD: "" }],
    ["ACCESS_AUD", { ACCESS_AUD: "a b" }],
    ["ACCESS_TEAM_DOMAIN", { ACCESS_TEAM_DOMAIN: "" }],
    ["ACCESS_TEAM_DOMAIN", { ACCESS_TEAM_DOMAIN: "https://team.cloudflareaccess.com" }],
    ["ACCESS_TEAM_DOMAIN", { ACCESS_TEAM_DOMAIN: "evil.test/x?.cloudflareaccess.com" }],
  ] as const)("%s: a mistake in %o is named", ([setting, env]) => {
    expect(serve(env).problems).toMatchObject([{ code: "bad_access", setting }]);
  });

  test("absent, a token of Access is not looked at", async () => {
    const { ask, problems } = serve({ ACCESS_TEAM_DOMAIN: "", ACCESS_AUD: "" });
    expect(problems).toEqual([]);
    expect((await ask(await sign(keys.rsa))).status).toBe(401);
    expect(fetched).toBe(0);
  });

  test("two entries with one address are refused", () => {
    const entry = (subject: string, email: string) => ({ subject, sha256: subject.repeat(64), grants: {}, email });
    const tokens = JSON.stringify([entry("a", "x@example.com"), entry("b", "X@example.com")]);
    expect(serve({ DUEWORK_TOKENS: tokens }).problems).toMatchObject([{ setting: "DUEWORK_TOKENS" }]);
  });
});
