// The stream of events, against a server that sends what a test says.
import assert from "node:assert/strict";
import type { IncomingMessage, ServerResponse } from "node:http";
import { test } from "node:test";
import { Client, NotCountwheelError, ProblemError, type ServerEvent, UnauthorizedError, UnreachableError } from "countwheel";
import { json, problem, stub } from "./support.js";

const client = (url: string) => new Client({ url, backoff: { first: 1, cap: 2 } });
const begin = (response: ServerResponse) => response.writeHead(200, { "content-type": "text/event-stream" });

async function take(source: AsyncIterable<ServerEvent>, count: number): Promise<ServerEvent[]> {
  const events: ServerEvent[] = [];
  for await (const event of source) {
    events.push(event);
    if (events.length === count) break;
  }
  return events;
}

test("events have their kind, their id and their data, however the stream is cut into pieces", async (t) => {
  const text = '\ufeff: hello\r\n\r\nid: 1\r\nevent: set\r\ndata: {"key":\r\ndata:"ä"}\r\n\r\nevent: gap\rdata: {}\r\rid: 3\ndata: 7\nunknown: x\n\n: still here\n\n';
  const bytes = Buffer.from(text);
  for (const size of [1, 2, 3, 7, bytes.length]) {
    const { url } = await stub(t, (_, response) => {
      begin(response);
      const next = (from: number) => {
        if (from >= bytes.length) return;
        response.write(bytes.subarray(from, from + size), () => setImmediate(next, from + size));
      };
      next(0);
    });
    assert.deepEqual(await take(client(url).events(), 3), [
      { id: "1", kind: "set", data: { key: "ä" } },
      { id: "1", kind: "gap", data: {} },
      { id: "3", kind: "message", data: 7 },
    ]);
  }
});

test("a broken stream goes on behind the last whole event", async (t) => {
  const asked: (string | undefined)[] = [];
  const { url } = await stub(t, (request: IncomingMessage, response, number) => {
    asked.push(request.headers["last-event-id"] as string | undefined);
    begin(response);
    if (number === 1) {
      response.write("id: a\nevent: set\ndata: 1\n\nid: b\nevent: set\ndata: 2\n\nid: c\nevent: set\ndata: 3", () => response.destroy());
    } else if (number === 2) response.end();
    else response.write("id: c\nevent: set\ndata: 3\n\n");
  });
  const events = await take(client(url).events({ lastEventId: "z" }), 3);
  assert.deepEqual(events.map(({ id }) => id), ["a", "b", "c"]);
  assert.deepEqual(asked, ["z", "b", "b"]);
});

test("the filter is the query", async (t) => {
  let asked = "";
  const { url } = await stub(t, (request, response) => {
    asked = request.url ?? "";
    begin(response).write("data: 1\n\n");
  });
  await take(client(url).events({ queue: "a:b", prefix: "k/", kinds: ["set", "done"] }), 1);
  assert.equal(asked, "/v1/events?queue=a%3Ab&prefix=k%2F&kinds=set%2Cdone");
});

test("a refusal ends the stream, and says why", async (t) => {
  const future = await stub(t, (_, response) => json(response, 400, problem(400, "malformed")));
  await assert.rejects(take(client(future.url).events(), 1), ProblemError);
  const token = await stub(t, (_, response) => json(response, 401, problem(401, "unauthorized")));
  await assert.rejects(take(client(token.url).events(), 1), UnauthorizedError);
  const html = await stub(t, (_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>"));
  await assert.rejects(take(client(html.url).events(), 1), NotCountwheelError);
});

test("a busy service is asked again, and one that stays away ends the stream", async (t) => {
  const busy = await stub(t, (_, response, number) => {
    if (number < 3) json(response, 429, problem(429, "overloaded"));
    else begin(response).write("data: 1\n\n");
  });
  assert.equal((await take(client(busy.url).events(), 1)).length, 1);
  await assert.rejects(take(client("http://127.0.0.1:2").events({ outage: 50 }), 1), UnreachableError);
});

test("a line and an event without an end are read no further than their bound", async (t) => {
  for (const piece of ["x".repeat(1_000), "data: xxxxxxxx\n"]) {
    let closed = false;
    const { url } = await stub(t, (_, response) => {
      begin(response);
      const more = setInterval(() => response.write(piece.repeat(20)), 1);
      response.on("close", () => {
        closed = true;
        clearInterval(more);
      });
    });
    await assert.rejects(take(client(url).events({ maxEvent: 100_000 }), 1), NotCountwheelError);
    for (let turns = 0; !closed && turns < 1_000; turns += 1) await new Promise((next) => setTimeout(next, 2));
    assert.ok(closed, "the connection is closed");
  }
});

test("a stream that says nothing is opened anew", async (t) => {
  const { url } = await stub(t, (_, response, number) => {
    begin(response).flushHeaders();
    if (number === 2) response.write("data: 1\n\n");
  });
  assert.equal((await take(client(url).events({ idle: 50 }), 1)).length, 1);
});

test("the caller's signal ends the stream", async (t) => {
  const { url } = await stub(t, (_, response) => begin(response).write("data: 1\n\n"));
  const control = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of client(url).events({ signal: control.signal })) setImmediate(() => control.abort(new Error("enough")));
  }, /enough/);
});
