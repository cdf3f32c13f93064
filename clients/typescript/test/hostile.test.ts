// Servers that are no Countwheel, or answer as none should.
import assert from "node:assert/strict";
import { test } from "node:test";
import { BadRequestError, BadUrlError, Client, type Clock, CountwheelError, NotCountwheelError, TimeoutError, UnknownOutcomeError, UnreachableError, systemClock } from "countwheel";
import { all, json, raw, stub } from "./support.js";

const timer = { in: "1h", target: { url: "http://a.example" } } as const;
/** Waits for 150 ms for an answer: for servers that give none. */
const hurried = (url: string) => new Client({ url, timeout: 400, tryTimeout: 150, backoff: { first: 1, cap: 2 } });
/** Waits for as long as it takes, and gives up after a few repeats, however slow the machine is. */
function client(url: string): Client {
  let repeats = 0;
  const clock: Clock = {
    now: () => systemClock.now() + repeats * 60_000,
    sleep: async (milliseconds, signal) => {
      if (milliseconds > 2) return await systemClock.sleep(milliseconds, signal);
      repeats += 1;
    },
  };
  return new Client({ url, timeout: 240_000, tryTimeout: 240_000, backoff: { first: 1, cap: 2 }, maxAnswer: 100_000, clock });
}

test("a URL that is none is refused before anything is sent", () => {
  for (const url of ["", "countwheel", "ftp://a.example", "http://user:word@a.example", "http://a.example/v1", "http://a.example/?a=b", []]) {
    assert.throws(() => new Client({ url }), BadUrlError, String(url));
  }
  for (const token of ["", "a b", "a\nb", "ä"]) assert.throws(() => new Client({ url: "http://a.example", token }), BadRequestError);
});

test("names that no URL can carry are refused before anything is sent", () => {
  const client = new Client({ url: "http://127.0.0.1:2" });
  for (const key of [".", "..", "\ud800"]) assert.throws(() => client.get("q", key), BadRequestError);
});

