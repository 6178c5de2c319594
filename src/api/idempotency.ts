import { type Refusal, refuse } from "../core/errors.ts";
import { errorText } from "../core/text.ts";
import { DAY, MINUTE } from "../core/time.ts";
import type { Invocation } from "../outbox/runtime.ts";

/**
 * Every statement that writes `idempotency_keys`. A command that is asked for under a key runs once, and its answer is
 * repeated for a day. Whatever happens in between, it never runs twice: where its outcome is not known, a repeat says so.
 */

/** How long a key is kept, ms, and how many old ones a new one deletes at most. */
export const KEEP_KEYS_MS = DAY;
const FORGET_A_KEY = 20;
/** Keys at most; past it a command with one is refused before it runs. */
export const KEYS_MAX = 100_000;
/** A command that has not answered after this long never will, ms: longer than any request lives. */
export const COMMAND_LEASE_MS = 5 * MINUTE;
/** Longest answer that is kept, characters. */
export const ANSWER_MAX = 64 * 1024;

/** What a command answered over HTTP. */
export interface Answered {
  status: number;
  body: object;
}

export interface Asked {
  actor: string;
  key: string;
  command: string;
  /** As it came. */
  body: string;
  /** The command's answer, when it is one, holds a secret. */
  secret: boolean;
}

type Code =
  | "idempotency_conflict"
  | "idempotency_in_progress"
  | "idempotency_unknown"
  | "idempotency_secret"
  | "idempotency_too_large"
  | "idempotency_full";

interface KeyRow {
  command: string;
  body_sha256: string;
  claim: string;
  lease_until: number;
  status: number | null;
  kept: "answer" | "secret" | "too_large" | null;
  answer: string | null;
}

/** True for what may be a key: 1 to 255 visible ASCII characters. */
export const isKey = (text: string): boolean => /^[\x21-\x7e]{1,255}$/.test(text);

/**
 * Runs a command once a key: answers what it answered, now or the first time.
 * @throws what `run` throws; a repeat then says that the outcome is not known
 */
export async function once(
  invocation: Invocation,
  asked: Asked,
  run: () => Promise<Answered>,
): Promise<{ ok: true; answer: Answered; repeated: boolean } | Refusal<Code>> {
  const { db, now, runtime } = invocation;
  const digest = hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(asked.body))));
  const claim = hex(runtime.ports.bytes(16));
  const row = await claimKey(db, asked, digest, claim, now);
  if (row === null) return refuse("idempotency_full", "Idempotency-Key", `${KEYS_MAX} keys are kept already`);
  if (row.claim !== claim) return repeat(row, asked, digest, now);
  try {
    const answer = await run();
    await keep(invocation, claim, asked, answer);
    return { ok: true, answer, repeated: false };
  } catch (error) {
    // It may have had its effect. Nobody waits for an end that does not come.
    await db
      .prepare("UPDATE idempotency_keys SET lease_until = ?3 WHERE actor = ?1 AND key = ?2 AND claim = ?4")
      .bind(asked.actor, asked.key, now, claim)
      .run()
      .catch(() => {});
    throw error;
  }
}

/** Takes the key, unless somebody has. Answers its row; null = there is no room. */
async function claimKey(
  db: D1Database,
  { actor, key, command }: Asked,
  digest: string,
  claim: string,
  now: number,
): Promise<KeyRow | null> {
  const old = now - KEEP_KEYS_MS;
  const results = await db.batch<KeyRow>([
    db.prepare("DELETE FROM idempotency_keys WHERE actor = ?1 AND key = ?2 AND began_at <= ?3").bind(actor, key, old),
    db
      .prepare(
        `DELETE FROM idempotency_keys
         WHERE id IN (SELECT id FROM idempotency_keys ORDER BY id LIMIT ${FORGET_A_KEY}) AND began_at <= ?1`,
      )
      .bind(old),
    db
      .prepare(
        `INSERT INTO idempotency_keys (actor, key, command, body_sha256, claim, began_at, lease_until)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
         WHERE coalesce((SELECT max(id) FROM idempotency_keys) - (SELECT min(id) FROM idempotency_keys), 0)
           < ${KEYS_MAX} - 1
         ON CONFLICT (actor, key) DO NOTHING`,
      )
      .bind(actor, key, command, digest, claim, now, now + COMMAND_LEASE_MS),
    db
      .prepare(
        `SELECT command, body_sha256, claim, lease_until, status, kept, answer FROM idempotency_keys
         WHERE actor = ?1 AND key = ?2`,
      )
      .bind(actor, key),
  ]);
  return results[3]?.results[0] ?? null;
}

/** What whoever comes again gets. */
function repeat(row: KeyRow, { command }: Asked, digest: string, now: number) {
  const refused = <Kind extends Code>(code: Kind, message: string) => refuse(code, "Idempotency-Key", message);
  if (row.command !== command || row.body_sha256 !== digest) {
    return refused("idempotency_conflict", "this key was used for another command or another body");
  }
  if (row.kept === "secret") {
    return refused("idempotency_secret", "it was done, and its answer, which holds a secret, was shown once");
  }
  if (row.kept === "too_large") {
    return refused("idempotency_too_large", "it was done, and its answer was too large to be kept");
  }
  if (row.status !== null) {
    const body = JSON.parse(row.answer ?? "{}") as object;
    return { ok: true as const, answer: { status: row.status, body }, repeated: true };
  }
  if (row.lease_until > now) return refused("idempotency_in_progress", "it is being done: ask again in a moment");
  return refused(
    "idempotency_unknown",
    "it was begun and its outcome is not known: look at what it changes before you ask under another key",
  );
}

/** Keeps what a repeat will get. Should that fail, the caller has his answer all the same, and a repeat gets none. */
async function keep(
  { db, runtime }: Invocation,
  claim: string,
  { actor, key, secret }: Asked,
  answer: Answered,
): Promise<void> {
  const body = JSON.stringify(answer.body);
  const kept = secret && answer.status < 400 ? "secret" : body.length > ANSWER_MAX ? "too_large" : "answer";
  try {
    await db
      .prepare(
        `UPDATE idempotency_keys SET status = ?4, kept = ?5, answer = ?6 WHERE actor = ?1 AND key = ?2 AND claim = ?3`,
      )
      .bind(actor, key, claim, answer.status, kept, kept === "answer" ? body : null)
      .run();
  } catch (error) {
    runtime.ports.log({ event: "answer_not_kept", level: "warn", error: errorText(error) });
  }
}

const hex = (bytes: Uint8Array) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
