import * as v from "valibot";
import { refuse } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { type AskStorefront, QUARANTINE_ITEMS, settleByAsking, settleByHand } from "../jobs/quarantine.ts";
import { define, type Registered } from "./define.ts";

/** The commands about quarantined work: only a person settles it, and says why. */

const workspace = v.pipe(v.string(), v.uuid("a workspace is a UUID"), v.toLowerCase());
const version = v.pipe(v.number(), v.safeInteger(), v.minValue(1));
const args = v.strictObject({
  job: v.pipe(v.string(), v.regex(NAME, "a job is named in a-z, 0-9 and -")),
  items: v.pipe(
    v.array(v.union([workspace, v.strictObject({ workspace, version })])),
    v.minLength(1),
    v.maxLength(QUARANTINE_ITEMS),
  ),
  reason: v.pipe(v.string(), v.trim(), v.minLength(1), v.maxLength(500)),
});

/** @param asks by job, whom `quarantine.revalidate` asks; a job that is not there can be settled by hand only */
export function quarantineCommands(asks: ReadonlyMap<string, AskStorefront>): readonly Registered[] {
  return [
    define(
      {
        name: "quarantine.settle",
        effect: "write",
        grant: "quarantine:write",
        help: "Settle quarantined work by hand, once it has been mended.",
        positional: ["job", "items", "reason"],
      },
      args,
      async ({ job, items, reason }, { db, now }, { id: by }) => ({
        ok: true,
        result: await settleByHand(db, job, items, { by, reason }, now),
      }),
    ),
    define(
      {
        name: "quarantine.revalidate",
        effect: "write",
        grant: "quarantine:write",
        help: "Ask the storefront again about quarantined work, and settle what it confirms.",
        positional: ["job", "items", "reason"],
      },
      args,
      async ({ job, items, reason }, { db, now }, { id: by }) => {
        const ask = asks.get(job);
        if (ask === undefined) return refuse("no_storefront", "job", `no storefront is set up for ${job}`);
        const answer = await settleByAsking(db, job, items, ask, { by, reason }, now);
        if (!("ok" in answer)) return { ok: true, result: answer };
        return refuse("storefront_failed", "job", `the storefront gave no receipts: ${answer.kind}: ${answer.detail}`);
      },
    ),
  ];
}
