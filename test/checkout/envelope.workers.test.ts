import { expect, test } from "vitest";
import page from "../../docs/envelope.md?raw";
import { createMeter } from "../../src/db/meter.ts";
import { Stage } from "./stage.ts";

/** What a slot used: as its detail says, and as the meter of its D1 client counted (the claim is one call more). */
async function measure(kind: "d1" | "supabase", fill: (stage: Stage) => Promise<unknown>) {
  const stage = await Stage.create(kind);
  await fill(stage);
  const slot = await stage.claim();
  Object.assign(stage.meter, createMeter());
  const { detail } = await stage.run(slot);
  expect(detail.calls.ledger).toBe(stage.meter.calls + 1);
  return `| ${detail.calls.ledger} | ${detail.calls.expiry} | ${detail.calls.storefront} | ${stage.meter.queries} |`;
}

const idle = async () => {};
const draining = (stage: Stage) => stage.reserve(2_500, 300);
const most = async (stage: Stage) => {
  await stage.hold(5_000, "owed");
  await stage.reserve(6_000);
};

test("docs/envelope.md says what a slot of checkout expiry calls, as its sweep counted", async () => {
  const rows: string[] = [];
  for (const [what, fill] of [
    ["idle", idle],
    ["2,500 expired over 300 workspaces", draining],
    ["50 owed chunks, then 50 fresh ones", most],
  ] as const) {
    for (const kind of ["d1", "supabase"] as const) rows.push(`| ${what}, \`${kind}\` ${await measure(kind, fill)}`);
  }
  const found = /<!-- sweep -->\n([\s\S]*?)\n<!-- \/sweep -->/.exec(page)?.[1]?.split("\n").slice(2);
  expect(found?.join("\n")).toBe(rows.join("\n"));
});
