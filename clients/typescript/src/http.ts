import { type Backoff, type Clock, systemClock, wait } from "./clock.js";
import {
  BadRequestError,
  BadUrlError,
  CountwheelError,
  NotCountwheelError,
  ProblemError,
  TimeoutError,
  UnauthorizedError,
  UnknownOutcomeError,
  UnreachableError,
} from "./errors.js";
import type { Problem } from "./types.js";

/** How a client reaches the service. */
export interface ClientOptions {
  /** Where the service is, such as `http://127.0.0.1:7070`; or several nodes, of which each is asked when the one before fails. */
  url: string | URL | readonly (string | URL)[];
  /** The token of the service, if it has one. */
  token?: string;
  /** How long a call may take with all its tries, in milliseconds. Default: 30,000. */
  timeout?: number;
  /** How long one try may take, in milliseconds. Default: 10,000. */
  tryTimeout?: number;
  /** The waits between tries. */
  backoff?: Backoff;
  /** The longest answer that is read, in bytes. Default: 64 MiB. */
  maxAnswer?: number;
  /** In place of the global `fetch`. */
  fetch?: typeof fetch;
  /** In place of the clock of the machine. */
  clock?: Clock;
  /** In place of `Math.random`, which the waits between tries are drawn by. */
  random?: () => number;
  /** Is called before each repeat of a request. */
  onRetry?: (retry: RetryInfo) => void;
}

/** A repeat that is about to be made. */
export interface RetryInfo {
  /** What the repeat answers. */
  error: CountwheelError;
  /** Which repeat of the call it is, from 1. */
  number: number;
  /** In how many milliseconds. */
  wait: number;
}

/** What every call takes. */
export interface CallOptions {
  /** Ends the call: it throws the reason of the signal. What was asked may have been done. */
  signal?: AbortSignal;
  /** In place of the client's `timeout`, in milliseconds. */
  timeout?: number;
}

/** One request, and how it may be treated. */
export interface Call extends CallOptions {
  method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  path: string;
  query?: object | undefined;
  headers?: Record<string, string | undefined>;
  body?: unknown;
  contentType?: string;
  /** Whether a second request does no more than the first. */
  repeatable: boolean;
  /** A field that every answer of the service has. */
  has: string;
  /** For how much longer one try may take, in milliseconds. */
  longer?: number;
}

/** A whole answer. */
export interface Answer {
  status: number;
  headers: Headers;
  body: Record<string, unknown>;
}

/** How a request that has no good answer failed. */
interface Failure {
  error: CountwheelError;
  /** Whether what was asked may have been done all the same. */
  doubt: boolean;
  /** Whether a repeat may do better. */
  again: boolean;
}

/** A body of lines, which is sent as it is. */
export class Lines {
  constructor(readonly text: string) {}
}

/** A request that has no good answer. It does not leave the client: its error does. */
export class Failed extends Error {
  constructor(readonly failure: Failure) {
    super();
  }
}

/** The way to the service: one request, or one with its repeats. */
export class Http {
  readonly clock: Clock;
  readonly random: () => number;
  readonly backoff: Backoff;
  readonly timeout: number;
  readonly tryTimeout: number;
  private readonly urls: readonly string[];
  private readonly authorization: string | undefined;
  private readonly maxAnswer: number;
  private readonly fetch: typeof fetch;
  private readonly onRetry: ((retry: RetryInfo) => void) | undefined;
  private node = 0;

  constructor(options: ClientOptions) {
    const urls = Array.isArray(options.url) ? options.url : [options.url];
    if (urls.length === 0) throw new BadUrlError("no URL is given");
    this.urls = urls.map((url: string | URL) => base(url));
    if (options.token !== undefined && !/^[\x21-\x7e]+$/.test(options.token)) {
      throw new BadRequestError("a token is printable ASCII without blanks");
    }
    this.authorization = options.token === undefined ? undefined : `Bearer ${options.token}`;
    this.timeout = options.timeout ?? 30_000;
    this.tryTimeout = options.tryTimeout ?? 10_000;
    this.backoff = options.backoff ?? {};
    this.maxAnswer = options.maxAnswer ?? 64 * 1024 * 1024;
    this.fetch = options.fetch ?? ((...of) => fetch(...of));
    this.clock = options.clock ?? systemClock;
    this.random = options.random ?? Math.random;
    this.onRetry = options.onRetry;
  }

