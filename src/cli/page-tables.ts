import { readFileSync, writeFileSync } from "node:fs";

/** Tables of a page of docs that a script makes: each stands between `<!-- name -->` and `<!-- /name -->`. */
const place = (name: string) => new RegExp(`(<!-- ${name} -->\n)([^]*?)(\n?<!-- /${name} -->)`);

/** A table as the page shows it; null = it has no such place. */
export function shownTable(page: string, name: string): string | null {
  return place(name).exec(page)?.[2] ?? null;
}

/** Writes tables into their places. */
export function writeTables(file: string, tables: Record<string, string>): void {
  let page = readFileSync(file, "utf8");
  for (const [name, table] of Object.entries(tables)) {
    page = page.replace(place(name), (_, before: string) => `${before}${table}\n<!-- /${name} -->`);
  }
  writeFileSync(file, page);
}
