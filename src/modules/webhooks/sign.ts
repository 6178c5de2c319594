/** Bytes of an endpoint's secret. */
const SECRET_BYTES = 32;

/** A new secret from random bytes, in the form that `signatures` takes. */
export function newSecret(bytes: (length: number) => Uint8Array): string {
  return `whsec_${btoa(String.fromCharCode(...bytes(SECRET_BYTES)))}`;
}