  /** Goes on with the next node. */
  next(): void {
    this.node = (this.node + 1) % this.urls.length;
  }

  /** Sends a request, and repeats it as far as that is safe. */
  async call(call: Call): Promise<Answer> {
    const body = call.body === undefined ? undefined : call.body instanceof Lines ? call.body.text : json(call.body);
    const changes = call.method !== "GET" && call.path !== "/v1/simulate";
    const deadline = this.clock.now() + (call.timeout ?? this.timeout) + (call.longer ?? 0);
    let doubt = false;
    let before: Failure | undefined;
    for (let number = 1; ; number += 1) {
      let failure: Failure;
      const begun = this.clock.now();
      try {
        return await this.once(call, body, deadline);
      } catch (error) {
        if (!(error instanceof Failed)) throw error;
        failure = error.failure;
      }
      // A last try that had less than its time says less than the one before it.
      const short = failure.error instanceof TimeoutError && deadline - begun < this.tryTimeout;
      if (short && before !== undefined) failure = { ...before, doubt: true };
      before = failure;
      const { error } = failure;
      if (error.transient) this.next();
      doubt ||= failure.doubt && changes;
      const asked = error instanceof ProblemError ? (error.retryAfter ?? 0) : 0;
      const pause = Math.max(asked, wait(number, this.backoff, this.random));
      const again = failure.again && (call.repeatable || !failure.doubt);
      const last = doubt ? new UnknownOutcomeError(`it is unknown whether ${call.method} ${call.path} was done: ${error.message}`, error) : error;
      if (!again || this.clock.now() + pause >= deadline) throw last;
      this.onRetry?.({ error, number, wait: pause });
      await this.clock.sleep(pause, call.signal);
      // The sleep may have been longer: a try without time to answer would only cast doubt.
      if (this.clock.now() >= deadline) throw last;
    }
  }

  private async once(call: Call, body: string | undefined, deadline: number): Promise<Answer> {
    const left = Math.max(1, deadline - this.clock.now());
    const limit = Math.min(left, this.tryTimeout + (call.longer ?? 0));
    const stop = new Stop(limit, this.clock, call.signal);
    try {
      const response = await this.send(call, body, stop);
      return await this.read(response, stop, call.has);
    } finally {
      stop.end();
    }
  }

  /** Opens a stream: an answer whose body is read by the caller. Throws `Failed`, or the reason of the caller's signal. */
  async open(call: Omit<Call, "has" | "repeatable">, body: string | ReadableStream<Uint8Array> | undefined, type: string, stop: Stop): Promise<Response> {
    const response = await this.send(call, body, stop);
    if (response.ok && essence(response) === type && response.body !== null) return response;
    await this.read(response, stop, "");
    const error = new NotCountwheelError(`answered ${response.status} with ${essence(response)} in place of ${type}`, response.status);
    throw new Failed({ error, doubt: false, again: false });
  }

  private async send(
    call: Omit<Call, "has" | "repeatable">,
    body: string | ReadableStream<Uint8Array> | undefined,
    stop: Stop,
  ): Promise<Response> {
    const headers = new Headers();
    if (this.authorization !== undefined) headers.set("authorization", this.authorization);
    if (body !== undefined) headers.set("content-type", call.contentType ?? "application/json");
    for (const [name, value] of Object.entries(call.headers ?? {})) {
      if (value === undefined) continue;
      try {
        headers.set(name, value);
      } catch (cause) {
        throw new BadRequestError(`the header ${name} cannot be sent`, { cause });
      }
    }
    const url = `${this.urls[this.node]}${call.path}${search(call.query)}`;
    try {
      // `duplex` is required of a body that is a stream, and the types of the DOM do not have it.
      const init: RequestInit & { duplex?: "half" } = { method: call.method, headers, redirect: "manual", signal: stop.signal };
      if (body !== undefined) init.body = body;
      if (body instanceof ReadableStream) init.duplex = "half";
      return await this.fetch(url, init);
    } catch (error) {
      throw stop.reason() ?? new Failed(failed(error, url));
    }
  }

