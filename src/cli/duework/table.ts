import { type Screen, styled } from "./screen.ts";
import { cut, visible, visibleLines, widthOf } from "./visible.ts";

/**
 * Answers for people and for pipes: an aligned table cut to the terminal's width, or lines of values between tabs. All
 * that is shown is made visible first.
 */

type Row = Record<string, unknown>;

/** Between two columns. */
const GAP = 2;
/** A column is not made narrower than this: rather the last one is left out. */
const NARROWEST = 8;
/** Longest text of a view on a terminal, characters. */
const TEXT_SHOWN = 4_000;

export function isRow(value: unknown): value is Row {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value as the text of a cell, not yet made visible. */
export function cellText(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (isCapped(value)) return `${value.value}${value.capped ? "+" : ""}`;
  return JSON.stringify(value);
}

function isCapped(value: unknown): value is { value: number; capped: boolean } {
  return isRow(value) && typeof value.value === "number" && typeof value.capped === "boolean";
}

const isPlain = (value: unknown) => typeof value !== "object" || value === null || isCapped(value);

/** Rows as a table on a terminal, else as lines of values between tabs, with the columns' names first. */
export function tableOf(rows: readonly unknown[], screen: Screen): string {
  const objects = rows.map((row) => (isRow(row) ? row : { value: row }));
  const names = [...new Set(objects.flatMap((row) => Object.keys(row)))];
  if (names.length === 0) return "";
  if (screen.columns === null) {
    const lines = [names, ...objects.map((row) => names.map((name) => cellText(row[name])))];
    return lines.map((line) => `${line.map(visible).join("\t")}\n`).join("");
  }
  return aligned(objects, shownNames(objects, names), screen, screen.columns);
}

/** The columns that a person can read: those with something in them, and what is nested only where nothing else is. */
function shownNames(rows: readonly Row[], names: readonly string[]): string[] {
  const filled = names.filter((name) => rows.some((row) => cellText(row[name]) !== ""));
  const plain = filled.filter((name) => rows.every((row) => isPlain(row[name])));
  return plain.length > 0 ? plain : filled;
}

function aligned(rows: readonly Row[], names: readonly string[], screen: Screen, columns: number): string {
  // More of a cell than the terminal is wide can never be seen: a text of a megabyte is cut before all else.
  const cell = (value: unknown) => cut(visible(shortInstant(cellText(value)).slice(0, columns * 2)), columns);
  const head = names.map(visible);
  const cells = rows.map((row) => names.map((name) => cell(row[name])));
  const natural = head.map((name, column) => {
    return cells.reduce((most, line) => Math.max(most, widthOf(line[column] ?? "")), widthOf(name));
  });
  // Half an instant says nothing.
  const least = natural.map((width, column) =>
    cells.every((line) => /^(?:\d{4}-\d\d-\d\dT[\d:]{8}Z)?$/.test(line[column] ?? "")) ? width : NARROWEST,
  );
  const widths = fitted(natural, least, columns);
  const lines = [head, ...cells].map((line) =>
    widths
      .map((width, column) => pad(cut(line[column] ?? "", width), column === widths.length - 1 ? 0 : width))
      .join(" ".repeat(GAP))
      .trimEnd(),
  );
  const left = head.slice(widths.length);
  const note =
    left.length === 0 ? "" : `${styled(screen, "dim", cut(`Too narrow for: ${left.join(", ")}`, columns))}\n`;
  return lines.map((line, index) => `${index === 0 ? styled(screen, "bold", line) : line}\n`).join("") + note;
}

/** An instant without its milliseconds. */
const shortInstant = (text: string) =>
  /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(text) ? `${text.slice(0, 19)}Z` : text;

const pad = (text: string, width: number) => text + " ".repeat(Math.max(0, width - widthOf(text)));

/** Widths that fit side by side: the widest that may gives way, and at last the last column goes. */
function fitted(natural: readonly number[], least: readonly number[], columns: number): number[] {
  const widths = [...natural];
  const total = () => widths.reduce((sum, width) => sum + width, GAP * (widths.length - 1));
  while (widths.length > 1 && total() > columns) {
    const spare = widths.map((width, column) => (width > (least[column] ?? 0) ? width : 0));
    const most = Math.max(...spare);
    if (most === 0) widths.pop();
    else widths[spare.indexOf(most)] = most - 1;
  }
  return widths.length === 1 ? [Math.min(widths[0] ?? 0, columns)] : widths;
}

/** One thing: a line for each of its values, then each list of things in it as a table. */
export function viewOf(row: Row, screen: Screen): string {
  const entries = Object.entries(row);
  const isTable = (value: unknown): value is Row[] => Array.isArray(value) && value.length > 0 && value.every(isRow);
  const lines = entries.filter(([, value]) => !isTable(value));
  const width = Math.max(0, ...lines.map(([name]) => widthOf(visible(name))));
  const head = lines.map(([name, value]) => `${lineOf(visible(name), value, width, screen)}\n`).join("");
  const tables = entries.flatMap(([name, value]) =>
    isTable(value) ? [`\n${styled(screen, "bold", visible(name))}\n${tableOf(value, screen)}`] : [],
  );
  return head + tables.join("");
}

function lineOf(name: string, value: unknown, width: number, screen: Screen): string {
  const text = cellText(value);
  if (screen.columns === null) return `${name}\t${visible(text)}`;
  const shown = text.slice(0, TEXT_SHOWN);
  const more = text.length > shown.length ? `… (${text.length.toLocaleString("en")} characters: --json has all)` : "";
  const body = visibleLines(shown + more).replaceAll("\n", `\n${" ".repeat(width + GAP)}`);
  return `${styled(screen, "dim", pad(name, width))}${" ".repeat(GAP)}${body}`.trimEnd();
}

/** Whatever a deployment answered, for people. `nothing`: what an empty answer is told as. */
export function shown(value: unknown, screen: Screen, nothing: string): string {
  const rows = isRow(value) ? value.items : value;
  const isList = Array.isArray(rows);
  if (isList && rows.length === 0) return screen.columns === null ? "" : `${nothing}\n`;
  if (isList && onlyList(value)) return tableOf(rows, screen);
  if (isRow(value)) {
    const { nextCursor: _, ...rest } = value;
    return Object.keys(rest).length === 0 ? `${nothing}\n` : viewOf(rest, screen);
  }
  const text = cellText(value);
  return text === "" ? `${nothing}\n` : `${visible(text)}\n`;
}

/** True for a list, or for an answer that is nothing but a list and where it goes on. */
function onlyList(value: unknown): boolean {
  return Array.isArray(value) || (isRow(value) && Object.keys(value).every((key) => /^(items|nextCursor)$/.test(key)));
}
