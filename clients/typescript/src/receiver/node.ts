import { type Receiver, type ReceiverOptions, createReceiver } from "./receiver.js";

/** A request of `node:http` or of Express, as far as a receiver needs it. */
export interface NodeRequest extends AsyncIterable<Uint8Array> {
  method?: string | undefined;
  url?: string | undefined;
  rawHeaders: string[];
  /** What a parser of bodies has left: a receiver takes bytes and nothing else. */
  body?: unknown;
  readableEnded?: boolean;
}

/** An answer of `node:http` or of Express, as far as a receiver needs it. */
export interface NodeResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body?: Uint8Array): unknown;
}

/** What `node:http` and Express call. */
export type NodeReceiver = (request: NodeRequest, response: NodeResponse, next?: (error?: unknown) => void) => void;

/** Makes a receiver for `node:http` and for Express. It comes before a parser of bodies, or behind `express.raw`. */
export function createNodeReceiver(options: ReceiverOptions): NodeReceiver {
  return toNode(createReceiver(options));
}

/** Makes a handler for `node:http` and for Express of one that takes a `Request`. */
export function toNode(receiver: Receiver): NodeReceiver {
  return (request, response, next) => {
    void forward(receiver, request, response).catch((error) => {
      if (next !== undefined) {
        next(error);
        return;
      }
      response.statusCode = 500;
      response.end();
    });
  };
}

async function forward(receiver: Receiver, request: NodeRequest, response: NodeResponse): Promise<void> {
  const headers = new Headers();
  for (let at = 0; at + 1 < request.rawHeaders.length; at += 2) {
    const [name, value] = [request.rawHeaders[at]!, request.rawHeaders[at + 1]!];
    // The values of Node have a character for each byte.
    headers.append(name, value);
  }
  const method = request.method ?? "POST";
  const init: RequestInit & { duplex?: "half" } = { method, headers };
  if (method !== "GET" && method !== "HEAD") {
    init.body = body(request);
    init.duplex = "half";
  }
  const answer = await receiver(new Request("http://receiver.invalid/", init));
  response.statusCode = answer.status;
  answer.headers.forEach((value, name) => response.setHeader(name, value));
  response.end(new Uint8Array(await answer.arrayBuffer()));
}

function body(request: NodeRequest): ReadableStream<Uint8Array> | Uint8Array<ArrayBuffer> {
  if (request.body instanceof Uint8Array) return new Uint8Array(request.body);
  if (request.readableEnded === true) {
    throw new TypeError("the body was parsed before the receiver: put the receiver first, or express.raw before it");
  }
  const iterator = request[Symbol.asyncIterator]();
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    // A body that is too long stays unread: an end of the iterator would close the connection before its answer.
  });
}