  private async read(response: Response, stop: Stop, has: string): Promise<Answer> {
    const { status } = response;
    const not = (what: string, cause?: unknown) => {
      const error = new NotCountwheelError(`${what} (status ${status}): is the URL that of Countwheel?`, status, { cause });
      return new Failed({ error, doubt: status >= 500, again: status === 502 || status === 503 || status === 504 });
    };
    if (response.type === "opaqueredirect" || (status >= 300 && status < 400 && status !== 304)) {
      discard(response);
      throw not("the answer leads elsewhere");
    }
    const type = essence(response);
    if (type !== "application/json" && type !== "application/problem+json") {
      discard(response);
      throw not(`the answer is ${type === "" ? "of no type" : type} and no JSON`);
    }
    let text: string | undefined;
    try {
      text = await bounded(response, this.maxAnswer);
    } catch (cause) {
      const error = new UnreachableError("the connection broke in the middle of the answer", { cause });
      throw stop.reason() ?? new Failed({ error, doubt: true, again: true });
    }
    if (text === undefined) throw not(`the answer is longer than ${this.maxAnswer} bytes`);
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch (cause) {
      throw not("the answer is no JSON", cause);
    }
    if (typeof body !== "object" || body === null || Array.isArray(body)) throw not("the answer is no object");
    const fields = body as Record<string, unknown>;
    if (response.ok) {
      if (has !== "" && !(has in fields)) throw not(`the answer has no ${has}`);
      return { status, headers: response.headers, body: fields };
    }
    if (typeof fields["code"] !== "string") throw not("the answer is no problem of Countwheel");
    throw new Failed(refusal({ ...(fields as Problem), status }, response.headers));
  }
}

/** Ends a request: after a time, or when the caller asks for it. */
export class Stop {
  private readonly controller = new AbortController();
  private readonly ended = new AbortController();
  private late = false;
  private expires = Infinity;
  private watched = false;

  constructor(
    private readonly limit: number,
    private readonly clock: Clock,
    private readonly caller?: AbortSignal,
  ) {
    if (caller?.aborted) this.controller.abort(caller.reason);
    caller?.addEventListener("abort", this.aborted);
    this.restart(limit);
  }

  /** Gives the request so many milliseconds from now on; `Infinity` for no limit. */
  restart(limit = this.limit): void {
    this.expires = this.clock.now() + limit;
    if (!this.watched && limit !== Infinity) void this.watch().catch(() => {});
  }

  /** One sleep at a time, however often the time begins anew. */
  private async watch(): Promise<void> {
    this.watched = true;
    try {
      for (let left = this.left(); left !== Infinity; left = this.left()) {
        if (left <= 0) {
          this.late = true;
          this.controller.abort(new Error("no answer in time"));
          return;
        }
        await this.clock.sleep(left, this.ended.signal);
      }
    } finally {
      this.watched = false;
    }
  }

