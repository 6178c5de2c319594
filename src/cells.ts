import { DueworkError, type Refusal, refuse } from "./core/errors.ts";
import { NAME } from "./core/names.ts";
import { errorText } from "./core/text.ts";

/**
 * Cells: whole Workers of their own, each with its database, queues, Workflows and tick. What stands in front of them
 * finds a tenant's cell here, and hands the request on. Nothing in a cell knows of the others.
 */

/** Longest name of a tenant, UTF-16 units: longer than any id. */
const TENANT_MAX = 512;

/** Where a tenant is. */
export type CellAnswer = { ok: true; cell: string } | Refusal<"bad_tenant" | "unknown_cell">;

/** What the tenant's cell answered, whatever its status; or why nobody did. */
export type ForwardAnswer =
  | { ok: true; cell: string; response: Response }
  | Refusal<"bad_tenant" | "unknown_cell" | "cell_not_bound" | "cell_failed">;

/** What a request is handed to: a service binding. Undefined: the configuration lacks it. */
export type CellBinding = { fetch(request: Request): Promise<Response> } | undefined;

/**
 * The one cell of a tenant: the one that `pinned` names, else the cell whose score for this tenant is the highest. The
 * order of `cells` does not matter; one that is added takes over what it wins, and nothing moves between the others.
 * A pin to a cell that is not there is `unknown_cell`, never another cell: that one has none of the tenant's data.
 * @throws DueworkError when `cells` cannot be meant: none, one twice, or not a name
 */
export function cellOf(
  tenant: string,
  cells: readonly string[],
  pinned: ReadonlyMap<string, string> = new Map(),
): CellAnswer {
  checkCells(cells);
  const bad = problemOf(tenant);
  if (bad !== null) return refuse("bad_tenant", "tenant", bad);
  const pin = pinned.get(tenant);
  if (pin === undefined) return { ok: true, cell: highest(hash(tenant), cells) };
  if (cells.includes(pin)) return { ok: true, cell: pin };
  return refuse("unknown_cell", "pinned", `the tenant is pinned to "${pin}", and there is no such cell`);
}

/**
 * Hands a request to its tenant's cell, by `cells`: name → service binding. A cell that is not bound keeps its tenants,
 * who get `cell_not_bound`. One that ends without an answer is `cell_failed`: the request may have had its effect, so
 * it is not repeated here, and no other cell is asked. The wait is bounded by the request's own signal.
 * @throws DueworkError as {@link cellOf} does
 */
export async function forward(
  request: Request,
  tenant: string,
  cells: Readonly<Record<string, CellBinding>>,
  pinned?: ReadonlyMap<string, string>,
): Promise<ForwardAnswer> {
  const found = cellOf(tenant, Object.keys(cells), pinned);
  if (!found.ok) return found;
  const { cell } = found;
  const binding = cells[cell];
  if (binding === undefined) return refuse("cell_not_bound", `cells.${cell}`, `cell "${cell}" has no service binding`);
  try {
    return { ok: true, cell, response: await binding.fetch(request) };
  } catch (error) {
    return refuse("cell_failed", `cells.${cell}`, `cell "${cell}" gave no answer: ${errorText(error)}`);
  }
}

function checkCells(cells: readonly string[]): void {
  const fail = (message: string): never => {
    throw new DueworkError("bad_cells", "cells", message);
  };
  if (cells.length === 0) fail("there is no cell");
  for (const cell of cells) if (!NAME.test(cell)) fail(`a cell is named in a-z, 0-9 and -, not "${cell}"`);
  if (new Set(cells).size < cells.length) fail("a cell is named twice");
}

function problemOf(tenant: string): string | null {
  if (tenant === "") return "a tenant's name is not empty";
  if (tenant.length > TENANT_MAX) return `a tenant's name has at most ${TENANT_MAX} characters, not ${tenant.length}`;
  if (!tenant.isWellFormed() || tenant.includes("\0")) return "a tenant's name is well-formed text without NUL";
  return null;
}

/** Equal scores go to the name that sorts first, so that the order given decides nothing. */
function highest(tenant: number, cells: readonly string[]): string {
  let best = { cell: "", score: -1 };
  for (const cell of cells) {
    const score = mix(tenant ^ mix(hash(cell)));
    if (score > best.score || (score === best.score && cell < best.cell)) best = { cell, score };
  }
  return best.cell;
}

/** FNV-1a over UTF-16 units, 32 bits. It and {@link mix} never change: tenants would move away from their data. */
function hash(text: string): number {
  let state = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) state = Math.imul(state ^ text.charCodeAt(at), 0x01000193);
  return state >>> 0;
}

/** Lets each bit of a number decide about every bit of the answer, which is at least 0: the finalizer of MurmurHash3. */
function mix(given: number): number {
  let state = Math.imul(given ^ (given >>> 16), 0x85ebca6b);
  state = Math.imul(state ^ (state >>> 13), 0xc2b2ae35);
  return (state ^ (state >>> 16)) >>> 0;
}
