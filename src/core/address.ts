/**
 * What an address is for. `reserved` is all that no destination can be: link-local (where clouds keep their metadata
 * service), multicast, benchmark, documentation, unassigned.
 */
export type AddressKind = "public" | "loopback" | "private" | "reserved";

/** Ranges that are not public, in order of their first address. Source: the IANA special-purpose registries. */
const IPV4: readonly [string, number, AddressKind][] = [
  ["0.0.0.0", 8, "reserved"],
  ["10.0.0.0", 8, "private"],
  ["100.64.0.0", 10, "reserved"], // carrier-grade NAT; one cloud's metadata service is in it
  ["127.0.0.0", 8, "loopback"],
  ["168.63.129.16", 32, "reserved"], // a cloud's host agent, on an address that looks public
  ["169.254.0.0", 16, "reserved"],
  ["172.16.0.0", 12, "private"],
  ["192.0.0.0", 24, "reserved"],
  ["192.0.2.0", 24, "reserved"],
  ["192.88.99.0", 24, "reserved"],
  ["192.168.0.0", 16, "private"],
  ["198.18.0.0", 15, "reserved"],
  ["198.51.100.0", 24, "reserved"],
  ["203.0.113.0", 24, "reserved"],
  ["224.0.0.0", 3, "reserved"], // multicast, class E, broadcast
];

/** What looks public (all of that is in 2000::/3) or private, and is neither. */
const IPV6_RESERVED: readonly [string, number][] = [
  ["2001::", 23], // protocol assignments, among them Teredo, whose IPv4 address is hidden
  ["2001:db8::", 32],
  ["3fff::", 20],
  ["fd00:ec2::", 32], // metadata services on private addresses
  ["fd20:ce::", 32],
];

const IPV4_RANGES = IPV4.map(([first, length, kind]) => ({ first: ipv4Bits(first) ?? 0, length, kind }));
const IPV6_RANGES = IPV6_RESERVED.map(([first, length]) => ({ first: ipv6Bits(first), length }));

/** What a dotted decimal IPv4 address is for; null when the host is no such address. */
export function judgeIpv4(host: string): AddressKind | null {
  const bits = ipv4Bits(host);
  return bits === null ? null : judgeIpv4Bits(bits);
}

/** True for `[…]`, the way a URL writes an IPv6 address. */
export function isIpv6(host: string): boolean {
  return host.startsWith("[");
}

/** What an IPv6 address is for. One that carries an IPv4 address (mapped, NAT64, 6to4) is judged by that. */
export function judgeIpv6(host: string): AddressKind {
  const bits = ipv6Bits(host.slice(1, -1));
  if (bits === 1n) return "loopback";
  if (bits >> 32n === 0xffffn) return judgeIpv4Bits(low32(bits));
  if (bits >> 32n === 0x64_ff9b_0000_0000_0000_0000n) return judgeIpv4Bits(low32(bits));
  if (bits >> 112n === 0x2002n) return judgeIpv4Bits(low32(bits >> 80n));
  if (IPV6_RANGES.some(({ first, length }) => (bits ^ first) >> BigInt(128 - length) === 0n)) return "reserved";
  if (bits >> 121n === 0xfcn >> 1n) return "private";
  return bits >> 125n === 1n ? "public" : "reserved";
}

function low32(bits: bigint): number {
  return Number(bits & 0xffff_ffffn);
}

function judgeIpv4Bits(bits: number): AddressKind {
  const range = IPV4_RANGES.find(({ first, length }) => (bits ^ first) >>> (32 - length) === 0);
  return range?.kind ?? "public";
}

function ipv4Bits(host: string): number | null {
  const parts = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(host);
  if (parts === null) return null;
  return parts.slice(1).reduce((bits, part) => bits * 256 + Number(part), 0);
}

/** Reads the compressed form: eight groups of hex digits, one run of zeros left out as `::`. */
function ipv6Bits(text: string): bigint {
  const [head = "", tail] = text.split("::");
  const groups = (part: string) => (part === "" ? [] : part.split(":"));
  const left = groups(head);
  const right = groups(tail ?? "");
  const zeros = Array<string>(8 - left.length - right.length).fill("0");
  return [...left, ...zeros, ...right].reduce((bits, group) => (bits << 16n) | BigInt(`0x${group}`), 0n);
}
