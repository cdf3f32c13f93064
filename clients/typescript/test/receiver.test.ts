// The receiver: signatures, repeats, and what a handler is given; alone, in Express, and with real deliveries.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import { test } from "node:test";
import express from "express";
import { Client } from "countwheel";
import { type Delivery, MemoryStore, type ReceiverOptions, type SeenStore, SignatureError, Verifier, createNodeReceiver, createReceiver } from "countwheel/receiver";
import { Service, listening, until } from "./support.js";

const NOW = 1_772_366_405_000;
const secret = (byte: number) => `whsec_${Buffer.alloc(24, byte).toString("base64")}`;
const [one, two] = [secret(1), secret(2)];

function sign(secret: string, id: string, timestamp: string, body: string | Uint8Array): string {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  return `v1,${createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64")}`;
}

function request(more: Record<string, string | null> = {}, body: string | Uint8Array<ArrayBuffer> = '{"n":1}', secrets = [one]): Request {
  const headers = new Headers({
    "webhook-id": "tmr-1-7",
    "webhook-timestamp": String(NOW / 1_000),
    "timer-queue": "orders",
    "timer-key": "a%2Fb%C3%A4",
    "timer-attempt": "2",
    "timer-due": "2026-03-01T12:00:05.000000Z",
    "timer-late-us": "1500",
    "timer-held-us": "250000",
    "timer-fence": "18446744073709551615",
  });
  for (const [name, value] of Object.entries(more)) {
    if (value !== null) headers.set(name, value);
    else headers.delete(name);
  }
  if (!("webhook-signature" in more)) {
    const signatures = secrets.map((secret) => sign(secret, headers.get("webhook-id") ?? "", headers.get("webhook-timestamp") ?? "", body));
    headers.set("webhook-signature", signatures.join(" "));
  }
  return new Request("http://a.example/hook", { method: "POST", headers, body });
}

function receiver(more: Partial<ReceiverOptions> = {}) {
  const handled: Delivery[] = [];
  const receive = createReceiver({ secrets: [one], now: () => NOW, handler: (delivery) => void handled.push(delivery), ...more });
  return { receive, handled };
}

test("a delivery is handed on with its attempt, its deadline and its lateness", async () => {
  const { receive, handled } = receiver();
  const answer = await receive(request({ "timer-run": "3", "timer-nominal": "2026-03-01T12:00:00.000000Z" }));
  assert.equal(answer.status, 204);
  const [{ id, queue, key, attempt, due, late, held, fence, run, nominal, sent }] = handled as [Delivery];
  assert.deepEqual([id, queue, key, attempt, late, held, fence, run], ["tmr-1-7", "orders", "a/bä", 2, 1.5, 250, 18446744073709551615n, 3]);
  assert.deepEqual([due, nominal, sent], [new Date("2026-03-01T12:00:05Z"), new Date("2026-03-01T12:00:00Z"), new Date(NOW)]);
  assert.deepEqual(handled[0]?.json(), { n: 1 });
});

test("a signature of any secret is taken, and no other", async () => {
  const verifier = new Verifier({ secrets: [one, two], now: () => NOW });
  const verify = async (request: Request) => await verifier.verify(request.headers, new Uint8Array(await request.arrayBuffer()));
  await verify(request());
  await verify(request({}, "", [two]));
  await verify(request({}, new Uint8Array([0, 255, 128]), [secret(3), two]));
  const good = request().headers.get("webhook-signature")!;
  const cases: [string, Request][] = [
    ["wrong", request({}, undefined, [secret(3)])],
    ["wrong", request({ "webhook-signature": good }, '{"n":2}')],
    ["wrong", request({ "webhook-signature": good, "webhook-id": "tmr-1-8" })],
    ["wrong", request({ "webhook-signature": good, "webhook-timestamp": String(NOW / 1_000 + 1) })],
    ["wrong", request({ "webhook-signature": "v1,AAAA" })],
    ["no_signature", request({ "webhook-signature": null })],
    ["no_signature", request({ "webhook-signature": good.replace("v1,", "v2,") })],
    ["no_signature", request({ "webhook-signature": "v1,?" })],
    ["no_id", request({ "webhook-id": null })],
    ["no_timestamp", request({ "webhook-timestamp": null })],
    ["no_timestamp", request({ "webhook-timestamp": "1e9" })],
    ["too_old", request({ "webhook-timestamp": String(NOW / 1_000 - 301) })],
    ["too_new", request({ "webhook-timestamp": String(NOW / 1_000 + 301) })],
  ];
  for (const [fault, request] of cases) {
    await assert.rejects(verify(request), (error) => error instanceof SignatureError && error.fault === fault, fault);
  }
  await verify(request({ "webhook-timestamp": String(NOW / 1_000 - 300) }));
  for (const bad of [[], ["secret"], ["whsec_"], ["whsec_AAAA"], [one.slice(0, -1)], [`whsec_${Buffer.alloc(65).toString("base64")}`]]) {
    assert.throws(() => new Verifier({ secrets: bad }), TypeError);
  }
});

