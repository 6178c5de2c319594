import { SECOND } from "../core/time.ts";
import { withDeadline } from "../db/deadline.ts";
import { errorText } from "../core/text.ts";
import { type ObligationRow, type Owed, readQuarantined, settleQuarantined } from "./obligations.ts";

/** Items of one command, and of one request to the storefront. */
export const QUARANTINE_ITEMS = 100;
/** The storefront's answer is waited for this long, ms. */
const ASK_MS = 15 * SECOND;

/** What became of a request about workspaces: those it confirmed explicitly and the others, or why there is no answer. */
export type Asked =
  | { ok: true; confirmed: readonly string[]; unconfirmed: readonly { wsId: string; error: string }[] }
  | { ok: false; kind: string; detail: string };

/** Asks whoever shows a workspace to show it anew. Does not throw, and answers within the time. */
export type AskStorefront = (workspaces: readonly string[], timeoutMs: number) => Promise<Asked>;

/** Quarantined work that a person names: a workspace as it stands now, or in the version he looked at. */
export type Named = string | Owed;

/** What was settled, and what was not, with the reason. */
export interface Settled {
  settled: string[];
  kept: { workspace: string; why: "not_quarantined" | "other_version" | "not_confirmed" }[];
}

/** A person who settles, and why. */
export interface Person {
  by: string;
  reason: string;
}

/** Settles quarantined work because a person says so. */
export async function settleByHand(
  db: D1Database,
  job: string,
  items: readonly Named[],
  person: Person,
  now: number,
): Promise<Settled> {
  const { held, kept } = await find(db, job, items);
  return settle(db, job, held, kept, { how: "by hand", ...person }, now);
}

/** Asks the storefront again about quarantined work, and settles what it confirms. */
export async function settleByAsking(
  db: D1Database,
  job: string,
  items: readonly Named[],
  ask: AskStorefront,
  person: Person,
  now: number,
): Promise<Settled | Extract<Asked, { ok: false }>> {
  const { held, kept } = await find(db, job, items);
  if (held.length === 0) return { settled: [], kept };
  const asked = await askWithin(
    ask,
    held.map(({ workspace }) => workspace),
    ASK_MS,
  );
  if (!asked.ok) return asked;
  const confirmed = new Set(asked.confirmed);
  const ok = held.filter(({ workspace }) => confirmed.has(workspace));
  const rest = held
    .filter(({ workspace }) => !confirmed.has(workspace))
    .map(({ workspace }) => ({ workspace, why: "not_confirmed" as const }));
  return settle(db, job, ok, [...kept, ...rest], { how: "revalidated", ...person }, now);
}

/** Holds an {@link AskStorefront} to its word: it does not throw and does not take longer. */
export async function askWithin(ask: AskStorefront, workspaces: readonly string[], ms: number): Promise<Asked> {
  try {
    return await withDeadline(ask(workspaces, ms), ms, "the storefront");
  } catch (error) {
    return { ok: false, kind: "failed", detail: errorText(error) };
  }
}

async function find(db: D1Database, job: string, items: readonly Named[]) {
  const named = new Map(
    items.map((item) => (typeof item === "string" ? [item, null] : [item.workspace, item.version])),
  );
  const { results } = await readQuarantined(db, job, [...named.keys()]).all<ObligationRow>();
  const held = results.filter(({ workspace, version }) => (named.get(workspace) ?? version) === version);
  const kept = [...named.keys()]
    .filter((workspace) => !held.some((row) => row.workspace === workspace))
    .map((workspace): Settled["kept"][number] => {
      const other = results.some((row) => row.workspace === workspace);
      return { workspace, why: other ? "other_version" : "not_quarantined" };
    });
  return { held, kept };
}

async function settle(
  db: D1Database,
  job: string,
  held: readonly Owed[],
  kept: Settled["kept"],
  settler: Parameters<typeof settleQuarantined>[3],
  now: number,
): Promise<Settled> {
  if (held.length === 0) return { settled: [], kept };
  const [answer] = await db.batch<{ workspace: string }>(settleQuarantined(db, job, held, settler, now));
  const settled = (answer?.results ?? []).map(({ workspace }) => workspace);
  // Raised by a new expiry, or settled by someone else, since it was read.
  const missed = held.filter(({ workspace }) => !settled.includes(workspace));
  return { settled, kept: [...kept, ...missed.map(({ workspace }) => ({ workspace, why: "other_version" as const }))] };
}
