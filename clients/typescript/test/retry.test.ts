// Which requests are repeated, when, and what is said when it is of no use. No network, and a clock that is moved.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type ClientOptions, ProblemError, TimeoutError, UnauthorizedError, UnknownOutcomeError, UnreachableError } from "countwheel";
import { QuickClock, problem } from "./support.js";

type Script = (number: number, init: RequestInit) => Response | Error | "never";

const refused = () => Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNREFUSED" } });
const reset = () => Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNRESET" } });
const answer = (status: number, body: object, headers: Record<string, string> = {}) =>
  new Response(JSON.stringify(body), {
    status,
    headers: { "content-type": status < 400 ? "application/json" : "application/problem+json", ...headers },
  });
const set = () => answer(201, { queue: "q", key: "k", id: "tmr-1", revision: 1, due: "2026-03-01T12:00:05.000000Z", replaced: null });
const moved = () => answer(200, { revision: 2, old_due: "", due: "" });
const timer = { in: "1h", target: { url: "http://a.example" } } as const;

function scripted(script: Script, more: Partial<ClientOptions> = {}) {
  const clock = new QuickClock();
  const urls: string[] = [];
  const headers: Headers[] = [];
  const fetch = async (url: string | URL | Request, init: RequestInit = {}) => {
    urls.push(String(url));
    headers.push(new Headers(init.headers));
    const said = script(urls.length, init);
    if (said === "never") {
      return await new Promise<Response>((_, reject) => {
        init.signal?.addEventListener("abort", () => reject(init.signal?.reason));
      });
    }
    if (said instanceof Error) throw said;
    return said;
  };
  const client = new Client({ url: "http://a.example", fetch: fetch as typeof globalThis.fetch, clock, random: () => 1, ...more });
  return { client, clock, urls, headers };
}

test("a set is repeated after a refused connection, a lost one and a 503, with waits that double", async () => {
  const waits: number[] = [];
  const { client, urls } = scripted((number) => [refused(), reset(), answer(503, problem(503, "unknown"))][number - 1] ?? set(), {
    onRetry: ({ wait }) => waits.push(wait),
  });
  assert.equal((await client.set("q", "k", timer)).revision, 1);
  assert.equal(urls.length, 4);
  assert.deepEqual(waits, [100, 200, 400]);
});

test("waits are drawn between nothing and their bound", async () => {
  const drawn = [0, 0.25, 0.5];
  const waits: number[] = [];
  const { client } = scripted((number) => (number <= 3 ? refused() : set()), {
    random: () => drawn[waits.length]!,
    onRetry: ({ wait }) => waits.push(wait),
  });
  await client.set("q", "k", timer);
  assert.deepEqual(waits, [0, 50, 200]);
});

test("Retry-After is waited for", async () => {
  for (const code of ["overloaded", "over_rate"]) {
    const waits: number[] = [];
    const { client } = scripted((number) => (number === 1 ? answer(429, problem(429, code), { "retry-after": "3" }) : set()), {
      onRetry: ({ wait }) => waits.push(wait),
    });
    await client.set("q", "k", timer);
    assert.deepEqual(waits, [3_000], code);
  }
});

test("a full disk is waited for, and a quota is not", async () => {
  const full = scripted((number) => (number === 1 ? answer(507, problem(507, "storage_full")) : set()));
  await full.client.set("q", "k", timer);
  assert.equal(full.urls.length, 2);
  const over = scripted(() => answer(507, { ...problem(507, "quota_exceeded"), quota: "timers" }));
  await assert.rejects(over.client.set("q", "k", timer), (error) => error instanceof ProblemError && error.problem.quota === "timers" && !error.transient);
  assert.equal(over.urls.length, 1);
});

test("a Retry-After beyond the time of the call ends the call at once", async () => {
  const { client, urls, clock } = scripted(() => answer(429, problem(429, "overloaded"), { "retry-after": "60" }));
  await assert.rejects(client.set("q", "k", timer), (error) => error instanceof ProblemError && error.retryAfter === 60_000);
  assert.equal(urls.length, 1);
  assert.ok(clock.now() < 1_000);
});

test("a call ends within its time, whatever happens", async () => {
  for (const said of [refused, reset, () => "never" as const]) {
    const { client, clock } = scripted(said, { timeout: 7_000, tryTimeout: 2_000 });
    await assert.rejects(client.get("q", "k"));
    assert.ok(clock.now() <= 7_000, `${clock.now()}`);
    assert.ok(clock.now() > 1_900, `${clock.now()}`);
  }
});

test("a move by a duration is not repeated once it may have been done, and says so", async () => {
  for (const lost of [reset(), answer(503, problem(503, "unknown")), "never" as const]) {
    const { client, urls } = scripted((number) => (number === 1 ? lost : moved()));
    await assert.rejects(client.move("q", "k", { by: "1h" }), UnknownOutcomeError);
    assert.equal(urls.length, 1);
  }
});

test("a move by a duration is repeated if nothing was done, or if it names a revision", async () => {
  const nothing = scripted((number) => (number === 1 ? refused() : moved()));
  await nothing.client.move("q", "k", { by: "1h" });
  assert.equal(nothing.urls.length, 2);
  const guarded = scripted((number) => (number === 1 ? reset() : moved()));
  await guarded.client.move("q", "k", { by: "1h" }, { ifMatch: 1 });
  assert.equal(guarded.headers[1]?.get("if-match"), '"1"');
});

