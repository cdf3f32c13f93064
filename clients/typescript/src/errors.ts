import type { Problem } from "./types.js";

/** Which kind of error it is. */
export type ErrorKind =
  | "bad_url"
  | "unreachable"
  | "not_countwheel"
  | "unauthorized"
  | "problem"
  | "timeout"
  | "unknown_outcome"
  | "batch_ended"
  | "bad_request";

/** Every error of the client but those that the caller's own `AbortSignal` throws. */
export abstract class CountwheelError extends Error {
  /** Tells the classes apart, also over two copies of this package. */
  abstract readonly kind: ErrorKind;
  /** Whether the same request may succeed later, without a change of the request or of the client. */
  readonly transient: boolean = false;

  override get name(): string {
    return this.constructor.name;
  }
}

/** The URL of the service is none that the client can use. Nothing was sent. */
export class BadUrlError extends CountwheelError {
  readonly kind = "bad_url";
}

/** An argument cannot be sent, such as a token with a line break. Nothing was sent. */
export class BadRequestError extends CountwheelError {
  readonly kind = "bad_request";
}

/** No server answers at the URL: the name is unknown, the connection is refused, or TLS failed. Nothing was done. */
export class UnreachableError extends CountwheelError {
  readonly kind = "unreachable";
  override readonly transient = true;
}

/** A server answers that is not Countwheel, or a proxy in front of it: the answer is no HTTP, no JSON, or too long. */
export class NotCountwheelError extends CountwheelError {
  readonly kind = "not_countwheel";
  override readonly transient: boolean;

  constructor(
    message: string,
    /** The status of the answer, if it had one. */
    readonly status: number | undefined,
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.transient = status !== undefined && status >= 500;
  }
}

/** The service refused the request, and says why (RFC 9457). A refusal changes nothing. */
export class ProblemError extends CountwheelError {
  readonly kind: "problem" | "unauthorized" = "problem";
  override readonly transient: boolean;

  constructor(
    /** All that the service said. */
    readonly problem: Problem,
    /** The `X-Request-Id` of the answer, by which the service's log knows the request. */
    readonly requestId: string | undefined,
    /** The `Retry-After` of the answer, in milliseconds. */
    readonly retryAfter: number | undefined,
  ) {
    const { code, detail, errors } = problem;
    const fields = (errors ?? []).map((error) => `; ${error.pointer}: ${error.detail}`).join("");
    super(`${detail ?? problem.title ?? "refused"} (${code})${fields}`);
    // A namespace at its quota has room when something is removed or the quota is raised, and a wait does neither.
    this.transient = [408, 429, 503, 507].includes(problem.status) && code !== "quota_exceeded";
  }

  /** The code of the problem, such as `not_found`. */
  get code(): string {
    return this.problem.code;
  }

  /** The status of the answer. */
  get status(): number {
    return this.problem.status;
  }

  /** The JSON pointer to the faulty field, if the problem names one. */
  get pointer(): string | undefined {
    return this.problem.errors?.[0]?.pointer;
  }
}

/** The token is missing or wrong (`401`). */
export class UnauthorizedError extends ProblemError {
  override readonly kind = "unauthorized";
}

/** No answer came in time to a request that changes nothing. */
export class TimeoutError extends CountwheelError {
  readonly kind = "timeout";
  override readonly transient = true;
}

/**
 * What was asked may have been done or not: no whole answer came, or the service said so (`503 unknown`). A `get` shows
 * which. `cause` says what happened last.
 */
export class UnknownOutcomeError extends CountwheelError {
  readonly kind = "unknown_outcome";
  override readonly transient = true;

  constructor(message: string, cause: unknown) {
    super(message, { cause });
  }
}

/** The service ended a batch early. Operations after `operations` were not begun. */
export class BatchEndedError extends CountwheelError {
  readonly kind = "batch_ended";

  constructor(
    /** Why, such as `shutdown`. */
    readonly reason: string,
    /** How many operations have their results. */
    readonly operations: number,
  ) {
    super(`the batch ended early, after ${operations} operations: ${reason}`);
  }
}
