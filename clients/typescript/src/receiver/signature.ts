/** Why a delivery is not taken for one of Countwheel. */
export type SignatureFault = "no_id" | "no_timestamp" | "no_signature" | "too_old" | "too_new" | "wrong";

/** A delivery that is not signed by one of the secrets, or not now. */
export class SignatureError extends Error {
  override readonly name = "SignatureError";

  constructor(readonly fault: SignatureFault) {
    super(WORDS[fault]);
  }
}

const WORDS: Record<SignatureFault, string> = {
  no_id: "the delivery has no webhook-id",
  no_timestamp: "the delivery has no webhook-timestamp of whole seconds",
  no_signature: "the delivery has no webhook-signature of version 1",
  too_old: "the delivery was signed too long ago",
  too_new: "the delivery was signed in the future",
  wrong: "no signature of the delivery is by one of the secrets",
};

export interface VerifierOptions {
  /** The secrets of the endpoint, `whsec_` and base64. While one is replaced, both. */
  secrets: readonly string[];
  /** How far the time of the signature may be from now, in milliseconds. Default: 300,000. */
  tolerance?: number;
  /** Milliseconds since 1970. Default: `Date.now`. */
  now?: () => number;
}

/** How many signatures of a delivery are looked at. An endpoint has at most 8 secrets. */
const MOST = 32;

/** Verifies the signatures of deliveries, after Standard Webhooks, version 1. */
export class Verifier {
  private readonly keys: Promise<CryptoKey>[];
  private readonly tolerance: number;
  private readonly now: () => number;

  /** Throws a `TypeError` if a secret is none, or there is none. */
  constructor(options: VerifierOptions) {
    if (options.secrets.length === 0) throw new TypeError("a verifier needs a secret");
    const keys = options.secrets.map(key);
    this.keys = keys.map((bytes) => crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]));
    this.tolerance = options.tolerance ?? 300_000;
    this.now = options.now ?? Date.now;
  }

  /** Throws a `SignatureError` unless one of the secrets has signed the delivery. The time does not depend on the signature. */
  async verify(headers: Headers, body: Uint8Array): Promise<void> {
    const id = headers.get("webhook-id");
    const timestamp = headers.get("webhook-timestamp");
    if (id === null || id === "") throw new SignatureError("no_id");
    if (timestamp === null || !/^\d{1,12}$/.test(timestamp)) throw new SignatureError("no_timestamp");
    const signatures = (headers.get("webhook-signature") ?? "")
      .split(" ", MOST)
      .filter((one) => one.startsWith("v1,"))
      .map((one) => base64(one.slice(3)))
      .filter((bytes) => bytes !== undefined);
    if (signatures.length === 0) throw new SignatureError("no_signature");
    const age = this.now() - Number(timestamp) * 1_000;
    if (age > this.tolerance) throw new SignatureError("too_old");
    if (age < -this.tolerance) throw new SignatureError("too_new");

    const head = new TextEncoder().encode(`${id}.${timestamp}.`);
    const signed = new Uint8Array(head.length + body.length);
    signed.set(head);
    signed.set(body, head.length);
    // `verify` compares in constant time, and every secret is tried with every signature.
    let right = false;
    for (const key of this.keys) {
      for (const signature of signatures) {
        right = (await crypto.subtle.verify("HMAC", await key, signature, signed)) || right;
      }
    }
    if (!right) throw new SignatureError("wrong");
  }
}

function key(secret: string): Uint8Array<ArrayBuffer> {
  const bytes = secret.startsWith("whsec_") ? base64(secret.slice("whsec_".length)) : undefined;
  if (bytes === undefined || bytes.length < 24 || bytes.length > 64) {
    throw new TypeError("a secret is whsec_ and the base64 of 24 to 64 bytes");
  }
  return bytes;
}

/** The bytes of base64 with padding, or `undefined` if the text is none. */
function base64(text: string): Uint8Array<ArrayBuffer> | undefined {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
