import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { checkDestination, type DestinationProblem, URL_MAX } from "../../src/core/destination.ts";

const strict = { allowPrivate: false };
const local = { allowPrivate: true };

function why(url: string, options = strict): DestinationProblem | null {
  const answer = checkDestination(url, options);
  return answer.ok ? null : answer.why;
}

describe("a destination on the public internet", () => {
  test.each([
    "https://example.com/hook",
    "https://example.com:8443/hook?x=1#y",
    "https://hooks.internal.example.com/",
    "https://localhost.example.com/",
    "https://8.8.8.8/",
    "https://172.15.255.255/",
    "https://172.32.0.1/",
    "https://100.63.255.255/",
    "https://100.128.0.1/",
    "https://223.255.255.255/",
    "https://[2606:4700::1111]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[64:ff9b::8.8.8.8]/",
    "https://[2002:808:808::]/",
    "https://bücher.example/",
  ])("is let through: %s", (url) => {
    expect(why(url)).toBeNull();
  });

  test("is answered in the URL parser's own form, so that what was checked is what is called", () => {
    expect(checkDestination(" HTTPS://EXAMPLE.com:443/a b\t", strict)).toEqual({
      ok: true,
      url: "https://example.com/a%20b",
    });
  });
});

describe("an address that is not public is refused in every spelling", () => {
  test.each([
    // loopback
    "https://127.0.0.1/",
    "https://127.255.255.254/",
    "https://127.1/",
    "https://127.0.0.1./",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://017700000001/",
    "https://0177.0.0.01/",
    "https://１２７.０.０.１/",
    "https://127%2e0%2e0%2e1/",
    "https://127。0。0。1/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[2002:7f00:1::]/",
    // private
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.0.1/",
    "https://3232235521/",
    "https://[fc00::1]/",
    "https://[fdff:ffff::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[64:ff9b::c0a8:1]/",
    "https://[2002:a00:1::1]/",
  ])("%s", (url) => {
    expect(why(url)).toBe("private_address");
  });
});

/** Neither public nor anybody's own: refused also where private addresses are allowed. */
const NOBODY = [
  "https://0.0.0.0/",
  "https://0/",
  "https://0.1.2.3/",
  "https://100.64.0.1/",
  "https://100.100.100.200/",
  "https://100.127.255.255/",
  "https://168.63.129.16/",
  "https://169.254.169.254/latest/meta-data/",
  "https://0xa9fea9fe/",
  "https://2852039166/",
  "https://192.0.0.192/",
  "https://192.0.2.1/",
  "https://192.88.99.1/",
  "https://198.18.0.1/",
  "https://198.19.255.255/",
  "https://198.51.100.7/",
  "https://203.0.113.7/",
  "https://224.0.0.1/",
  "https://239.255.255.250/",
  "https://240.0.0.1/",
  "https://255.255.255.255/",
  "https://[::]/",
  "https://[::127.0.0.1]/",
  "https://[::ffff:169.254.169.254]/",
  "https://[64:ff9b::a9fe:a9fe]/",
  "https://[64:ff9b:1::1]/",
  "https://[2002:a9fe:a9fe::]/",
  "https://[100::1]/",
  "https://[2001::1]/",
  "https://[2001:20::1]/",
  "https://[2001:db8::1]/",
  "https://[3fff::1]/",
  "https://[5f00::1]/",
  "https://[fd00:ec2::254]/",
  "https://[fd20:ce::254]/",
  "https://[fe80::1]/",
  "https://[febf::1]/",
  "https://[fec0::1]/",
  "https://[ff02::1]/",
];

test.each(NOBODY)(
  "a reserved, link-local, multicast or metadata address is refused, whatever is allowed: %s",
  (url) => {
    expect(why(url)).toBe("reserved_address");
    expect(why(url, local)).toBe("reserved_address");
  },
);

