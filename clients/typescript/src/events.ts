import { wait } from "./clock.js";
import { NotCountwheelError } from "./errors.js";
import { Failed, type Http, Stop, streamError } from "./http.js";
import { LineTooLong, lines } from "./lines.js";
import type { EventData, EventKind } from "./types.js";

/** Which events, and from where on. */
export interface EventsOptions {
  /** Only those of queues in this namespace. */
  namespace?: string;
  /** Only those of this queue. */
  queue?: string;
  /** Only those of timers whose key begins with this. */
  prefix?: string;
  /** Only those of these kinds. */
  kinds?: readonly string[];
  /** Goes on behind the event of this id. Default: begins with what happens from now on. */
  lastEventId?: string;
  /** Ends the stream: the iteration throws the reason of the signal. */
  signal?: AbortSignal;
  /** For how long no connection may succeed before the iteration throws, in milliseconds. Default: 60,000. */
  outage?: number;
  /** For how long the service may say nothing before the connection is made anew, in milliseconds. Default: 45,000. */
  idle?: number;
  /** The longest event, in characters. Default: 1,048,576. */
  maxEvent?: number;
}

/** Something that has happened. */
export interface ServerEvent {
  /** By which a stream goes on behind this event. */
  id: string | undefined;
  /**
   * What has happened, such as `set` or `done`; `gap` if events are missing before this one. A later version of the
   * service may have kinds that this one does not know.
   */
  kind: EventKind | "gap" | (string & {});
  /** What the service says of it; of a `gap`, the shard. */
  data: EventData;
}

/** Reads the stream of events, over as many connections as it takes. */
export async function* events(http: Http, options: EventsOptions): AsyncGenerator<ServerEvent, void, undefined> {
  const { namespace, queue, prefix, kinds, signal } = options;
  const most = options.maxEvent ?? 1024 * 1024;
  const position: Position = { id: options.lastEventId, retry: 0 };
  let failures = 0;
  let since = http.clock.now();
  for (;;) {
    const stop = new Stop(options.idle ?? 45_000, http.clock, signal);
    let error: unknown;
    let again = true;
    let opened = false;
    try {
      const call = {
        method: "GET",
        path: "/v1/events",
        query: { namespace, queue, prefix, kinds: kinds?.join(",") },
        headers: { accept: "text/event-stream", "last-event-id": position.id },
      } as const;
      const response = await http.open(call, undefined, "text/event-stream", stop);
      opened = true;
      for await (const event of parse(lines(response.body!, most, "any"), most, position, () => stop.restart())) {
        failures = 0;
        stop.restart(Infinity);
        yield event;
        stop.restart();
      }
      // The service ends streams when it stops.
      error = undefined;
    } catch (caught) {
      if (signal?.aborted) throw signal.reason;
      error = caught instanceof Failed ? caught.failure.error : streamError(caught, stop);
      again = !(caught instanceof Failed) || caught.failure.again;
      if (caught instanceof LineTooLong) {
        error = new NotCountwheelError(`an event is longer than ${most} characters`, 200);
        again = false;
      }
      if (caught instanceof NotCountwheelError) again = false;
    } finally {
      stop.abort();
      stop.end();
    }
    failures += 1;
    if (opened) since = http.clock.now();
    const asked = (error as { retryAfter?: number } | undefined)?.retryAfter ?? 0;
    const pause = Math.max(asked, position.retry, wait(failures, http.backoff, http.random));
    const late = http.clock.now() + pause - since >= (options.outage ?? 60_000);
    if (error !== undefined && (!again || late)) throw error;
    http.next();
    await http.clock.sleep(pause, signal);
  }
}

interface Position {
  id: string | undefined;
  retry: number;
}

/** The events of one connection. What has no end is no event. */
async function* parse(
  source: AsyncIterable<string>,
  most: number,
  position: Position,
  progress: () => void,
): AsyncGenerator<ServerEvent, void, undefined> {
  let kind = "";
  let data: string[] = [];
  let length = 0;
  let id = position.id;
  let first = true;
  for await (const raw of source) {
    progress();
    const line = first && raw.startsWith("\ufeff") ? raw.slice(1) : raw;
    first = false;
    if (line === "") {
      position.id = id;
      if (data.length > 0) yield { id, kind: kind === "" ? "message" : kind, data: value(data.join("\n")) };
      kind = "";
      data = [];
      length = 0;
      continue;
    }
    length += line.length;
    if (length > most) throw new LineTooLong();
    const colon = line.indexOf(":");
    if (colon === 0) {
      length -= line.length;
      continue;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    const text = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") data.push(text);
    else if (field === "event") kind = text;
    else if (field === "id" && !text.includes("\0")) id = text === "" ? undefined : text;
    else if (field === "retry" && /^\d{1,6}$/.test(text)) position.retry = Number(text);
  }
}

function value(text: string): EventData {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new NotCountwheelError("an event is no JSON", 200, { cause });
  }
}