test("what a fire, a drain that removes, a job and a token may have done is not repeated", async () => {
  const calls: ((client: Client) => Promise<unknown>)[] = [
    (client) => client.fire("q", "k"),
    (client) => client.revive("q", "k"),
    (client) => client.drain("q", { mode: "remove" }),
    (client) => client.beginJob({ queue: "q", action: "remove", filter: {} }),
    (client) => client.createToken({ name: "x", scopes: ["read"] }),
    (client) => client.rotateToken("9f3c51d20ab7"),
    (client) => client.purge("q"),
    (client) => client.lease("q"),
    (client) => client.resend("q", "k"),
    (client) => client.batchAtomic([{ op: "fire", queue: "q", key: "k" }]),
  ];
  for (const call of calls) {
    const { client, urls } = scripted(() => reset());
    await assert.rejects(call(client), UnknownOutcomeError);
    assert.equal(urls.length, 1, call.toString());
  }
});

test("a revocation, reads of tokens and of the audit log, and all of namespaces are repeated after a lost answer", async () => {
  const body = { id: "9f3c51d20ab7", revoked: true, tokens: [], items: [], next: null, namespace: "a", namespaces: [], removed: true };
  const calls: ((client: Client) => Promise<unknown>)[] = [
    (client) => client.revokeToken("9f3c51d20ab7", { ifMatch: 12 }),
    (client) => client.token("9f3c51d20ab7"),
    (client) => client.tokens(),
    (client) => client.audit().next(),
    (client) => client.putNamespace("a", { quotas: { timers: 1 } }),
    (client) => client.namespace("a"),
    (client) => client.namespaces(),
    (client) => client.removeNamespace("a"),
  ];
  for (const call of calls) {
    const { client, urls } = scripted((number) => (number === 1 ? reset() : answer(200, body)));
    await call(client);
    assert.equal(urls.length, 2, call.toString());
  }
});

test("a post draws one Idempotency-Key for all of its tries", async () => {
  const { client, headers } = scripted((number) => (number === 1 ? reset() : set()));
  await client.post("q", timer);
  const keys = headers.map((one) => one.get("idempotency-key"));
  assert.match(keys[0] ?? "", /^[0-9a-f-]{36}$/);
  assert.equal(keys[0], keys[1]);
});

test("a post without an Idempotency-Key is not repeated", async () => {
  const { client, urls, headers } = scripted(() => reset());
  await assert.rejects(client.post("q", timer, { idempotencyKey: null }), UnknownOutcomeError);
  assert.equal(urls.length, 1);
  assert.equal(headers[0]?.has("idempotency-key"), false);
});

test("a refusal is not repeated, and names its code, its status and its pointer", async () => {
  const body = { ...problem(422, "invalid_retry"), errors: [{ pointer: "/retry/fixed", detail: "0 ms" }] };
  const { client, urls } = scripted(() => answer(422, body, { "x-request-id": "r-1" }));
  await assert.rejects(client.set("q", "k", timer), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.deepEqual([error.kind, error.code, error.status, error.pointer, error.requestId], ["problem", "invalid_retry", 422, "/retry/fixed", "r-1"]);
    return true;
  });
  assert.equal(urls.length, 1);
});

test("a refusal behind a lost try leaves the outcome unknown, with the refusal as its cause", async () => {
  const { client } = scripted((number) => (number === 1 ? reset() : answer(412, problem(412, "exists"))));
  await assert.rejects(client.set("q", "k", timer, { ifNoneMatch: "*" }), (error) => {
    assert.ok(error instanceof UnknownOutcomeError);
    assert.equal((error.cause as ProblemError).code, "exists");
    return true;
  });
});

test("a refused connection behind a lost try leaves the outcome unknown too", async () => {
  const { client } = scripted((number) => (number === 1 ? reset() : refused()), { timeout: 1_000 });
  await assert.rejects(client.remove("q", "k"), UnknownOutcomeError);
});

test("a wrong token, no server, no answer and a lost read are told apart", async () => {
  const kinds: [Script, new (...of: never[]) => Error][] = [
    [() => answer(401, problem(401, "unauthorized")), UnauthorizedError],
    [() => refused(), UnreachableError],
    [() => "never", TimeoutError],
    [() => reset(), UnreachableError],
  ];
  for (const [script, kind] of kinds) {
    const { client } = scripted(script, { timeout: 1_000 });
    await assert.rejects(client.get("q", "k"), kind);
  }
});

test("a name that nobody knows is not asked for again", async () => {
  const { client, urls } = scripted(() => Object.assign(new TypeError("fetch failed"), { cause: { code: "ENOTFOUND" } }));
  await assert.rejects(client.set("q", "k", timer), UnreachableError);
  assert.equal(urls.length, 1);
});

test("each node is asked when the one before fails", async () => {
  const { client, urls } = scripted((number) => (number <= 2 ? refused() : set()), { url: ["http://a.example", "http://b.example/under/", "http://c.example"] });
  await client.set("q", "k", timer);
  assert.deepEqual(urls.map((url) => new URL(url).host + new URL(url).pathname), [
    "a.example/v1/queues/q/timers/k",
    "b.example/under/v1/queues/q/timers/k",
    "c.example/v1/queues/q/timers/k",
  ]);
});

test("the caller's signal ends a call that waits for an answer or for its next try", async () => {
  for (const script of [() => "never" as const, () => answer(429, problem(429, "overloaded"), { "retry-after": "5" })]) {
    const control = new AbortController();
    const { client } = scripted(script);
    const call = client.get("q", "k", { signal: control.signal });
    queueMicrotask(() => control.abort(new Error("enough")));
    await assert.rejects(call, /enough/);
  }
});
