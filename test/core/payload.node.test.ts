import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { checkJson, PAYLOAD_MAX_BYTES, PAYLOAD_MAX_DEPTH, parseJson } from "../../src/core/payload.ts";
import { errorText, safeText, TEXT_MAX_CHARS } from "../../src/core/text.ts";

const check = (value: unknown, maxBytes = PAYLOAD_MAX_BYTES) => checkJson(value, { maxBytes });

class Point {
  x = 1;
}

const throwing = {
  get b(): never {
    throw new Error("no");
  },
};
const revoked = (target: object) => {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
};
const deny = () => {
  throw new Error("denied");
};

describe("a payload that JSON says in full", () => {
  test("is written as JSON.stringify would, with its size in UTF-8", () => {
    const value = { a: [1, -0.5, true, null, "ä€😀\n\u2028"], "b c": {}, d: [], e: "" };
    const json = JSON.stringify(value);
    expect(check(value)).toEqual({ ok: true, json, bytes: Buffer.byteLength(json) });
  });

  test("may be any JSON value at its root", () => {
    for (const value of [null, 0, "", false, [], {}, Object.create(null)]) expect(check(value).ok).toBe(true);
  });

  test("may leave optional properties undefined: they are not written", () => {
    expect(check({ a: undefined, b: 1, c: undefined })).toMatchObject({ ok: true, json: '{"b":1}' });
    expect(check({ a: undefined })).toMatchObject({ ok: true, json: "{}" });
  });

  test("may hold one part in several places", () => {
    const part = { n: 1 };
    expect(check({ a: part, b: [part, part] })).toMatchObject({
      ok: true,
      json: '{"a":{"n":1},"b":[{"n":1},{"n":1}]}',
    });
  });

  test("may have a key __proto__, which stays a key like any other on the way out and in", () => {
    const json = '{"__proto__":{"admin":true},"a":1}';
    const written = check(JSON.parse(json));
    expect(written).toMatchObject({ ok: true, json });
    const read = parseJson(json) as { ok: true; value: object };
    expect(Object.keys(read.value)).toEqual(["__proto__", "a"]);
    expect(read.value).not.toHaveProperty("admin");
    expect({}).not.toHaveProperty("admin");
  });

  test("any JSON value goes out and comes back the same", () => {
    fc.assert(
      fc.property(fc.json({ maxDepth: 5 }), (text) => {
        const value: unknown = JSON.parse(text);
        fc.pre(!text.includes("\\u0000") && JSON.stringify(value).isWellFormed());
        const checked = check(value);
        if (!checked.ok) return expect(checked.problem).toMatch(/NUL|surrogate/);
        expect(checked.json).toBe(JSON.stringify(value));
        expect(parseJson(checked.json)).toEqual({ ok: true, value });
      }),
    );
  });
});

describe("a payload that JSON would change or lose is refused where it stands", () => {
  const cycle: Record<string, unknown> = { list: [] };
  (cycle.list as unknown[]).push({ up: cycle });

  test.each<[string, unknown, string, RegExp]>([
    ["a BigInt", { n: 10n }, "$.n", /BigInt/],
    ["a Date", { items: [0, 0, 0, { at: new Date(0) }] }, "$.items[3].at", /Date/],
    ["a Map", { m: new Map() }, "$.m", /Map/],
    ["a Set", [new Set()], "$[0]", /Set/],
    ["a class instance", { a: { p: new Point() } }, "$.a.p", /Point/],
    ["an Error", new RangeError("x"), "$", /RangeError/],
    ["bytes", { b: new Uint8Array(2) }, "$.b", /Uint8Array/],
    ["a boxed string", [Object("x")], "$[0]", /String/],
    ["an object with an unusual prototype", { o: Object.create({ a: 1 }) }, "$.o", /not plain/],
    ["an array of a class", { a: new (class Row extends Array {})() }, "$.a", /Row/],
    ["a function", { f: () => 1 }, "$.f", /function/],
    ["a symbol", { s: Symbol("s") }, "$.s", /symbol/],
    ["a symbol as a key", { a: { [Symbol("s")]: 1 } }, "$.a", /symbol/],
    ["undefined at the root", undefined, "$", /undefined/],
    ["undefined in an array", { a: { b: [1, 2, undefined] } }, "$.a.b[2]", /undefined/],
    // biome-ignore lint/suspicious/noSparseArray: a hole is the case
    ["a hole in an array", [1, , 3], "$[1]", /undefined/],
    ["NaN", { a: Number.NaN }, "$.a", /NaN/],
    ["an infinity", [Number.NEGATIVE_INFINITY], "$[0]", /Infinity/],
    ["a cycle", cycle, "$.list[0].up", /itself/],
    ["a NUL in a text", { a: ["x\0y"] }, "$.a[0]", /NUL/],
    ["a NUL in a key", { a: { "x\0": 1 } }, '$.a["x\\u0000"]', /NUL/],
    ["half a surrogate pair in a text", { t: "\ud800" }, "$.t", /surrogate/],
    ["half a surrogate pair in a key", { "\udc00": 1 }, '$["\\udc00"]', /surrogate/],
    ["an object with toJSON", { a: { toJSON: () => 1 } }, "$.a", /toJSON/],
    ["a getter that throws", { a: throwing }, "$.a.b", /no/],
    ["a Proxy that throws", { a: [new Proxy({}, { ownKeys: deny })] }, "$.a[0]", /denied/],
    ["a Proxy that hides its class by a throw", { a: new Proxy({}, { getPrototypeOf: deny }) }, "$.a", /denied/],
    ["a revoked Proxy", { a: revoked({}) }, "$.a", /revoked/],
    ["a revoked Proxy of an array", [revoked([])], "$[0]", /revoked/],
  ])("%s", (_, value, path, problem) => {
    const answer = check(value);
    expect(answer).toMatchObject({ ok: false, path });
    expect(answer).toHaveProperty("problem", expect.stringMatching(problem));
  });

  test("a getter is read once: what was checked is what is written", () => {
    let reads = 0;
    const value = {
      get a() {
        reads += 1;
        return reads === 1 ? "fine" : 10n;
      },
    };
    expect(check(value)).toMatchObject({ ok: true, json: '{"a":"fine"}' });
  });

  test("nesting is held to its depth, however deep the value goes", () => {
    const nest = (depth: number) => {
      let value: unknown = 1;
      for (let level = 0; level < depth; level += 1) value = [value];
      return value;
    };
    expect(check(nest(PAYLOAD_MAX_DEPTH)).ok).toBe(true);
    expect(check(nest(PAYLOAD_MAX_DEPTH + 1))).toMatchObject({ ok: false, problem: expect.stringContaining("deeper") });
    expect(check(nest(100_000)).ok).toBe(false);
  });

  test("too large is refused at the root, with the limit and the size in bytes", () => {
    expect(check("é".repeat(10), 22).ok).toBe(true);
    expect(check("é".repeat(10), 21)).toEqual({
      ok: false,
      path: "$",
      problem: "too large: 22 bytes, and the limit is 21",
    });
    expect(check({ a: "x".repeat(PAYLOAD_MAX_BYTES) })).toMatchObject({ ok: false, path: "$" });
  });

  test("shared parts that would multiply without end are refused in bounded work", () => {
    let value: unknown[] = [1];
    for (let level = 0; level < 60; level += 1) value = [value, value];
    expect(check(value)).toEqual({
      ok: false,
      path: "$",
      problem: "too large: more than 1048576 bytes, and the limit is 65536",
    });
  });

  test("a path is short and storable, whatever the keys are", () => {
    const answer = check({ ["\ud800\0".repeat(10_000)]: 10n }) as { path: string };
    expect(answer.path.length).toBeLessThanOrEqual(256);
    expect(answer.path.isWellFormed() && !answer.path.includes("\0")).toBe(true);
  });

  test("it never throws, and what it lets through is what JSON reads back", () => {
    const anything = fc.anything({
      withBigInt: true,
      withDate: true,
      withMap: true,
      withSet: true,
      withSparseArray: true,
      withTypedArray: true,
      withNullPrototype: true,
      withBoxedValues: true,
      stringUnit: "binary",
    });
    fc.assert(
      fc.property(anything, (value) => {
        const answer = check(value);
        if (answer.ok) expect(answer.json).toBe(JSON.stringify(value));
        else expect(answer.path.startsWith("$")).toBe(true);
      }),
    );
  });
});

