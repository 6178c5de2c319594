import { describe, expect, test } from "vitest";
import { readReceipts } from "../../src/checkout/receipts.ts";

const A = "0b7f1c9e-1111-4222-8333-0123456789ab";
const B = "1b7f1c9e-1111-4222-8333-0123456789ab";
const C = "2b7f1c9e-1111-4222-8333-0123456789ab";

const read = (results: unknown, asked = [A]) => readReceipts(asked, { results });
const owed = (error: string) => ({ confirmed: [], unconfirmed: [{ wsId: A, error }] });

describe("receipts", () => {
  test("an explicit ok: true of who was asked confirms, in the order asked", () => {
    const results = [
      { wsId: C, ok: true },
      { wsId: B, ok: false, error: "tag store down" },
      { wsId: A, ok: true },
    ];
    expect(read(results, [A, B, C])).toEqual({
      confirmed: [A, C],
      unconfirmed: [{ wsId: B, error: "tag store down" }],
    });
  });

  test.each<[string, unknown[], string]>([
    ["none", [], "the answer has no receipt for it"],
    ["of another only", [{ wsId: B, ok: true }], "the answer has no receipt for it"],
    ["that are not objects", [A, null, 1, [A, true]], "the answer has no receipt for it"],
    ["without an id", [{ ok: true }, { wsId: 1, ok: true }], "the answer has no receipt for it"],
    ["without ok", [{ wsId: A }], "its receipt says neither ok: true nor ok: false"],
    ['"true"', [{ wsId: A, ok: "true" }], "its receipt says neither ok: true nor ok: false"],
    ["1", [{ wsId: A, ok: 1 }], "its receipt says neither ok: true nor ok: false"],
    [
      "good and no boolean",
      [
        { wsId: A, ok: true },
        { wsId: A, ok: null },
      ],
      "its receipt says neither ok: true nor ok: false",
    ],
    [
      "true and false",
      [
        { wsId: A, ok: true },
        { wsId: A, ok: false },
      ],
      "its receipts contradict each other",
    ],
    [
      "false and true, in another case",
      [
        { wsId: A, ok: false, error: "x" },
        { wsId: A.toUpperCase(), ok: true },
      ],
      "its receipts contradict each other",
    ],
    ["false without a reason", [{ wsId: A, ok: false }], "the storefront said ok: false without a reason"],
    [
      "false with no text for one",
      [{ wsId: A, ok: false, error: { a: 1 } }],
      "the storefront said ok: false without a reason",
    ],
  ])("%s: still owed", (_, results, error) => {
    expect(read(results)).toEqual(owed(error));
  });

  test("twice ok: true confirms once", () => {
    const twice = [
      { wsId: A, ok: true },
      { wsId: A, ok: true },
    ];
    expect(read(twice)).toEqual({ confirmed: [A], unconfirmed: [] });
  });

  test("a long reason is kept short, and storable", () => {
    const error = read([{ wsId: A, ok: false, error: `\0${"é".repeat(500)}` }])?.unconfirmed[0]?.error ?? "";
    expect(error).toHaveLength(200);
    expect(error).not.toContain("\0");
  });

  test("an answer about the whole says nothing of anyone", () => {
    const answers = [{ ok: true }, { revalidated: 1 }, { results: { [A]: true } }, [{ wsId: A, ok: true }], null, true];
    for (const answer of answers) expect(readReceipts([A], answer)).toBeNull();
  });

  test("a name of the language's own is no workspace", () => {
    expect(read([{ wsId: "__proto__", ok: true }])).toEqual(owed("the answer has no receipt for it"));
  });
});