  private left(): number {
    return this.expires - this.clock.now();
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** What the request throws if it was ended here. */
  reason(): unknown {
    if (this.late) {
      const error = new TimeoutError(`no whole answer came within ${Math.round(this.limit)} ms`);
      return new Failed({ error, doubt: true, again: true });
    }
    return this.caller?.aborted ? this.caller.reason : undefined;
  }

  /** Whether the time was over. */
  isLate(): boolean {
    return this.late;
  }

  abort(): void {
    this.controller.abort();
  }

  end(): void {
    this.caller?.removeEventListener("abort", this.aborted);
    this.ended.abort();
  }

  private readonly aborted = () => this.controller.abort(this.caller?.reason);
}

/** The JSON of a request. */
export function json(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch (cause) {
    throw new BadRequestError("the request has a value that JSON does not have", { cause });
  }
}

/** A part of a path. */
export function part(name: string): string {
  if (name === "." || name === "..") throw new BadRequestError(`a URL cannot name ${JSON.stringify(name)}: use a batch`);
  try {
    return encodeURIComponent(name);
  } catch (cause) {
    throw new BadRequestError("the name has half a surrogate pair", { cause });
  }
}

/** The media type of an answer without its parameters, in lower case. */
export function essence(response: Response): string {
  return (response.headers.get("content-type") ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
}

function base(url: string | URL): string {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (cause) {
    throw new BadUrlError(`${JSON.stringify(String(url))} is no URL`, { cause });
  }
  const { protocol, username, password, search, hash, origin, pathname } = parsed;
  if (protocol !== "http:" && protocol !== "https:") throw new BadUrlError(`the URL has the scheme ${protocol}, neither http: nor https:`);
  if (username !== "" || password !== "") throw new BadUrlError("the URL has a user or a password: a token goes into `token`");
  if (search !== "" || hash !== "") throw new BadUrlError("the URL has a query or a fragment");
  const path = pathname.replace(/\/+$/, "");
  if (path.endsWith("/v1")) throw new BadUrlError("the URL ends with /v1, which the client adds itself");
  return `${origin}${path}`;
}

function search(query: object | undefined): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  const text = pairs.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`).join("&");
  return text === "" ? "" : `?${text}`;
}

function discard(response: Response): void {
  response.body?.cancel().catch(() => {});
}

/** The text of a body, or `undefined` if it is longer than `most` bytes. */
async function bounded(response: Response, most: number): Promise<string | undefined> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parts: string[] = [];
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.byteLength;
    if (bytes > most) {
      reader.cancel().catch(() => {});
      return undefined;
    }
    parts.push(decoder.decode(value, { stream: true }));
  }
  parts.push(decoder.decode());
  return parts.join("");
}

/** A refusal of the service, and whether it may be asked again. */
function refusal(problem: Problem, headers: Headers): Failure {
  const id = headers.get("x-request-id") ?? undefined;
  const after = retryAfter(headers.get("retry-after"));
  const error =
    problem.status === 401 ? new UnauthorizedError(problem, id, after) : new ProblemError(problem, id, after);
  return {
    error,
    doubt: problem.code === "unknown" || problem.status === 500,
    again: error.transient || problem.code === "idempotency_in_progress",
  };
}

/** `Retry-After` in milliseconds: seconds, or a date. */
export function retryAfter(value: string | null): number | undefined {
  if (value === null) return undefined;
  if (/^\d{1,9}$/.test(value)) return Number(value) * 1_000;
  const at = Date.parse(value);
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now());
}

/** Errors of a connection that was never made: nothing was sent. */
const NOT_SENT = new Set(["ECONNREFUSED", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "UND_ERR_CONNECT_TIMEOUT"]);
/** The same, of which a repeat does no better. */
const NEVER_SENT = /^(ENOTFOUND|ERR_TLS_|ERR_SSL_|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|EADDRNOTAVAIL|EINVAL)/;

/** Why `fetch` has thrown. */
function failed(error: unknown, url: string): Failure {
  const cause = (error as { cause?: { code?: unknown; message?: unknown } }).cause;
  const code = typeof cause?.code === "string" ? cause.code : "";
  const words = code !== "" ? code : String(cause?.message ?? (error as Error).message);
  const { origin } = new URL(url);
  if (code.startsWith("HPE_") || code === "UND_ERR_HEADERS_OVERFLOW") {
    // What answers is no HTTP. It may be anything, so what was asked of it is not in doubt.
    return { error: new NotCountwheelError(`${origin} does not answer in HTTP (${words})`, undefined, { cause: error }), doubt: false, again: false };
  }
  if (words === "bad port") {
    return { error: new BadUrlError(`fetch does not go to the port of ${origin}`, { cause: error }), doubt: false, again: false };
  }
  if (NOT_SENT.has(code) || NEVER_SENT.test(code)) {
    return { error: new UnreachableError(`${origin} cannot be reached (${words})`, { cause: error }), doubt: false, again: NOT_SENT.has(code) };
  }
  return { error: new UnreachableError(`the connection to ${origin} broke (${words})`, { cause: error }), doubt: true, again: true };
}

/** A failure of a stream, as the error of the client. */
export function streamError(error: unknown, stop: Stop): unknown {
  const reason = stop.reason();
  if (reason instanceof Failed) return reason.failure.error;
  if (reason !== undefined) return reason;
  if (error instanceof CountwheelError) return error;
  return new UnreachableError("the connection broke in the middle of the answer", { cause: error });
}