test("text that is no JSON is a problem in words, not an exception", () => {
  expect(parseJson('{"a":[1]}')).toEqual({ ok: true, value: { a: [1] } });
  expect(parseJson("{")).toMatchObject({ ok: false, problem: expect.stringContaining("not JSON") });
  expect(parseJson("")).toMatchObject({ ok: false });
});

describe("failure text", () => {
  const cyclic: Record<string, unknown> = { a: 1 };
  cyclic.self = cyclic;
  const mute = Object.create(null, { message: { get: deny }, toString: { value: deny }, toJSON: { value: deny } });

  test.each<[string, unknown, string]>([
    ["an error", new RangeError("too far"), "RangeError: too far"],
    ["an error without a message", new TypeError(""), "TypeError"],
    ["an error whose name is gone", Object.assign(new Error("x"), { name: "" }), "x"],
    ["an error in all but its class", { name: "D1_ERROR", message: "busy" }, "D1_ERROR: busy"],
    ["a text", "boom", "boom"],
    ["an empty text", "", "an empty text was thrown"],
    ["undefined", undefined, "undefined"],
    ["a number", 42, "42"],
    ["a symbol", Symbol("s"), "Symbol(s)"],
    ["an object", { code: 5 }, '{"code":5}'],
    ["an object without a prototype", Object.assign(Object.create(null), { code: 5 }), '{"code":5}'],
    ["an object whose toString throws", { toString: deny, code: 5 }, '{"code":5}'],
    ["an object in a cycle", cyclic, "[object Object]"],
    ["an error whose message throws", Object.defineProperty(new Error(), "message", { get: deny }), "{}"],
    ["an object that throws whatever is read", mute, "[object Object]"],
    ["a revoked Proxy", revoked({}), "something unreadable was thrown"],
    ["a NUL", new Error("a\0b"), "Error: a\uFFFDb"],
    ["half a surrogate pair", "\ud800x\udc00", "\uFFFDx\uFFFD"],
  ])("of %s", (_, thrown, text) => {
    expect(errorText(thrown)).toBe(text);
  });

  test("of a megabyte is cut, and no surrogate pair with it", () => {
    expect(errorText(new Error("x".repeat(1_000_000)))).toHaveLength(TEXT_MAX_CHARS);
    expect(safeText("ab😀", 3)).toBe("ab");
    expect(safeText("ab😀", 4)).toBe("ab😀");
    expect(safeText("abc", 0)).toBe("");
  });

  test("of anything is storable, and making it never throws", () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.anything({ withBigInt: true }), fc.string({ unit: "binary" })),
        fc.nat(40),
        (value, most) => {
          const text = safeText(value, most);
          expect(text.length).toBeLessThanOrEqual(most);
          expect(text.isWellFormed() && !text.includes("\0")).toBe(true);
          expect(errorText(value)).not.toBe("");
        },
      ),
    );
  });
});
