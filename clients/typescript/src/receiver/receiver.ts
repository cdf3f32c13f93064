import { type Delivery, DeliveryError, delivery, idOf } from "./delivery.js";
import { SignatureError, Verifier } from "./signature.js";
import { type Given, MemoryStore, type SeenStore } from "./store.js";

/** What a handler says: nothing for done, or an answer. The delivery counts as handled if its status is 2xx. */
export type Handled = Response | void;

export interface ReceiverOptions {
  /** The secrets of the endpoint; `null` takes deliveries that nobody has signed. */
  secrets: readonly string[] | null;
  /** Does what the timer was set for. A handler that throws has failed: the answer is 500, and the next attempt is new. */
  handler: (delivery: Delivery) => Promise<Handled> | Handled;
  /** Takes the tests of an endpoint. Default: they are answered with 204. */
  onTest?: (headers: Headers, body: Uint8Array) => Promise<Handled> | Handled;
  /** Remembers what was handled. Default: a `MemoryStore`. */
  store?: SeenStore;
  /** For how long a second attempt of a delivery waits for the first, in milliseconds. Default: 5,000. */
  patience?: number;
  /** How far the time of a signature may be from now, in milliseconds. Default: 300,000. */
  tolerance?: number;
  /** The longest body, in bytes. Default: 16 MiB. */
  maxBody?: number;
  /** Is called with what was thrown, and with what was wrong with a delivery that was refused. */
  onError?: (error: unknown) => void;
  /** Milliseconds since 1970. Default: `Date.now`. */
  now?: () => number;
}

/** Receives deliveries: from a request to its answer. */
export type Receiver = (request: Request) => Promise<Response>;

/** Makes a receiver of deliveries: it verifies them, and drops those that were handled before. */
export function createReceiver(options: ReceiverOptions): Receiver {
  const { secrets, tolerance, now } = options;
  const verifier =
    secrets === null
      ? undefined
      : new Verifier({ secrets, ...(tolerance !== undefined && { tolerance }), ...(now !== undefined && { now }) });
  const store = options.store ?? new MemoryStore();
  const patience = options.patience ?? 5_000;
  const maxBody = options.maxBody ?? 16 * 1024 * 1024;
  const onError = options.onError ?? (() => {});
  /** The deliveries that this receiver handles now. */
  const underWay = new Map<string, Promise<void>>();

  async function once(id: string, headers: Headers, body: Uint8Array): Promise<Response> {
    const end = performance.now() + patience;
    for (let other = underWay.get(id); other !== undefined; other = underWay.get(id)) {
      if (!(await within(other, end - performance.now()))) return busy();
    }
    // Nothing is awaited between the last look and this note, so one attempt goes on.
    let over = () => {};
    underWay.set(id, new Promise((ended) => (over = ended)));
    try {
      const begun = await store.begin(id);
      if (begun.state === "new") return await handle(id, headers, body);
      return begun.state === "done" ? repeated(begun.given) : busy();
    } finally {
      underWay.delete(id);
      over();
    }
  }

  async function handle(id: string, headers: Headers, body: Uint8Array): Promise<Response> {
    let given: Response;
    try {
      given = (await options.handler(delivery(headers, body))) ?? new Response(null, { status: 204 });
    } catch (error) {
      await store.failed(id);
      if (error instanceof DeliveryError) throw error;
      onError(error);
      return answer(500, "the handler has failed");
    }
    if (given.ok) await store.done(id, summary(given));
    else await store.failed(id);
    return given;
  }

  return async (request) => {
    try {
      const body = await bytes(request, maxBody);
      if (body === undefined) return answer(413, `the body has more than ${maxBody} bytes`);
      const { headers } = request;
      await verifier?.verify(headers, body);
      const id = idOf(headers);
      if (headers.get("timer-test") === "1") return (await options.onTest?.(headers, body)) ?? new Response(null, { status: 204 });
      return await once(id, headers, body);
    } catch (error) {
      onError(error);
      if (error instanceof SignatureError) return answer(401, error.message);
      if (error instanceof DeliveryError) return answer(400, error.message);
      return answer(500, "the receiver has failed");
    }
  };
}

/** What an answer says to Countwheel beyond its status. */
const SAID = ["timer-next", "timer-stop"];

function summary(given: Response): Given {
  const headers = SAID.flatMap((name): [string, string][] => {
    const value = given.headers.get(name);
    return value === null ? [] : [[name, value]];
  });
  return { status: given.status, headers };
}

function busy(): Response {
  return answer(503, "another attempt of this delivery is under way", { "retry-after": "1" });
}

function repeated({ status, headers }: Given): Response {
  return new Response(null, { status, headers });
}

function answer(status: number, text: string, headers: Record<string, string> = {}): Response {
  return new Response(`${text}\n`, { status, headers: { "content-type": "text/plain; charset=utf-8", ...headers } });
}

/** Whether a promise is kept within so many milliseconds. */
async function within(promise: Promise<void>, milliseconds: number): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>((over) => (timer = setTimeout(() => over(false), milliseconds)));
  try {
    return await Promise.race([promise.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The bytes of a body, or `undefined` if it is longer than `most`. */
async function bytes(request: Request, most: number): Promise<Uint8Array | undefined> {
  if (request.body === null) return new Uint8Array();
  const reader = request.body.getReader();
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.byteLength;
    if (length > most) {
      reader.cancel().catch(() => {});
      return undefined;
    }
    parts.push(value);
  }
  const all = new Uint8Array(length);
  let at = 0;
  for (const one of parts) {
    all.set(one, at);
    at += one.byteLength;
  }
  return all;
}
