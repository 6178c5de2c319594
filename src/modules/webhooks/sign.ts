/**
 * Signatures by the Standard Webhooks convention: HMAC-SHA256 over `id.timestamp.body`, keyed by what follows
 * `whsec_`, base64.
 */

const PREFIX = "whsec_";
const SECRET_BYTES = 32;

/** A new secret from random bytes. */
export function newSecret(bytes: (length: number) => Uint8Array): string {
  return PREFIX + toBase64(bytes(SECRET_BYTES));
}

/** What is signed. */
export interface Message {
  id: string;
  /** Seconds since 1970. */
  timestamp: number;
  body: string;
}

/** The `webhook-signature` header: one `v1,` signature for each secret, so that a receiver may hold either. */
export async function signatures(secrets: readonly string[], { id, timestamp, body }: Message): Promise<string> {
  const text = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  const each = secrets.map(async (secret) => {
    const raw = fromBase64(secret.slice(PREFIX.length));
    const key = await crypto.subtle.importKey("raw", raw, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
    return `v1,${toBase64(new Uint8Array(await crypto.subtle.sign("HMAC", key, text)))}`;
  });
  return (await Promise.all(each)).join(" ");
}

function toBase64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}