test("the example of Standard Webhooks is right", async () => {
  const body = '{"test": 2432232314}';
  const headers = new Headers({
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  });
  const verifier = new Verifier({ secrets: ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], now: () => 1_614_265_330_000 });
  await verifier.verify(headers, new TextEncoder().encode(body));
});

test("a delivery that is not signed, is too long or lacks a header never comes to the handler", async () => {
  const errors: unknown[] = [];
  const { receive, handled } = receiver({ maxBody: 100, onError: (error) => errors.push(error) });
  const status = async (request: Request) => (await receive(request)).status;
  assert.equal(await status(request({ "webhook-signature": "v1,AAAA" })), 401);
  assert.equal(await status(request({}, "x".repeat(101))), 413);
  for (const header of ["timer-queue", "timer-key", "timer-attempt", "timer-due", "timer-late-us"]) {
    assert.equal(await status(request({ [header]: null })), 400, header);
  }
  for (const [header, value] of [["timer-key", "%"], ["timer-attempt", "-1"], ["timer-due", "soon"], ["timer-late-us", "1e3"], ["timer-run", "x"]] as const) {
    assert.equal(await status(request({ [header]: value })), 400, header);
  }
  assert.equal(handled.length, 0);
  assert.equal(errors.length, 11);
  assert.equal(await status(request()), 204);
});

test("a repeat is answered like the first without a call of the handler", async () => {
  let calls = 0;
  const { receive } = receiver({
    handler: () => {
      calls += 1;
      return new Response("made", { status: 201, headers: { "timer-next": "30s", "x-other": "1" } });
    },
  });
  const first = await receive(request());
  const repeat = await receive(request({ "timer-attempt": "3" }));
  assert.deepEqual([first.status, await first.text()], [201, "made"]);
  assert.deepEqual([repeat.status, repeat.headers.get("timer-next"), repeat.headers.get("x-other")], [201, "30s", null]);
  await receive(request({ "webhook-id": "tmr-1-8" }));
  assert.equal(calls, 2);
});

test("a handler that fails is called again", async () => {
  let calls = 0;
  const errors: unknown[] = [];
  const { receive } = receiver({
    onError: (error) => errors.push(error),
    handler: () => {
      calls += 1;
      if (calls === 1) throw new Error("out of stock");
      return calls === 2 ? new Response(null, { status: 503, headers: { "retry-after": "5" } }) : undefined;
    },
  });
  const first = await receive(request());
  assert.deepEqual([first.status, (await first.text()).includes("stock")], [500, false]);
  assert.equal((await receive(request())).headers.get("retry-after"), "5");
  assert.equal((await receive(request())).status, 204);
  assert.equal((await receive(request())).status, 204);
  assert.deepEqual([calls, errors.length], [3, 1]);
});

test("of several attempts at a time one is handled: the others wait for it, and the next goes on if it has failed", async () => {
  for (const fails of [false, true]) {
    let calls = 0;
    let now = 0;
    let release = () => {};
    const held = new Promise<void>((resolve) => (release = resolve));
    const { receive } = receiver({
      patience: 60_000,
      handler: async () => {
        assert.equal((now += 1), 1);
        calls += 1;
        if (calls === 1) await held;
        now -= 1;
        if (calls === 1 && fails) throw new Error("no");
      },
    });
    const answers = [receive(request()), receive(request()), receive(request())];
    await until(() => calls || undefined, "one is under way");
    await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(calls, 1);
    release();
    const statuses = (await Promise.all(answers)).map(({ status }) => status).sort();
    assert.deepEqual(statuses, fails ? [204, 204, 500] : [204, 204, 204]);
    assert.equal(calls, fails ? 2 : 1);
  }
});

test("a second attempt waits no longer than its patience, and is told when to come again", async () => {
  let release = () => {};
  let begun = false;
  const { receive } = receiver({ patience: 5, handler: () => ((begun = true), new Promise<void>((resolve) => (release = resolve))) });
  const first = receive(request());
  await until(() => (begun ? true : undefined), "the first is under way");
  const second = await receive(request());
  assert.deepEqual([second.status, second.headers.get("retry-after")], [503, "1"]);
  release();
  assert.equal((await first).status, 204);
});

