/**
 * Signatures by the Standard Webhooks convention: HMAC-SHA256 over `id.timestamp.body`, keyed by what follows
 * `whsec_`, base64.
 */

/** Begins every secret. */
export const SECRET_PREFIX = "whsec_";

/** What is signed. */
export interface SignedMessage {
  id: string;
  /** Seconds since 1970. */
  timestamp: number;
  body: string;
}

/** The `webhook-signature` header: one `v1,` signature for each secret, so that a receiver may hold either. */
export async function signatures(secrets: readonly string[], { id, timestamp, body }: SignedMessage): Promise<string> {
  const text = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  const each = secrets.map(async (secret) => {
    const signed = await hmacSha256(fromBase64(secret.slice(SECRET_PREFIX.length)), text);
    return `v1,${btoa(String.fromCharCode(...signed))}`;
  });
  return (await Promise.all(each)).join(" ");
}

/** HMAC-SHA256. */
export async function hmacSha256(secret: BufferSource, text: BufferSource): Promise<Uint8Array<ArrayBuffer>> {
  const key = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", key, text));
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}