describe("a name that is local is refused", () => {
  test.each([
    "https://localhost/",
    "https://LOCALHOST:8443/",
    "https://api.localhost/",
    "https://printer.local/",
    "https://db.internal/",
    "https://host.docker.internal/",
    "https://router.home.arpa/",
    "https://server.localdomain/",
    "https://intranet/",
    "https://localhost./",
    "https://example.com./",
    "https://metadata.google.internal/",
  ])("%s", (url) => {
    expect(why(url)).toBe("local_name");
  });
});

describe("a URL that is not https to a host, and nothing more, is refused", () => {
  test.each<[string, DestinationProblem]>([
    ["", "not_a_url"],
    ["example.com/hook", "not_a_url"],
    ["//example.com/hook", "not_a_url"],
    ["https://", "not_a_url"],
    ["https://exa mple.com/", "not_a_url"],
    ["https://1.2.3.4.5/", "not_a_url"],
    ["https://256.1.1.1/", "not_a_url"],
    ["https://[fe80::1%25eth0]/", "not_a_url"],
    ["http://example.com/", "scheme"],
    ["ftp://example.com/", "scheme"],
    ["file:///etc/passwd", "scheme"],
    ["javascript:alert(1)", "scheme"],
    ["data:text/plain,x", "scheme"],
    ["blob:https://example.com/1", "scheme"],
    ["wss://example.com/", "scheme"],
    ["gopher://example.com/", "scheme"],
    ["https://user@example.com/", "userinfo"],
    ["https://user:secret@example.com/", "userinfo"],
    ["https://:secret@example.com/", "userinfo"],
    ["https://example.com@127.0.0.1/", "userinfo"],
  ])("%s: %s", (url, problem) => {
    expect(why(url)).toBe(problem);
  });

  test("a URL longer than its bound is refused, as written or as encoded", () => {
    const path = (length: number, char: string) => `https://example.com/${char.repeat(length)}`;
    expect(why(path(URL_MAX - 20, "a"))).toBeNull();
    expect(why(path(URL_MAX - 19, "a"))).toBe("too_long");
    expect(why(path(1_000, "ü"))).toBe("too_long");
  });
});

describe("with allowPrivate, for local use", () => {
  test.each([
    "http://127.0.0.1:8787/hook",
    "http://localhost:8787/hook",
    "http://[::1]:8787/",
    "http://192.168.1.10/",
    "https://host.docker.internal/",
    "http://receiver/",
    "http://example.com/",
  ])("loopback, private, local names and http are let through: %s", (url) => {
    expect(why(url, local)).toBeNull();
  });

  test.each<[string, DestinationProblem]>([
    ["http://user@localhost/", "userinfo"],
    ["ftp://localhost/", "scheme"],
    ["http://metadata.google.internal/", "local_name"],
    ["http://169.254.169.254/", "reserved_address"],
  ])("all else stays refused: %s", (url, problem) => {
    expect(why(url, local)).toBe(problem);
  });
});

test("any text at all is answered, never thrown at", () => {
  const parts = fc.constantFrom(
    "https://",
    "http://",
    "127.0.0.1",
    "[::1]",
    "localhost",
    ".",
    ":",
    "@",
    "%",
    "\0",
    "\uD800",
  );
  fc.assert(
    fc.property(fc.array(fc.oneof(parts, fc.string()), { maxLength: 8 }), fc.boolean(), (texts, allowPrivate) => {
      const answer = checkDestination(texts.join(""), { allowPrivate });
      expect(typeof answer.ok).toBe("boolean");
    }),
  );
});

test("every IPv4 address carried in IPv6 is judged as it is on its own", () => {
  fc.assert(
    fc.property(fc.ipV4(), (address) => {
      const alone = why(`https://${address}/`);
      for (const carrier of [`[::ffff:${address}]`, `[64:ff9b::${address}]`]) {
        expect(why(`https://${carrier}/`)).toBe(alone);
      }
    }),
  );
});
