import { readdir } from "node:fs/promises";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";

/**
 * Opens a local runtime's database, for reading only: what is counted here was stored, whatever the runtime says of
 * itself. For writing, the runtime must not be running.
 * @param dir the folder the runtime persists to
 */
export async function openDatabase(dir: string, { readOnly } = { readOnly: true }): Promise<DatabaseSync> {
  const folder = path.join(dir, "v3/d1");
  const files = await readdir(folder, { recursive: true });
  for (const file of files.filter((name) => name.endsWith(".sqlite"))) {
    const database = new DatabaseSync(path.join(folder, file), { readOnly, timeout: 10_000 });
    const has = database.prepare("SELECT 1 FROM sqlite_master WHERE name = 'items'").get();
    if (has !== undefined) return database;
    database.close();
  }
  throw new Error(`there is no database of duework in ${folder}`);
}
