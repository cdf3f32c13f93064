import type { Client, NackOutcome } from "./client.js";
import { type Backoff, type Clock, systemClock, wait } from "./clock.js";
import { CountwheelError, ProblemError } from "./errors.js";
import type { Lease, LeaseOfQueues } from "./types.js";

/** Does the work of one timer. The lease is acked when the promise is kept, and nacked when it is broken. */
export type Handler = (lease: Lease, context: { signal: AbortSignal }) => Promise<void> | void;

export interface WorkerOptions {
  /** The pull queues that the worker takes timers of. */
  queues: readonly string[];
  /** Does the work of one timer. */
  handler: Handler;
  /** How many handlers run at a time. Default: 10. */
  concurrency?: number;
  /** How long a lease is, in milliseconds: 1,000 to 12 h. It is extended while the handler runs. Default: 30,000. */
  lease?: number;
  /** How long one call waits for due timers, in milliseconds, at most 60,000. Default: 20,000. */
  wait?: number;
  /** The name of the worker, which a `get` of a leased timer shows. */
  name?: string;
  /** What a failed handler says to the service. Default: the message of the error as `detail`. */
  onError?: (error: unknown, lease: Lease) => NackOutcome;
  /** Is called when the service cannot be asked, and when the outcome of a handler could not be told. */
  onProblem?: (problem: unknown, lease: Lease | undefined) => void;
  /** The waits between calls while the service is away. */
  backoff?: Backoff;
  clock?: Clock;
  random?: () => number;
}

/** The reason of a handler's signal: the lease is over, and another worker may have the timer. */
export class LeaseLostError extends Error {
  override readonly name = "LeaseLostError";
}

/** The reason of a handler's signal: the worker stops, and the time for that is over. */
export class WorkerStoppedError extends Error {
  override readonly name = "WorkerStoppedError";
}

/** A handler that runs. */
interface Running {
  lease: Lease;
  control: AbortController;
  /** Ends when the service has the outcome, or cannot get it. */
  ended: Promise<void>;
  /** When the lease ends, on the clock of the worker. */
  until: number;
}

/** Takes timers of pull queues, and runs a handler for each. */
export class Worker {
  private readonly running = new Set<Running>();
  private readonly stopping = new AbortController();
  private readonly clock: Clock;
  private readonly concurrency: number;
  private readonly length: number;
  private free: () => void = () => {};
  private begun: Promise<void> | undefined;
  private fatal: unknown;

  constructor(
    private readonly client: Client,
    private readonly options: WorkerOptions,
  ) {
    this.clock = options.clock ?? systemClock;
    this.concurrency = options.concurrency ?? 10;
    this.length = options.lease ?? 30_000;
    if (!Number.isInteger(this.concurrency) || this.concurrency < 1) throw new RangeError("concurrency is a whole number from 1 on");
    if (!(this.length >= 1_000)) throw new RangeError("a lease is at least 1,000 ms long");
  }

  /**
   * Works until the worker is stopped. Throws what asking again does not mend, such as a wrong token or a queue that is
   * not pulled; the handlers that run then are waited for.
   */
  run(): Promise<void> {
    this.begun ??= this.loop();
    return this.begun;
  }

  /**
   * Leases nothing more, and waits for the handlers that run, for at most `within` milliseconds. Then the signals of the
   * rest are aborted, and their timers are nacked, due again at once.
   */
  async stop(within = 30_000): Promise<void> {
    this.stopping.abort();
    this.free();
    const ended = new AbortController();
    const limit = this.clock.sleep(within, ended.signal).then(() => true, () => false);
    const all = Promise.allSettled([...this.running].map((one) => one.ended)).then(() => false);
    if (await Promise.race([limit, all])) {
      const rest = [...this.running];
      for (const one of rest) one.control.abort(new WorkerStoppedError("the worker stops"));
      await Promise.allSettled(rest.map((one) => one.ended));
    }
    ended.abort();
    await this.begun?.catch(() => {});
  }

