import { safeText } from "../core/text.ts";

/** What a storefront's answer settles, and what stays owed and why. Together they are all that was asked. */
export interface Receipts {
  confirmed: string[];
  unconfirmed: { wsId: string; error: string }[];
}

/** Longest reason that is kept, characters. */
const ERROR_MAX_CHARS = 200;

/**
 * Reads the answer's receipts for the workspaces that were asked. Only an explicit `ok: true` confirms, and only where
 * nothing in the answer says otherwise of that workspace. Receipts for others say nothing.
 *
 * Null = the answer as a whole has no list of receipts, as that of a storefront that only counts: it confirms nothing,
 * and is no word about any one workspace either.
 */
export function readReceipts(asked: readonly string[], answer: unknown): Receipts | null {
  const results = (answer as { results?: unknown } | null | undefined)?.results;
  if (!Array.isArray(results)) return null;
  const found = new Map<string, { ok: unknown; error: unknown }[]>();
  for (const result of results as unknown[]) {
    if (typeof result !== "object" || result === null) continue;
    const { wsId, ok, error } = result as { wsId?: unknown; ok?: unknown; error?: unknown };
    if (typeof wsId !== "string") continue;
    const id = wsId.toLowerCase();
    found.set(id, [...(found.get(id) ?? []), { ok, error }]);
  }
  const read: Receipts = { confirmed: [], unconfirmed: [] };
  for (const wsId of asked) {
    const error = problemOf(found.get(wsId.toLowerCase()) ?? []);
    if (error === null) read.confirmed.push(wsId);
    else read.unconfirmed.push({ wsId, error });
  }
  return read;
}

/** Why the receipts of one workspace do not confirm it; null = they do. */
function problemOf(receipts: readonly { ok: unknown; error: unknown }[]): string | null {
  if (receipts.length === 0) return "the answer has no receipt for it";
  if (receipts.some(({ ok }) => typeof ok !== "boolean")) return "its receipt says neither ok: true nor ok: false";
  const refused = receipts.find(({ ok }) => ok === false);
  if (refused === undefined) return null;
  if (receipts.some(({ ok }) => ok === true)) return "its receipts contradict each other";
  const { error } = refused;
  const reason = typeof error === "string" ? safeText(error, ERROR_MAX_CHARS) : "";
  return reason === "" ? "the storefront said ok: false without a reason" : reason;
}
