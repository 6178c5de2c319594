import { HOUR, MINUTE, SECOND } from "../core/time.ts";

/**
 * Every statement that writes `sessions` and `sign_in_tries`. A session's id is known to its cookie only: the database
 * has its digest, so whoever reads the database signs in as nobody.
 */

/** A session ends this long after its sign-in, ms, used or not: a working day. */
export const SESSION_MS = 12 * HOUR;
/** Of a session's id, random. */
const SESSION_BYTES = 32;
/** Sessions that have ended which a sign-in deletes at most. */
const FORGET_SESSIONS = 20;
/** Failed sign-ins of one address within {@link TRIES_MS} that are answered; the next is refused unread. */
export const TRIES_MAX = 10;
/** A count of failed sign-ins begins anew after this long, ms. */
export const TRIES_MS = 10 * MINUTE;
/** Counts of failed sign-ins at most: addresses share them by their digest, so that nobody can fill the table. */
const TRY_BUCKETS = 65_536;

/** Begins a subject's session. Answers its id, which is kept nowhere else. */
export async function beginSession(
  db: D1Database,
  bytes: (length: number) => Uint8Array,
  subject: string,
  now: number,
): Promise<string> {
  const id = base64url(bytes(SESSION_BYTES));
  await db.batch([
    db
      .prepare("INSERT INTO sessions (id_sha256, subject, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)")
      .bind(await digestOf(id), subject, now, now + SESSION_MS),
    db
      .prepare(
        `DELETE FROM sessions WHERE id_sha256 IN (
           SELECT id_sha256 FROM sessions WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ${FORGET_SESSIONS})`,
      )
      .bind(now),
  ]);
  return id;
}

/** Whose session it is; null = it has ended, or there never was one. */
export async function subjectOf(db: D1Database, id: string, now: number): Promise<string | null> {
  const row = await db
    .prepare("SELECT subject FROM sessions WHERE id_sha256 = ?1 AND expires_at > ?2")
    .bind(await digestOf(id), now)
    .first<{ subject: string }>();
  return row?.subject ?? null;
}

/** Ends a session. */
export async function endSession(db: D1Database, id: string): Promise<void> {
  await db
    .prepare("DELETE FROM sessions WHERE id_sha256 = ?1")
    .bind(await digestOf(id))
    .run();
}

/**
 * Counts a try of an address before it is looked at, so that tries side by side are counted too.
 * @returns null: go on. A number: there were too many; how long to wait, s.
 */
export async function countTry(db: D1Database, address: string, now: number): Promise<number | null> {
  const row = await db
    .prepare(
      `INSERT INTO sign_in_tries (bucket, tries, until) VALUES (?1, 1, ?3)
       ON CONFLICT (bucket) DO UPDATE SET tries = iif(until <= ?2, 1, min(tries, ${TRIES_MAX}) + 1),
         until = iif(until <= ?2, ?3, until)
       RETURNING tries, until`,
    )
    .bind(await bucketOf(address), now, now + TRIES_MS)
    .first<{ tries: number; until: number }>();
  if (row === null || row.tries <= TRIES_MAX) return null;
  return Math.max(1, Math.ceil((row.until - now) / SECOND));
}

/** Takes a try back that was no failure. */
export async function forgiveTry(db: D1Database, address: string): Promise<void> {
  await db
    .prepare("UPDATE sign_in_tries SET tries = tries - 1 WHERE bucket = ?1 AND tries > 0")
    .bind(await bucketOf(address))
    .run();
}

/** What a session's forms carry: made of its id, which no page holds, and of no use for finding it. */
export async function csrfOf(id: string): Promise<string> {
  const raw = new TextEncoder().encode(id);
  const key = await crypto.subtle.importKey("raw", raw, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return base64url(new Uint8Array(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode("csrf"))));
}

async function digestOf(id: string): Promise<string> {
  return [...(await sha256(id))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function bucketOf(address: string): Promise<number> {
  const [high = 0, low = 0] = await sha256(networkOf(address));
  return (high * 256 + low) % TRY_BUCKETS;
}

/** Who has one address of IPv6 has its whole /64. */
function networkOf(address: string): string {
  if (!address.includes(":")) return address;
  const [head = "", tail] = address.split("::");
  const before = head.split(":").filter((group) => group !== "");
  if (tail === undefined) return before.slice(0, 4).join(":");
  const after = tail.split(":").filter((group) => group !== "");
  const zeros = Array.from({ length: Math.max(0, 8 - before.length - after.length) }, () => "0");
  return [...before, ...zeros, ...after].slice(0, 4).join(":");
}

async function sha256(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
