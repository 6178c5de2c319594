import * as v from "valibot";
import { checkDestination, type Command, command, type Context, type NewItem } from "../../index.ts";
import { EVERY_MAX_SECONDS, type Poll, poll } from "./poll.ts";
import type { Settings } from "./settings.ts";
import { type Account, auditAccounts, listAccounts, putAccounts, readAccounts } from "./store.ts";

/** Accounts in one call. */
const ADD_MAX = 1_000;
/** Accounts an audit reads at most. */
const AUDIT_ROWS = 10_000;
/** Accounts that an audit names. */
const AUDIT_WORST = 10;
const DAY_MS = 86_400_000;

/** An instant of ISO 8601, as ms. */
const instant = v.pipe(
  v.string(),
  v.isoTimestamp("an instant is ISO 8601, like 2026-01-31T09:00:00.000Z"),
  v.transform((text) => Date.parse(text)),
);
const account = v.strictObject({
  id: v.pipe(v.string(), v.regex(/^[\w.:@-]{1,128}$/, "an account id is 1 to 128 of a-z A-Z 0-9 _ . : @ -")),
  url: v.string(),
  everySeconds: v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(EVERY_MAX_SECONDS)),
});

const add = command({
  name: "merchants.add",
  effect: "write",
  grant: "merchants:write",
  help: "Polls accounts from now on, each on its own; one that is there already gets the new URL and period.",
  args: v.strictObject({ accounts: v.pipe(v.array(account), v.minLength(1), v.maxLength(ADD_MAX)) }),
  async handle(args, ctx: Context<Settings>) {
    const asked = new Map<string, Account>();
    for (const [index, account] of args.accounts.entries()) {
      const field = `accounts[${index}]`;
      const destination = checkDestination(account.url, ctx.settings);
      if (!destination.ok) {
        return { ok: false, code: "destination_refused", field: `${field}.url`, message: destination.message };
      }
      if (asked.has(account.id)) {
        return { ok: false, code: "bad_arguments", field: `${field}.id`, message: `${account.id} is there twice` };
      }
      asked.set(account.id, { ...account, url: destination.url });
    }

    const known = await readAccounts(ctx.db, [...asked.keys()]);
    const same = ({ id, url, everySeconds }: Account) =>
      known.get(id)?.url === url && known.get(id)?.everySeconds === everySeconds;
    const { fresh = [], kept = [] } = Object.groupBy(asked.values(), (one) => (same(one) ? "kept" : "fresh"));

    // A changed account's item is replaced, in one commit with its row: the new period begins now. One that is as it
    // was keeps its place, and is enqueued only should its item be gone.
    const batch = putAccounts(ctx.db, fresh);
    const added = await ctx.outbox.enqueueNow(poll, pollers(fresh, ctx), { onKey: "replace", batch });
    if (!added.ok) return added;
    const healed = await ctx.outbox.enqueueNow(poll, pollers(kept, ctx), { onKey: "keep" });
    if (!healed.ok) return healed;
    const updated = fresh.filter(({ id }) => known.has(id)).length;
    return { ok: true, result: { added: fresh.length - updated, updated, unchanged: kept.length } };
  },
});

function pollers(accounts: readonly Account[], ctx: Context): NewItem<Poll>[] {
  return accounts.map(({ id, url, everySeconds }) => ({
    key: id,
    payload: { accountId: id, url, everySeconds, from: ctx.now },
  }));
}

const list = command({
  name: "merchants.list",
  effect: "read",
  grant: "merchants:read",
  help: "Lists accounts and what their last poll found.",
  args: v.strictObject({
    cursor: v.optional(v.string(), ""),
    limit: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(200)), 50),
  }),
  async handle(args, ctx: Context<Settings>) {
    const items = await listAccounts(ctx.db, args.cursor, args.limit);
    return { ok: true, result: { items, nextCursor: items.length < args.limit ? null : items.at(-1)?.id } };
  },
});

const audit = command({
  name: "merchants.audit",
  effect: "read",
  grant: "merchants:read",
  help: "Counts accounts by what their last poll since an instant (a day ago) found, and names those that failed most.",
  args: v.strictObject({ since: v.optional(instant) }),
  async handle({ since = null }, ctx: Context<Settings>) {
    const from = since ?? ctx.now - DAY_MS;
    const { counts, worst } = await auditAccounts(ctx.db, from, AUDIT_ROWS, AUDIT_WORST);
    const capped = counts.accounts >= AUDIT_ROWS;
    return { ok: true, result: { since: new Date(from).toISOString(), ...counts, capped, worst } };
  },
});

export const commands: readonly Command<Settings>[] = [add, list, audit];
