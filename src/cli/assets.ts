import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";

/**
 * Puts the files that the Worker serves beside its bundle into `dist/assets`, under the paths that they are served at:
 * our own of each room, and the viewer of the OpenAPI document out of its package. Wrangler runs this before it starts or
 * deploys (`build` in wrangler.jsonc), the tests before they load its configuration, and `npm run build` for the package.
 */

const ROOT = path.resolve(import.meta.dirname, "../..");
const VIEWER = ["swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt", "swagger-ui.css", "LICENSE", "NOTICE"];

/** Writes what is not there yet or differs, and nothing else: a runtime that serves the folder sees no change. */
export async function writeAssets(): Promise<void> {
  const copies: [from: string, to: string][] = [
    ...VIEWER.map((name): [string, string] => [`node_modules/swagger-ui-dist/${name}`, `docs/${name}`]),
    ...(await filesOf("src/api/assets", "docs")),
    ...(await filesOf("src/panel/assets", ".")),
  ];
  for (const [from, to] of copies) await copy(path.join(ROOT, from), path.join(ROOT, "dist/assets", to));
}

async function filesOf(folder: string, to: string): Promise<[string, string][]> {
  const names = await readdir(path.join(ROOT, folder)).catch(() => []);
  return names.map((name) => [`${folder}/${name}`, `${to}/${name}`]);
}

async function copy(from: string, to: string): Promise<void> {
  const [wanted, there] = await Promise.all([readFile(from), readFile(to).catch(() => null)]);
  if (there?.equals(wanted)) return;
  await mkdir(path.dirname(to), { recursive: true });
  await writeFile(to, wanted);
}

if (import.meta.main) await writeAssets();