  private async loop(): Promise<void> {
    const { signal } = this.stopping;
    const random = this.options.random ?? Math.random;
    let failures = 0;
    while (!signal.aborted) {
      const room = this.concurrency - this.running.size;
      if (room === 0) {
        await new Promise<void>((free) => {
          this.free = free;
        });
        continue;
      }
      try {
        const leases = await this.client.leaseFrom(this.request(room), { signal, timeout: this.length });
        failures = 0;
        for (const lease of leases) this.begin(lease);
      } catch (error) {
        if (signal.aborted) break;
        if (!(error instanceof CountwheelError) || !error.transient) {
          this.fatal = error;
          break;
        }
        this.options.onProblem?.(error, undefined);
        failures += 1;
        await this.clock.sleep(wait(failures, this.options.backoff ?? {}, random), signal).catch(() => {});
      }
    }
    await Promise.allSettled([...this.running].map((one) => one.ended));
    if (this.fatal !== undefined) throw this.fatal;
  }

  private request(max: number): LeaseOfQueues {
    const { queues, name, wait: patience = 20_000 } = this.options;
    const request = { queues: [...queues], max: Math.min(max, 1_000), lease: this.length, wait: patience };
    return name === undefined ? request : { ...request, worker: name };
  }

  private begin(lease: Lease): void {
    const control = new AbortController();
    // The answer comes a few milliseconds after the lease. The first extension says it exactly.
    const running: Running = { lease, control, ended: Promise.resolve(), until: this.clock.now() + this.length };
    this.running.add(running);
    running.ended = this.work(running).finally(() => {
      this.running.delete(running);
      this.free();
    });
  }

  private async work(running: Running): Promise<void> {
    const { lease, control } = running;
    const { signal } = control;
    // The lease is extended until its outcome is told, or the lease is lost.
    const told = new AbortController();
    const extended = this.extend(running, told.signal);
    try {
      const aborted = new Promise<never>((_, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason), { once: true });
      });
      let outcome: NackOutcome | undefined;
      try {
        // The call is within a promise, so that a handler that throws at once is one that fails.
        const handled = Promise.resolve().then(() => this.options.handler(lease, { signal }));
        await Promise.race([handled, aborted]);
      } catch (error) {
        if (signal.reason instanceof LeaseLostError) {
          this.options.onProblem?.(signal.reason, lease);
          return;
        }
        outcome = signal.aborted ? { in: 0, detail: "the worker stops" } : this.outcome(error, lease);
      }
      const timeout = Math.max(1_000, running.until - this.clock.now());
      if (outcome === undefined) await this.client.ack(lease, { timeout });
      else await this.client.nack(lease, outcome, { timeout });
    } catch (problem) {
      this.options.onProblem?.(problem, lease);
    } finally {
      told.abort();
      await extended;
    }
  }

  private outcome(error: unknown, lease: Lease): NackOutcome {
    try {
      if (this.options.onError !== undefined) return this.options.onError(error, lease);
    } catch (problem) {
      this.options.onProblem?.(problem, lease);
    }
    return { detail: shortened(error instanceof Error ? error.message : String(error)) };
  }

  /** Extends a lease each third of its length. Ends the handler when the lease is lost. */
  private async extend(running: Running, told: AbortSignal): Promise<void> {
    const third = this.length / 3;
    try {
      for (;;) {
        await this.clock.sleep(third, told);
        const left = running.until - this.clock.now();
        if (left <= 0) {
          running.control.abort(new LeaseLostError("the lease is over, and could not be extended"));
          return;
        }
        const asked = this.clock.now();
        try {
          await this.client.extend(running.lease, this.length, { signal: told, timeout: Math.min(left, third) });
          running.until = asked + this.length;
        } catch (error) {
          if (told.aborted) return;
          if (error instanceof ProblemError && !error.transient) {
            running.control.abort(new LeaseLostError(`the lease is lost: ${error.message}`, { cause: error }));
            return;
          }
        }
      }
    } catch {
      // The outcome is told.
    }
  }
}

/** A text of at most 200 bytes without control characters. */
function shortened(text: string): string {
  // A character has at most 3 bytes for each unit of UTF-16; one that is cut in half is left out.
  const plain = text.replace(/[\p{Cc}\p{Cs}]/gu, " ");
  const bytes = new TextEncoder().encode(plain);
  if (bytes.length <= 200) return plain;
  return new TextDecoder().decode(bytes.subarray(0, 200)).replace(/\ufffd+$/, "");
}