test("an HTML page, a redirect and JSON of another service are no answers of Countwheel", async (t) => {
  const pages: ((response: import("node:http").ServerResponse) => void)[] = [
    (response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>Welcome"),
    (response) => response.writeHead(404, { "content-type": "text/html" }).end("<p>Nothing here"),
    (response) => response.writeHead(302, { location: "https://login.example" }).end(),
    (response) => response.writeHead(200).end("{}"),
    (response) => json(response, 200, { hello: "world" }),
    (response) => json(response, 200, ["revision"]),
    (response) => response.writeHead(200, { "content-type": "application/json" }).end('{"revision": 1'),
    (response) => json(response, 400, { error: "no" }),
    (response) => response.writeHead(401, { "content-type": "text/html" }).end("<p>Log in"),
    (response) => json(response, 200, { revision: "x".repeat(200_000) }),
  ];
  for (const page of pages) {
    const { url, requests } = await stub(t, (_, response) => page(response));
    await assert.rejects(client(url).set("q", "k", timer), (error) => error instanceof NotCountwheelError && !error.transient, page.toString());
    assert.equal(requests(), 1);
  }
});

test("a proxy that has no service behind it is asked again", async (t) => {
  const { url } = await stub(t, (_, response, number) => {
    if (number < 3) response.writeHead(502, { "content-type": "text/html" }).end("<p>Bad gateway");
    else json(response, 200, { state: "pending" });
  });
  assert.equal((await client(url).get("q", "k")).state, "pending");
  const down = await stub(t, (_, response) => response.writeHead(503, { "content-type": "text/html" }).end());
  await assert.rejects(client(down.url).get("q", "k"), NotCountwheelError);
  await assert.rejects(client(down.url).set("q", "k", timer), UnknownOutcomeError);
});

test("what is no HTTP is told from what cannot be reached", async (t) => {
  const greeting = await raw(t, (socket) => socket.end("220 mail.example ESMTP\r\n"));
  await assert.rejects(client(greeting).set("q", "k", timer), NotCountwheelError);
  await assert.rejects(client("http://127.0.0.1:2").set("q", "k", timer), UnreachableError);
});

test("a server that closes, stops in the middle or never answers leaves a change in doubt, and a read without an answer", async (t) => {
  const head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
  const servers: [string, (socket: import("node:net").Socket) => void, new (...of: never[]) => Error][] = [
    ["closes", (socket) => socket.destroy(), UnreachableError],
    ["cut", (socket) => socket.end(`${head}content-length: 100\r\n\r\n{"revision": 1`), UnreachableError],
    ["cut chunk", (socket) => socket.end(`${head}transfer-encoding: chunked\r\n\r\n20\r\n{"revision"`), UnreachableError],
    ["silent", () => {}, TimeoutError],
    ["slow head", (socket) => socket.write("HTTP/1.1 200 OK\r\n"), TimeoutError],
    [
      "slow body",
      (socket) => {
        socket.write(`${head}transfer-encoding: chunked\r\n\r\n`);
        const drip = setInterval(() => socket.write("1\r\n \r\n"), 10);
        socket.on("close", () => clearInterval(drip));
      },
      TimeoutError,
    ],
  ];
  for (const [name, answer, kind] of servers) {
    const url = await raw(t, answer);
    const asked = kind === TimeoutError ? hurried(url) : client(url);
    await assert.rejects(asked.get("q", "k"), kind, name);
    await assert.rejects(asked.set("q", "k", timer), UnknownOutcomeError, name);
  }
});

test("an answer without an end is read no further than its bound", async (t) => {
  let sent = 0;
  const { url } = await stub(t, (_, response) => {
    response.writeHead(200, { "content-type": "application/json" });
    const more = () => {
      while (!response.destroyed && sent < 1e9) {
        sent += 65_536;
        if (!response.write(" ".repeat(65_536))) {
          response.once("drain", more);
          return;
        }
      }
    };
    more();
  });
  await assert.rejects(new Client({ url, maxAnswer: 100_000 }).get("q", "k"), NotCountwheelError);
  assert.ok(sent < 50_000_000, `${sent}`);
});

test("a batch that breaks off, ends early, answers nonsense or is refused is told from one that ends well", async (t) => {
  const operations = [1, 2, 3].map((n) => ({ op: "fire", queue: "q", key: `k${n}` }) as const);
  const lines = (...of: unknown[]) => of.map((line) => `${typeof line === "string" ? line : JSON.stringify(line)}\n`).join("");
  const ok = (i: number) => ({ i, status: 202, revision: 1 });
  const bodies: [string, string, number][] = [
    ["unknown_outcome", lines(ok(0), ok(1)), 2],
    ["unknown_outcome", lines(ok(0)) + '{"i": 1, "sta', 1],
    ["unknown_outcome", "", 0],
    ["unknown_outcome", lines(ok(0), ok(2)), 1],
    ["unknown_outcome", "x".repeat(2_000_000), 0],
    ["batch_ended", lines(ok(0), { end: false, operations: 1, succeeded: 1, failed: 0, reason: "shutdown" }), 1],
  ];
  for (const [kind, body, count] of bodies) {
    const { url } = await stub(t, (request, response) => {
      request.resume();
      response.writeHead(200, { "content-type": "application/x-ndjson" }).end(body);
    });
    let results = 0;
    await assert.rejects(
      async () => {
        for await (const _ of client(url).batch(operations)) results += 1;
      },
      (error) => error instanceof CountwheelError && error.kind === kind,
      body.slice(0, 100),
    );
    assert.equal(results, count);
  }
  await assert.rejects(all(client("http://127.0.0.1:2").batch(operations)), UnreachableError);
  const html = await stub(t, (_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>"));
  await assert.rejects(all(client(html.url).batch(operations)), NotCountwheelError);
  const silent = await stub(t, (request) => void request.resume());
  await assert.rejects(all(hurried(silent.url).batch(operations, { idle: 100 })), UnknownOutcomeError);
});

test("what the caller's own operations throw is thrown by the batch", async (t) => {
  const { url } = await stub(t, (request) => void request.resume());
  const broken = (async function* () {
    yield { op: "fire", queue: "q", key: "k" } as const;
    throw new RangeError("the source is broken");
  })();
  await assert.rejects(all(client(url).batch(broken)), /the source is broken/);
});

test("queues and timers of all queues are read page by page, and a body if it is asked for", async (t) => {
  const asked: string[] = [];
  const { url } = await stub(t, (request, response) => {
    asked.push(request.url ?? "");
    const second = request.url?.includes("after=") === true;
    const name = second ? "b" : "a";
    if (request.url?.startsWith("/v1/queues?") === true) {
      json(response, 200, { queues: [{ queue: name, pending: 1, delivering: 0, done: 0, dead: 0 }], next: second ? null : "n", ...(second ? {} : { exact: false }) });
    } else if (request.url?.startsWith("/v1/timers") === true) json(response, 200, { items: [{ queue: "q", key: name }], next: second ? null : "n" });
    else json(response, 200, { state: "pending", body: "text" });
  });
  const queues = await client(url).queues({ prefix: "x/", state: "dead" });
  assert.deepEqual([queues.queues.map(({ queue }) => queue), queues.exact, queues.next], [["a", "b"], false, null]);
  assert.deepEqual((await all(client(url).listAll({ queue_prefix: "q", order: "created" }))).map(({ key }) => key), ["a", "b"]);
  assert.equal((await client(url).get("q", "k", { body: "text" })).body, "text");
  assert.deepEqual(asked, [
    "/v1/queues?prefix=x%2F&state=dead",
    "/v1/queues?prefix=x%2F&state=dead&after=n",
    "/v1/timers?queue_prefix=q&order=created",
    "/v1/timers?queue_prefix=q&order=created&after=n",
    "/v1/queues/q/timers/k?body=text",
  ]);
});
