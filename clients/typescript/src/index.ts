export { Client, type IfMatch, type LeaseName, type NackOutcome, type PostOptions, type Preconditions, type Trace } from "./client.js";
export { BatchResults, type AtomicOptions, type BatchOptions } from "./batch.js";
export { type Backoff, type Clock, systemClock } from "./clock.js";
export * from "./errors.js";
export type { EventsOptions, ServerEvent } from "./events.js";
export type { CallOptions, ClientOptions, RetryInfo } from "./http.js";
export { LeaseLostError, Worker, WorkerStoppedError, type Handler, type WorkerOptions } from "./worker.js";
export type * from "./types.js";
