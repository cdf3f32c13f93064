/** One attempt of a timer, as its handler gets it. Only `id`, `sent` and `body` are signed. */
export interface Delivery {
  /** The `webhook-id`: the same in every attempt of a timer, or of one run of a recurring timer. */
  id: string;
  /** The queue of the timer. */
  queue: string;
  /** The key of the timer. */
  key: string;
  /** The number of the attempt, from 1. */
  attempt: number;
  /** The deadline of the timer. */
  due: Date;
  /** How late the attempt is, in milliseconds, without the time for which it was held. */
  late: number;
  /** For how long a limit held the attempt, in milliseconds. */
  held: number;
  /** The number of the store's ownership, which only grows. */
  fence: bigint | undefined;
  /** Of a recurring timer: the number of its run. */
  run: number | undefined;
  /** Of a recurring timer: the nominal time of its run. */
  nominal: Date | undefined;
  /** When the attempt was sent, in seconds, if the delivery says it. */
  sent: Date | undefined;
  /** All headers of the request. */
  headers: Headers;
  /** The body as it was set. */
  body: Uint8Array;
  /** The body as a text. Throws a `TypeError` if it is no UTF-8. */
  text(): string;
  /** The body as JSON. Throws a `SyntaxError` if it is none. */
  json<T = unknown>(): T;
}

/** A delivery that has a header missing or one that cannot be read. */
export class DeliveryError extends Error {
  override readonly name = "DeliveryError";

  constructor(readonly header: string) {
    super(`the header ${header} is missing or cannot be read`);
  }
}

/** The `webhook-id` of a delivery. */
export function idOf(headers: Headers): string {
  const id = headers.get("webhook-id");
  if (id === null || id === "" || id.length > 512) throw new DeliveryError("webhook-id");
  return id;
}

/** Reads a delivery. */
export function delivery(headers: Headers, body: Uint8Array): Delivery {
  const required = <T>(name: string, read: (text: string) => T | undefined): T => {
    const text = headers.get(name);
    const value = text === null ? undefined : read(text);
    if (value === undefined) throw new DeliveryError(name);
    return value;
  };
  const optional = <T>(name: string, read: (text: string) => T | undefined) => (headers.has(name) ? required(name, read) : undefined);
  const text = () => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  return {
    id: idOf(headers),
    queue: required("timer-queue", (text) => (text === "" ? undefined : text)),
    key: required("timer-key", decoded),
    attempt: required("timer-attempt", whole),
    due: required("timer-due", time),
    late: required("timer-late-us", whole) / 1_000,
    held: (optional("timer-held-us", whole) ?? 0) / 1_000,
    fence: optional("timer-fence", (text) => (/^\d{1,20}$/.test(text) ? BigInt(text) : undefined)),
    run: optional("timer-run", whole),
    nominal: optional("timer-nominal", time),
    sent: optional("webhook-timestamp", (text) => {
      const seconds = whole(text);
      return seconds === undefined ? undefined : new Date(seconds * 1_000);
    }),
    headers,
    body,
    text,
    json: <T>() => JSON.parse(text()) as T,
  };
}

function whole(text: string): number | undefined {
  const value = /^\d{1,16}$/.test(text) ? Number(text) : NaN;
  return Number.isSafeInteger(value) ? value : undefined;
}

function time(text: string): Date | undefined {
  const at = Date.parse(text);
  return Number.isNaN(at) ? undefined : new Date(at);
}

function decoded(text: string): string | undefined {
  try {
    return text === "" ? undefined : decodeURIComponent(text);
  } catch {
    return undefined;
  }
}
