import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { gzipSync } from "node:zlib";

/**
 * Bundles the Worker as a deploy would, without network or login, and fails when it has grown beyond its bound: a
 * dependency that came in unseen, most likely.
 */

/**
 * Most that the bundle may be, minified and gzip, KiB. Most of what is not ours is hono and valibot; the
 * platform's Free plan takes 3 MiB.
 */
const BOUND_KIB = 200;

const root = path.resolve(import.meta.dirname, "../..");
const outdir = mkdtempSync(path.join(tmpdir(), "duework-size-"));
try {
  const wrangler = path.join(root, "node_modules/wrangler/bin/wrangler.js");
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [wrangler, "deploy", "--dry-run", "--outdir", outdir],
    { cwd: root, env: { ...process.env, CI: "1", WRANGLER_SEND_METRICS: "false" }, encoding: "utf8" },
  );
  if (status !== 0) {
    process.stderr.write(`${stdout}${stderr}\nsize: the dry run ended with ${status}\n`);
    process.exitCode = 1;
  } else {
    const files = readdirSync(outdir).filter((name) => !name.endsWith(".map") && name !== "README.md");
    const bytes = files.reduce((sum, name) => sum + gzipSync(readFileSync(path.join(outdir, name))).length, 0);
    const kib = Math.ceil(bytes / 1024);
    process.stdout.write(`size: ${files.join(", ")}: ${kib} KiB gzip, at most ${BOUND_KIB}\n`);
    if (kib > BOUND_KIB) process.exitCode = 1;
  }
} finally {
  rmSync(outdir, { recursive: true, force: true });
}
