import { BatchEndedError, NotCountwheelError, UnknownOutcomeError } from "./errors.js";
import { type CallOptions, Failed, type Http, Lines, Stop, json, streamError } from "./http.js";
import { lines } from "./lines.js";
import type { BatchEnd, BatchLine, BatchOperation } from "./types.js";

/** What a batch takes. It has no time limit as a whole. */
export interface BatchOptions {
  /** Ends the batch: the iteration throws the reason of the signal. */
  signal?: AbortSignal;
  /** For how long the service may say nothing while operations are sent or results awaited, in milliseconds. Default: 60,000. */
  idle?: number;
  traceparent?: string;
  tracestate?: string;
}

export interface AtomicOptions extends CallOptions {
  traceparent?: string;
  tracestate?: string;
}

/** How many characters of operations go in one piece. */
const PIECE = 64 * 1024;
/** How often a batch that waits for its next operation says that it goes on. */
const ALIVE = 10_000;
/** The longest line of results, in characters. */
const LONGEST = 1024 * 1024;

/** The results of a batch, one for each operation and in their order. They are read once. */
export class BatchResults implements AsyncIterable<BatchLine> {
  /** How the batch ended, once it has ended well. */
  summary: BatchEnd | undefined;
  private begun = false;

  /** @internal */
  constructor(
    private readonly http: Http,
    private readonly operations: Iterable<BatchOperation> | AsyncIterable<BatchOperation>,
    private readonly options: BatchOptions,
  ) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<BatchLine, void, undefined> {
    if (this.begun) throw new Error("the results of a batch are read once");
    this.begun = true;
    const { http, options } = this;
    const stop = new Stop(options.idle ?? 60_000, http.clock, options.signal);
    const source = operations(this.operations, http, () => stop.restart());
    let results = 0;
    let opened = false;
    try {
      const { traceparent, tracestate } = options;
      const call = { method: "POST", path: "/v1/batch", contentType: "application/x-ndjson", headers: { traceparent, tracestate } } as const;
      const response = await http.open(call, source.body, "application/x-ndjson", stop);
      opened = true;
      for await (const text of lines(response.body!, LONGEST)) {
        stop.restart();
        const line = JSON.parse(text) as BatchLine | BatchEnd;
        if ("end" in line) {
          if (!line.end) throw new BatchEndedError(line.reason ?? "no reason", line.operations);
          this.summary = line;
          return;
        }
        if (line.i !== results) throw new NotCountwheelError("the results of a batch are out of order", response.status);
        results += 1;
        // The caller's work between two results is no silence of the service.
        stop.restart(Infinity);
        yield line;
        stop.restart();
      }
      throw new Error("the answer ended without its last line");
    } catch (error) {
      if (error instanceof BatchEndedError) throw error;
      if (source.fault !== undefined) throw source.fault.error;
      if (options.signal?.aborted) throw options.signal.reason;
      // A batch that the service has refused, and one that was never sent, is not in doubt.
      if (error instanceof Failed && !error.failure.doubt) throw error.failure.error;
      const cause = error instanceof Failed ? error.failure.error : streamError(error, stop);
      if (!opened && !(error instanceof Failed)) throw cause;
      throw new UnknownOutcomeError(`the batch broke off after ${results} results: later operations may have been done`, cause);
    } finally {
      source.end();
      stop.abort();
      stop.end();
    }
  }

  /** @internal */
  static async atomic(http: Http, all: Iterable<BatchOperation>, options: AtomicOptions): Promise<unknown> {
    let text = "";
    for (const operation of all) text += `${json(operation)}\n`;
    const { signal, timeout, traceparent, tracestate } = options;
    const { body } = await http.call({
      method: "POST",
      path: "/v1/batch",
      query: { atomic: true },
      contentType: "application/x-ndjson",
      headers: { traceparent, tracestate },
      body: new Lines(text),
      repeatable: false,
      has: "results",
      // The time in which the service takes a whole batch.
      longer: 20_000,
      ...(signal !== undefined && { signal }),
      ...(timeout !== undefined && { timeout }),
    });
    return body["results"];
  }
}

/** The operations as a body that is made while it is sent. */
function operations(all: Iterable<BatchOperation> | AsyncIterable<BatchOperation>, http: Http, progress: () => void) {
  const iterator = Symbol.asyncIterator in all ? all[Symbol.asyncIterator]() : all[Symbol.iterator]();
  const encoder = new TextEncoder();
  let next: IteratorResult<BatchOperation> | Promise<IteratorResult<BatchOperation>> | undefined;
  let ended = false;
  const end = (): void => {
    if (ended) return;
    ended = true;
    Promise.resolve(iterator.return?.()).catch(() => {});
  };
  const source = {
    /** Takes nothing more of the operations. */
    end,
    /** What the caller's own iterator has thrown. */
    fault: undefined as { error: unknown } | undefined,
    body: new ReadableStream<Uint8Array>({
      async pull(controller) {
        progress();
        try {
          let text = "";
          while (text.length < PIECE && !ended) {
            next ??= iterator.next();
            const got = next instanceof Promise ? await first(next, text === "" ? ALIVE : 0, http) : next;
            if (got === undefined) {
              // The service ends a batch that sends nothing for 30 s: a blank line keeps it open.
              text ||= "\n";
              break;
            }
            next = undefined;
            if (got.done) {
              ended = true;
              if (text !== "") controller.enqueue(encoder.encode(text));
              controller.close();
              return;
            }
            text += `${json(got.value)}\n`;
          }
          if (!ended) controller.enqueue(encoder.encode(text));
        } catch (error) {
          source.fault = { error };
          controller.error(error);
        }
      },
      cancel: end,
    }, { highWaterMark: 0 }),
  };
  return source;
}

/** The next operation, or nothing if it does not come for so long. */
async function first<T>(next: Promise<T>, patience: number, http: Http): Promise<T | undefined> {
  const ended = new AbortController();
  const silence = http.clock.sleep(patience, ended.signal).then(
    () => undefined,
    () => undefined,
  );
  try {
    return await Promise.race([next, silence]);
  } finally {
    ended.abort();
  }
}