test("a delivery that is under way in another process is told to come again", async () => {
  const store: SeenStore = { begin: () => ({ state: "busy" }), done: () => {}, failed: () => {} };
  const { receive, handled } = receiver({ store });
  const answer = await receive(request());
  assert.deepEqual([answer.status, answer.headers.get("retry-after"), handled.length], [503, "1", 0]);
});

test("the memory of handled deliveries is bounded, and ends", () => {
  let now = 0;
  const store = new MemoryStore({ capacity: 3, keep: 100, now: () => now });
  const given = { status: 204, headers: [] };
  for (const id of ["a", "b", "c", "d"]) {
    assert.equal(store.begin(id).state, "new");
    assert.equal(store.begin(id).state, "busy");
    store.done(id, given);
  }
  assert.equal(store.size, 3);
  assert.equal(store.begin("a").state, "new");
  store.failed("a");
  assert.equal(store.begin("a").state, "new");
  assert.equal(store.begin("d").state, "done");
  now = 100;
  assert.equal(store.begin("d").state, "new");
  store.done("d", given);
  assert.equal(store.size, 1);
});

test("a test of an endpoint does not come to the handler", async () => {
  const { receive, handled } = receiver();
  const trial = { "timer-test": "1", "webhook-id": "test-1", "timer-queue": null, "timer-key": null };
  assert.equal((await receive(request(trial))).status, 204);
  const own = receiver({ onTest: () => new Response(null, { status: 202 }) });
  assert.equal((await own.receive(request(trial))).status, 202);
  assert.equal((await receive(request({ ...trial, "webhook-signature": "v1,AAAA" }))).status, 401);
  assert.equal(handled.length, 0);
});

test("in Express a receiver takes bytes, before a parser or behind express.raw, and says what is wrong with a parsed body", async (t) => {
  const handled: unknown[] = [];
  const errors: unknown[] = [];
  const receive = createNodeReceiver({ secrets: [one], now: () => NOW, maxBody: 1_000, handler: (delivery) => void handled.push(delivery.json()) });
  const app = express();
  app.post("/first", receive);
  app.post("/raw", express.raw({ type: () => true }), receive);
  app.use(express.json());
  app.post("/parsed", receive);
  app.use(((error, _request, response, _next) => {
    errors.push(error);
    response.status(500).end();
  }) as express.ErrorRequestHandler);
  const url = await listening(t, createServer(app));
  const post = async (path: string, id: string, body = '{"n":1}') => {
    const { headers } = request({ "webhook-id": id }, body);
    headers.set("content-type", "application/json");
    return (await fetch(`${url}${path}`, { method: "POST", headers, body })).status;
  };
  assert.equal(await post("/first", "a"), 204);
  assert.equal(await post("/first", "a"), 204);
  assert.equal(await post("/raw", "b"), 204);
  assert.equal(await post("/parsed", "c"), 500);
  assert.equal(await post("/first", "d", "x".repeat(100_000)), 413);
  assert.match(String(errors[0]), /express.raw/);
  assert.deepEqual(handled, [{ n: 1 }, { n: 1 }]);
});

test("real deliveries are verified and handed on, those of a replaced secret too", async (t) => {
  const handled: Delivery[] = [];
  const receive = createNodeReceiver({ secrets: [one, two], handler: (delivery) => void handled.push(delivery) });
  const target = await listening(t, createServer(receive));
  const service = await Service.start(t);
  const client = new Client({ url: service.url });
  for (const [name, secrets] of Object.entries({ first: [one], both: [one, two], last: [two] })) {
    await client.putEndpoint(name, { url: target, secrets });
    await client.set("orders", `${name}/ä`, { in: 0, target: { endpoint: name }, body: { name } });
  }
  await client.set("orders", "every", { every: "100ms", in: 0, repeats: 2, target: { endpoint: "both" } });
  assert.equal((await client.testEndpoint("both")).attempt.result, "done");
  await until(() => (handled.length === 5 ? true : undefined), "all are delivered");
  const of = (key: string) => handled.filter((delivery) => delivery.key === key);
  assert.deepEqual(of("first/ä").map(({ queue, attempt, fence }) => [queue, attempt, typeof fence]), [["orders", 1, "bigint"]]);
  assert.deepEqual(of("last/ä")[0]?.json(), { name: "last" });
  assert.deepEqual(of("every").map(({ run }) => run), [1, 2]);
  await client.putEndpoint("other", { url: target, secrets: [secret(9)] });
  await client.set("orders", "stranger", { in: 0, target: { endpoint: "other" }, retry: { fixed: "1s", max_attempts: 1 } });
  const dead = await until(async () => {
    const timer = await client.get("orders", "stranger");
    return timer.state === "dead" ? timer : undefined;
  }, "the stranger is refused");
  assert.equal(dead.attempts[0]?.detail, "401");
});
