import { createHash, randomBytes } from "node:crypto";
import { appendFile, link, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";

/** A bearer token: 256 random bits. */
export function newToken(): string {
  return randomBytes(32).toString("base64url");
}

/** The variables that let a token do everything, and let webhooks go to this machine. One `NAME=VALUE` each. */
export function localVars(token: string): { DUEWORK_TOKENS: string; WEBHOOKS_ALLOW_PRIVATE: string } {
  const sha256 = createHash("sha256").update(token).digest("hex");
  const grants = { actions: "all", channels: "all", scopes: "all" };
  return {
    DUEWORK_TOKENS: `DUEWORK_TOKENS='${JSON.stringify([{ subject: "admin", sha256, grants }])}'`,
    WEBHOOKS_ALLOW_PRIVATE: "WEBHOOKS_ALLOW_PRIVATE=true",
  };
}

/** What {@link ensureDevSecrets} found or made. */
export type DevSecrets = "made" | "kept" | "own";

/**
 * Sees to it that a folder has an admin token: `.dev.vars` holds its hash for wrangler, `.dev.token` holds it in the
 * clear. Both are readable by their owner only. What is there is kept; two that do this at once agree. `own`: the
 * `.dev.vars` that is there has tokens that we do not know.
 */
export async function ensureDevSecrets(folder: string): Promise<DevSecrets> {
  const varsFile = path.join(folder, ".dev.vars");
  const tokenFile = path.join(folder, ".dev.token");
  const vars = await readFile(varsFile, "utf8").catch(() => null);
  const has = (name: string) => new RegExp(`^\\s*(export\\s+)?${name}\\s*=`, "m").test(vars ?? "");
  const token = (await readFile(tokenFile, "utf8").catch(() => "")).trim();
  if (has("DUEWORK_TOKENS")) return token !== "" && vars?.includes(hashIn(token)) ? "kept" : "own";

  await writeOnce(tokenFile, `${newToken()}\n`);
  const lines = localVars((await readFile(tokenFile, "utf8")).trim());
  if (vars === null) {
    await writeOnce(varsFile, `${Object.values(lines).join("\n")}\n`);
    return "made";
  }
  const missing = Object.entries(lines).filter(([name]) => !has(name));
  await appendFile(varsFile, `\n${missing.map(([, line]) => line).join("\n")}\n`);
  return "made";
}

function hashIn(token: string): string {
  return createHash("sha256").update(token).digest("hex");
}

/** Writes a file whole, for its owner only, unless it is there. */
async function writeOnce(file: string, content: string): Promise<void> {
  const draft = `${file}.${randomBytes(6).toString("hex")}`;
  await writeFile(draft, content, { mode: 0o600, flag: "wx" });
  try {
    await link(draft, file);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
  } finally {
    await rm(draft, { force: true });
  }
}
