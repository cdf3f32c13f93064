// Every verb, against the real program.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { type BatchOperation, Client, ProblemError, UnauthorizedError } from "countwheel";
import { Service, all, listening, until } from "./support.js";

const hooks: (() => void)[] = [];
const context = { after: (f: () => void) => void hooks.push(f) };
let service: Service;
let client: Client;
let target: string;

before(async () => {
  service = await Service.start(context);
  client = new Client({ url: service.url });
  target = await listening(context, createServer((request, response) => response.writeHead(request.url === "/no" ? 500 : 200).end()));
});
after(() => hooks.forEach((hook) => hook()));

const timer = () => ({ in: "2h", target: { url: target } }) as const;
const code = (code: string) => (error: unknown) => error instanceof ProblemError && error.code === code;

test("a timer is set, shown, moved, fired and removed, under any key", async () => {
  for (const key of ["plain", "a/b", "ä ö", "..%2F", "%", "a:fire", "{x}?y#z", "..."]) {
    const set = await client.set("verbs", key, { ...timer(), body: { n: 1 }, tags: ["eu"] });
    assert.deepEqual([set.queue, set.key, set.replaced], ["verbs", key, null]);
    const shown = await client.get("verbs", key);
    assert.deepEqual([shown.key, shown.state, shown.revision, shown.tags], [key, "pending", set.revision, ["eu"]]);
    const moved = await client.move("verbs", key, { by: "-1h" }, { ifMatch: set.revision });
    assert.equal(Date.parse(moved.old_due) - Date.parse(moved.due), 3_600_000);
    await assert.rejects(client.move("verbs", key, { in: "1h" }, { ifMatch: set.revision }), code("revision_mismatch"));
    await assert.rejects(client.set("verbs", key, timer(), { ifNoneMatch: "*" }), code("exists"));
    assert.equal((await client.remove("verbs", key, { only: "pending" })).was, "pending");
    await assert.rejects(client.get("verbs", key), code("not_found"));
  }
  await client.set("verbs", "fired", timer());
  await client.fire("verbs", "fired");
  await until(async () => ((await client.get("verbs", "fired")).state === "done" ? true : undefined), "the timer is done");
  await assert.rejects(client.remove("verbs", "fired"), code("gone"));
  const again = await client.resend("verbs", "fired");
  assert.equal(again.replaced, "done");
});

test("a post with the same Idempotency-Key sets one timer", async () => {
  const first = await client.post("posts", timer(), { idempotencyKey: "order-7" });
  const second = await client.post("posts", timer(), { idempotencyKey: "order-7" });
  assert.deepEqual([first.replayed, second.replayed], [false, true]);
  assert.deepEqual({ ...second, replayed: false }, first);
  assert.notEqual((await client.post("posts", timer())).key, (await client.post("posts", timer())).key);
  await assert.rejects(client.post("posts", { ...timer(), body: 1 }, { idempotencyKey: "order-7" }), code("idempotency_mismatch"));
});

test("a dead timer is revived", async () => {
  await client.set("dead", "k", { in: 0, target: { url: `${target}/no` }, retry: { fixed: "1s", max_attempts: 1 } });
  const dead = await until(async () => {
    const timer = await client.get("dead", "k");
    return timer.state === "dead" ? timer : undefined;
  }, "the timer is dead");
  assert.equal(dead.dead_reason, "exhausted");
  await client.revive("dead", "k", { in: "1h" });
  assert.equal((await client.get("dead", "k")).state, "pending");
});

test("a list goes on over its pages, and takes its filters", async () => {
  const keys = Array.from({ length: 25 }, (_, n) => `k${String(n).padStart(2, "0")}`);
  await client.batchAtomic(keys.map((key, n) => ({ op: "set", queue: "list", key, in: `${n + 1}h`, target: { url: target } })));
  assert.deepEqual((await all(client.list("list", { limit: 10 }))).map(({ key }) => key), keys);
  assert.deepEqual((await all(client.list("list", { prefix: "k1" }))).length, 10);
  assert.deepEqual(await all(client.list("list", { state: "dead" })), []);
  const pages = await all(client.pages("list", { limit: 10 }));
  assert.equal(pages.flatMap(({ items }) => items).length, 25);
  for await (const { key } of client.list("list", { limit: 5 })) if (key === "k03") break;
});

test("the timers of all queues are listed over pages, by queue and order, with bodies and attempts where asked for", async (t) => {
  const client = new Client({ url: (await Service.start(t)).url });
  const set = (queue: string, n: number) => client.set(queue, `k${n}`, { in: `${10 - n}h`, target: { url: target }, body: `b${n}`, content_type: "text/plain" });
  for (let n = 0; n < 3; n += 1) for (const queue of ["all-b", "all-a", "other"]) await set(queue, n);
  const names = async (filter: Parameters<Client["listAll"]>[0]) => (await all(client.listAll(filter))).map(({ queue, key }) => `${queue}/${key}`);
  assert.deepEqual(await names({ queue_prefix: "all-", order: "created", limit: 2 }), ["all-b/k0", "all-a/k0", "all-b/k1", "all-a/k1", "all-b/k2", "all-a/k2"]);
  const due = await all(client.listAll({ limit: 2 }));
  assert.deepEqual(due.map(({ key }) => key), ["k2", "k2", "k2", "k1", "k1", "k1", "k0", "k0", "k0"]);
  assert.ok(due.every((timer) => timer.next_attempts === undefined && timer.body === undefined));
  const pages = await all(client.pagesAll({ queue_prefix: "other", limit: 2, include: "next_attempts", bodies: "text" }));
  assert.ok(pages.length >= 2 && pages.every(({ items }) => items.length <= 2));
  const items = pages.flatMap(({ items }) => items);
  assert.deepEqual(items.map(({ key, body }) => [key, body]), [["k2", "b2"], ["k1", "b1"], ["k0", "b0"]]);
  assert.ok(items.every(({ next_attempts }) => next_attempts !== undefined && next_attempts.length > 0));
  assert.equal((await client.get("other", "k1")).body, undefined);
  assert.equal((await client.get("other", "k1", { body: "text" })).body, "b1");
  await client.set("other", "raw", { in: "1h", target: { url: target }, body_base64: "/w==" });
  assert.equal((await client.get("other", "raw", { body: "text" })).body_base64, "/w==");
  const after = (await client.pagesAll({ limit: 1 }).next()).value!.next!;
  await assert.rejects(all(client.listAll({ limit: 1, order: "created", after })), code("malformed"));

  assert.deepEqual((await client.queues({ limit: 1 })).queues.map(({ queue, pending }) => [queue, pending]), [["all-a", 3], ["all-b", 3], ["other", 4]]);
  const queuePages = await all(client.queuePages({ limit: 1, prefix: "all-" }));
  assert.deepEqual(queuePages.map(({ queues }) => queues.length), [1, 1]);
  assert.deepEqual((await client.queues({ state: "dead" })).queues, []);

  const stats = await client.stats();
  assert.deepEqual([stats.timers.pending, stats.timers.queues, stats.nodes], [10, 3, 1]);
  assert.deepEqual(stats.due.map(({ timers }) => timers).at(-1), 10);
  const buckets = await client.dueStats({ step: "1m" });
  assert.deepEqual([buckets.buckets.reduce((sum, { timers }) => sum + timers, 0), buckets.next, buckets.overdue?.timers], [10, null, 0]);
  await assert.rejects(client.dueStats({ step: "soon" }), (error) => code("malformed")(error) && /step/.test((error as ProblemError).message));
});

test("the runs to come of a recurring timer are shown over pages, and those of the past are made once", async () => {
  await client.set("recurs", "report", { cron: "0 9 * * *", zone: "Europe/Berlin", target: { url: target } });
  const days: string[] = [];
  for await (const run of client.runs("recurs", "report", { limit: 2 })) {
    assert.match(run.local ?? "", /T09:00:00\+0[12]:00\[Europe\/Berlin\]$/);
    if (days.push(run.nominal) === 5) break;
  }
  assert.deepEqual(days, [...new Set(days)].sort());
  assert.equal(days.length, 5);
  const span = { from: "2025-02-01T00:00:00Z", until: "2025-02-03T23:59:59Z" };
  const dry = await client.backfill("recurs", "report", { ...span, dry_run: true });
  assert.deepEqual([dry.dry_run, dry.made, dry.runs.map(({ result }) => result)], [true, 0, ["new", "new", "new"]]);
  const first = await client.backfill("recurs", "report", { ...span, limit: 2 });
  assert.deepEqual([first.made, first.next], [2, "2025-02-03T08:00:00.000000Z"]);
  const whole = await client.backfill("recurs", "report", span);
  assert.deepEqual([whole.made, whole.existing, whole.next], [1, 2, null]);
  const { key } = whole.runs[2]!;
  assert.equal(key, "report@2025-02-03T08:00:00.000000Z");
  assert.deepEqual((await client.get("recurs", key)).backfill, { of: "report", nominal: "2025-02-03T08:00:00.000000Z" });
  await client.set("recurs", "ends", { every: "1h", repeats: 3, target: { url: target } });
  assert.equal((await all(client.runs("recurs", "ends", { limit: 2 }))).length, 3);
  await client.set("recurs", "once", timer());
  await assert.rejects(all(client.runs("recurs", "once")), code("conflict"));
  await assert.rejects(client.backfill("recurs", "once", span), code("conflict"));
});

test("a batch streams a result for each operation, also of refusals, and while its operations come", async () => {
  const operations = async function* (): AsyncGenerator<BatchOperation> {
    for (let n = 0; n < 2_000; n += 1) yield { op: "set", queue: "batch", key: `k${n}`, in: "1h", target: { url: target } };
    yield { op: "remove", queue: "batch", key: "nobody" };
  };
  const batch = client.batch(operations());
  const lines = await all(batch);
  assert.deepEqual(lines.map(({ i }) => i), Array.from({ length: 2_001 }, (_, i) => i));
  assert.deepEqual(lines.map(({ status }) => status), [...Array<number>(2_000).fill(201), 404]);
  assert.deepEqual(batch.summary, { end: true, operations: 2_001, succeeded: 2_000, failed: 1 });
  assert.equal((await client.queue("batch")).pending, 2_000);
});

test("an atomic batch is done whole or not at all", async () => {
  const set = { op: "set", queue: "atomic", key: "k", in: "1h", target: { url: target } } as const;
  await assert.rejects(client.batchAtomic([set, { op: "fire", queue: "atomic", key: "nobody" }]), (error) => code("not_found")(error) && (error as ProblemError).problem.item === 1);
  await assert.rejects(client.get("atomic", "k"), code("not_found"));
  assert.deepEqual((await client.batchAtomic([set])).map(({ status }) => status), [201]);
});

test("a batch that its caller leaves early ends its source", async () => {
  let ended = false;
  const endless = async function* (): AsyncGenerator<BatchOperation> {
    try {
      for (let n = 0; ; n += 1) {
        yield { op: "fire", queue: "left", key: `k${n}` };
        if (n % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
    } finally {
      ended = true;
    }
  };
  for await (const line of client.batch(endless())) if (line.i === 10) break;
  await until(() => ended || undefined, "the source is ended");
});

test("queues are paused, drained, resumed and purged", async () => {
  await client.set("drains", "k", timer());
  assert.equal((await client.pause("drains", { in: "1h" })).drain.mode, "pause");
  assert.equal((await client.drain("drains", { mode: "hold" })).left.pending, 1);
  await assert.rejects(client.set("drains", "other", timer()), code("draining"));
  assert.equal((await client.resume("drains")).was?.mode, "hold");
  const { removed } = await client.drain("drains", { mode: "remove" });
  assert.deepEqual(removed?.map(({ key }) => key), ["k"]);
  await client.resume("drains");
  await client.set("drains", "k", timer());
  assert.equal((await client.purge("drains", { prefix: "k" })).queue, "drains");
  await until(async () => ((await client.queue("drains")).pending === 0 ? true : undefined), "the queue is purged");
  assert.equal((await client.resume("drains")).was, null);
  assert.ok((await client.queues()).queues.some(({ queue }) => queue === "batch"));
});

test("a job moves the timers of a queue", async () => {
  await client.set("jobs", "k", timer());
  const job = await client.beginJob({ queue: "jobs", action: "move", move: { in: "5h" }, filter: { states: ["pending"] } });
  const ended = await until(async () => {
    const now = await client.job(job.id);
    return now.ended === undefined ? undefined : now;
  }, "the job has ended");
  assert.deepEqual([ended.matched, ended.done], [1, 1]);
  assert.ok((await client.jobs()).jobs.some(({ id }) => id === job.id));
  assert.equal((await client.cancelJob(job.id)).id, job.id);
});

test("endpoints and the settings of queues are put, shown, listed and removed", async () => {
  const secrets = [{ id: "one", secret: `whsec_${Buffer.alloc(24, 7).toString("base64")}` }];
  await client.putEndpoint("shop", { url: target, secrets }, { ifNoneMatch: "*" });
  await assert.rejects(client.putEndpoint("shop", { url: target }, { ifNoneMatch: "*" }), code("exists"));
  const shop = await client.endpoint("shop");
  assert.deepEqual(shop.secrets?.map(({ id }) => id), ["one"]);
  for (let n = 0; n < 5; n += 1) await client.putEndpoint(`more-${n}`, { url: target });
  assert.equal((await all(client.endpoints({ limit: 2 }))).length, 6);
  assert.equal((await client.testEndpoint("shop", { body: { n: 1 } })).attempt.result, "done");
  const queue = await client.putQueue("settings", { endpoint: "shop", retry: { preset: "wechat" } });
  await assert.rejects(client.removeEndpoint("shop"), code("in_use"));
  assert.equal((await client.queue("settings")).endpoint, "shop");
  assert.equal((await client.removeQueue("settings", { ifMatch: queue.revision! })).removed, true);
  assert.equal((await client.removeEndpoint("shop", { ifMatch: shop.revision })).removed, true);
});

test("a policy and a schedule are simulated", async () => {
  const attempts = await client.simulate({ retry: { preset: "wechat" } });
  assert.deepEqual([attempts.attempts.length, attempts.then], [16, "dead"]);
  const runs = await client.simulate({ cron: "0 9 * * MON-FRI", zone: "Europe/Berlin", limit: 3 });
  assert.equal(runs.runs.length, 3);
  await client.putEndpoint("simulated", { url: target, retry: { fixed: "3s", max_attempts: 3 } });
  await client.putQueue("simulated", { endpoint: "simulated", missed: "collapse", timeout: "20s" });
  const there = await client.simulate({ queue: "simulated" });
  assert.deepEqual([there.attempts.length, there.then, there.missed, there.timeout], [3, "dead", "collapse", "20s"]);
  assert.deepEqual(there.from, { retry: "endpoint", missed: "queue", timeout: "queue" });
  const own = await client.simulate({ endpoint: "simulated", retry: { fixed: "1s", max_attempts: 2 } });
  assert.deepEqual([own.attempts.length, own.from.retry], [2, undefined]);
  await assert.rejects(client.simulate({ endpoint: "nobody" }), code("invalid_target"));
});

test("timers are leased, extended, acked and nacked, one and several", async () => {
  await client.putQueue("pulled", { mode: "pull" });
  for (const key of ["a", "b", "c", "d"]) await client.set("pulled", key, { in: 0, body: key, content_type: "text/plain" });
  const leases = await client.leaseFrom({ queues: ["pulled"], max: 4, lease: "1m", wait: "5s", worker: "w-1" });
  while (leases.length < 4) leases.push(...(await client.lease("pulled", { max: 4, wait: "5s" })));
  assert.deepEqual(leases.map(({ body }) => body).sort(), ["a", "b", "c", "d"]);
  const [a, b, c, d] = leases as [(typeof leases)[0], (typeof leases)[0], (typeof leases)[0], (typeof leases)[0]];
  assert.equal(typeof (await client.extend(a, "5m")).leased_until, "string");
  assert.equal((await client.ack(a)).state, "done");
  assert.equal((await client.ack(a)).state, "done");
  assert.equal((await client.nack(b, { in: "1h", detail: "later" })).state, "pending");
  assert.equal((await client.nack(c, { dead: true })).state, "dead");
  const results = await client.ack([d, c]);
  assert.deepEqual(results.map(({ status, code }) => [status, code]), [[200, undefined], [409, "lease_lost"]]);
  await assert.rejects(client.ack(c), code("lease_lost"));
  await assert.rejects(client.lease("verbs"), code("push_queue"));
});

test("a service without a cluster and without a place for snapshots says so", async () => {
  for (const call of [() => client.cluster(), () => client.clusterNodes(), () => client.clusterShards()]) await assert.rejects(call(), code("no_cluster"));
  await assert.rejects(client.snapshot({ name: "monday" }), code("not_found"));
});

test("a refusal names the field, and a wrong token is an error of its own", async (t) => {
  await assert.rejects(client.set("verbs", "k", { in: "soon" }), (error) => error instanceof ProblemError && error.pointer === "/in" && error.requestId !== undefined);
  process.env["COUNTWHEEL_TOKEN"] = "right";
  const guarded = await Service.start(t);
  delete process.env["COUNTWHEEL_TOKEN"];
  for (const token of [undefined, "wrong"]) {
    await assert.rejects(new Client({ url: guarded.url, ...(token !== undefined && { token }) }).queues(), UnauthorizedError);
  }
  assert.deepEqual((await new Client({ url: guarded.url, token: "right" }).queues()).queues, []);
});

test("tokens are made, shown, rotated and revoked, and the audit log says by whom", async (t) => {
  process.env["COUNTWHEEL_TOKEN"] = "right";
  const guarded = await Service.start(t);
  delete process.env["COUNTWHEEL_TOKEN"];
  const admin = new Client({ url: guarded.url, token: "right" });
  const by = (token: string | undefined) => new Client({ url: guarded.url, token: token ?? "none" });

  const made = await admin.createToken({ name: "workers", scopes: ["deliver", "read"], expires_in: "90d" });
  assert.match(made.token ?? "", new RegExp(`^cwt_${made.id}_[0-9a-f]{64}$`));
  assert.deepEqual([made.name, made.scopes], ["workers", ["read", "deliver"]]);
  assert.equal(Date.parse(made.expires ?? "") - Date.parse(made.created), 90 * 86_400_000);
  const shown = await admin.token(made.id);
  assert.deepEqual({ ...shown, token: made.token }, made);
  assert.deepEqual((await by(made.token).queues()).queues, []);
  await assert.rejects(by(made.token).tokens(), code("forbidden"));
  await assert.rejects(all(by(made.token).audit()), code("forbidden"));

  const shows = await admin.createToken({ name: "metrics", scopes: ["metrics"], certificate: "dns:prometheus.example" });
  assert.deepEqual([shows.token, shows.certificate], [undefined, "dns:prometheus.example"]);
  await assert.rejects(admin.rotateToken(shows.id), code("conflict"));
  assert.deepEqual((await admin.tokens()).tokens.map(({ id }) => id), [made.id, shows.id].sort());

  const second = await admin.rotateToken(made.id, { overlap: "1h" });
  assert.deepEqual([second.id, typeof second.before_until], [made.id, "string"]);
  for (const token of [made.token, second.token]) await by(token).queues();
  const third = await admin.rotateToken(made.id);
  for (const token of [made.token, second.token]) await assert.rejects(by(token).queues(), UnauthorizedError);
  await assert.rejects(admin.revokeToken(made.id, { ifMatch: made.revision }), code("revision_mismatch"));
  await by(third.token).queues();
  assert.deepEqual(await admin.revokeToken(made.id, { ifMatch: third.revision }), { id: made.id, revoked: true });
  await assert.rejects(by(third.token).queues(), UnauthorizedError);
  for (const id of [made.id, "nobody", "a/b", "x:rotate", "ä", ""]) await assert.rejects(admin.revokeToken(id), ProblemError, id);
  await assert.rejects(admin.token("nobody"), code("not_found"));
  await assert.rejects(admin.rotateToken("nobody"), code("not_found"));
  const bad: [object, string][] = [
    [{ name: "", scopes: ["read"] }, "/name"],
    [{ name: "a\nb", scopes: ["read"] }, "/name"],
    [{ name: "x", scopes: [] }, "/scopes"],
    [{ name: "x", scopes: ["all"] }, "/scopes/0"],
    [{ name: "x", scopes: ["read"], expires_in: "0s" }, "/expires_in"],
    [{ name: "x", scopes: ["read"], certificate: "worker" }, "/certificate"],
    [{ name: "x" }, "/scopes"],
  ];
  for (const [token, pointer] of bad) {
    const refused = admin.createToken(token as Parameters<Client["createToken"]>[0]);
    await assert.rejects(refused, (error) => error instanceof ProblemError && error.pointer === pointer, pointer);
  }
  await assert.rejects(admin.rotateToken(shows.id, { overlap: "31d" }), (error) => error instanceof ProblemError && error.pointer === "/overlap");

  const done = ["createToken", "createToken", "rotateToken", "rotateToken", "revokeToken"];
  const entries = await all(admin.audit({ order: "oldest", limit: 1 }));
  assert.deepEqual(entries.map(({ operation }) => operation), done);
  assert.deepEqual(entries.map(({ who, setting }) => [who.kind, setting]), [made, shows, made, made, made].map(({ id }) => ["configured", `token/${id}`]));
  assert.deepEqual(await all(admin.audit()), [...entries].reverse());
  assert.deepEqual((await all(admin.auditPages({ limit: 2 }))).map(({ items }) => items.length).reduce((sum, n) => sum + n), 5);
  assert.deepEqual((await all(admin.audit({ operation: "rotateToken", who: "configured", since: made.created }))).length, 2);
  assert.deepEqual(await all(admin.audit({ until: made.created })), []);
  assert.deepEqual(await all(admin.audit({ who: "nobody" })), []);
  for (const filter of [{ limit: 0 }, { limit: 1_001 }, { since: "yesterday" }, { after: "x" }]) await assert.rejects(all(admin.audit(filter)), code("malformed"));
});

test("a namespace is made, shown, listed and removed, and a token of it opens nothing else", async (t) => {
  process.env["COUNTWHEEL_TOKEN"] = "right";
  const guarded = await Service.start(t);
  delete process.env["COUNTWHEEL_TOKEN"];
  const admin = new Client({ url: guarded.url, token: "right" });
  const queue = "tenant-7/orders";

  await assert.rejects(admin.set(queue, "k", timer()), code("not_found"));
  const first = await admin.putNamespace("tenant-7", {}, { ifNoneMatch: "*" });
  assert.deepEqual([first.namespace, first.quotas], ["tenant-7", {}]);
  await assert.rejects(admin.putNamespace("tenant-7", {}, { ifNoneMatch: "*" }), code("exists"));
  const quotas = { timers: 1, queues: 3, endpoints: 1, connections: 50, rate: { per_second: 1_000.5, burst: 2_000 } };
  const second = await admin.putNamespace("tenant-7", { quotas, audit_timers: true }, { ifMatch: first.revision! });
  assert.deepEqual(second.quotas, quotas);
  await assert.rejects(admin.putNamespace("tenant-7", {}, { ifMatch: first.revision! }), code("revision_mismatch"));
  for (const name of ["a/b", "ä", "a b"]) await assert.rejects(admin.putNamespace(name, {}), code("malformed"), name);
  const bad: [object, string][] = [
    [{ quotas: { timers: -1 } }, "/quotas/timers"],
    [{ quotas: { rate: { per_second: 0 } } }, "/quotas/rate/per_second"],
    [{ quota: {} }, "/quota"],
  ];
  for (const [namespace, pointer] of bad) {
    await assert.rejects(admin.putNamespace("x", namespace), (error) => error instanceof ProblemError && error.pointer === pointer, pointer);
  }

  await admin.set(queue, "k", timer());
  await admin.putEndpoint("tenant-7/hook", { url: target });
  const shown = await admin.namespace("tenant-7");
  assert.deepEqual([shown.revision, shown.quotas], [second.revision, quotas]);
  assert.deepEqual([shown.usage?.timers, shown.usage?.queues, shown.usage?.endpoints], [1, 1, 1]);
  const { namespaces } = await admin.namespaces();
  assert.deepEqual(namespaces, [
    { namespace: "default", revision: null, quotas: {}, audit_timers: false },
    { namespace: "tenant-7", revision: second.revision, quotas, audit_timers: true },
  ]);
  const over = (quota: string) => (error: unknown) =>
    error instanceof ProblemError && error.code === "quota_exceeded" && error.problem.quota === quota && !error.transient;
  await assert.rejects(admin.set(queue, "other", timer()), over("timers"));
  await assert.rejects(admin.putEndpoint("tenant-7/other", { url: target }), over("endpoints"));
  const [line] = await all(admin.batch([{ op: "set", queue, key: "other", ...timer() }]));
  assert.deepEqual([line?.status, line?.code, line?.quota], [507, "quota_exceeded", "timers"]);
  assert.equal((await admin.set(queue, "k", timer())).replaced, "pending");

  const made = await admin.createToken({ name: "tenant", scopes: ["read", "write"], namespace: "tenant-7" });
  assert.equal(made.namespace, "tenant-7");
  assert.equal((await admin.token(made.id)).namespace, "tenant-7");
  await assert.rejects(admin.createToken({ name: "x", scopes: ["read"], namespace: "nobody" }), code("not_found"));
  const tenant = new Client({ url: guarded.url, token: made.token! });
  assert.deepEqual((await all(tenant.list(queue))).map(({ key }) => key), ["k"]);
  for (const elsewhere of ["orders", "nobody/orders"]) await assert.rejects(tenant.set(elsewhere, "k", timer()), code("not_found"), elsewhere);
  await assert.rejects(tenant.stats(), code("forbidden"));

  await assert.rejects(admin.removeNamespace("tenant-7"), code("not_empty"));
  await admin.remove(queue, "k");
  await admin.removeEndpoint("tenant-7/hook");
  await admin.revokeToken(made.id);
  await assert.rejects(admin.removeNamespace("tenant-7", { ifMatch: first.revision! }), code("revision_mismatch"));
  assert.deepEqual(await admin.removeNamespace("tenant-7", { ifMatch: second.revision! }), { namespace: "tenant-7", removed: true });
  await assert.rejects(admin.removeNamespace("tenant-7"), code("not_found"));
  await assert.rejects(admin.namespace("tenant-7"), code("not_found"));
});

test("the names of queues and endpoints of a namespace are one part of the path, in all verbs", async () => {
  const asked: string[] = [];
  const body = {
    attempt: {}, endpoint: "", due: "", items: [], leases: [], left: {}, made: 0, next: null, old_due: "", purge: {}, queue: "", removed: true,
    revision: 1, runs: [], state: "pending", was: "pending",
  };
  const fetch = async (url: string | URL | Request) => {
    asked.push(new URL(String(url)).pathname);
    return new Response(JSON.stringify(body), { headers: { "content-type": "application/json" } });
  };
  const client = new Client({ url: "http://a.example", fetch: fetch as typeof globalThis.fetch });
  const [queue, endpoint] = ["tenant-7/orders", "tenant-7/hook"];
  await client.set(queue, "a/b", timer());
  await client.post(queue, timer());
  await client.move(queue, "a/b", { in: "1h" });
  await client.remove(queue, "a/b");
  await client.get(queue, "a/b");
  await all(client.list(queue));
  await all(client.runs(queue, "a/b"));
  await client.backfill(queue, "a/b", { from: "2026-03-01T00:00:00Z", until: "2026-03-02T00:00:00Z" });
  await client.fire(queue, "a/b");
  await client.revive(queue, "a/b");
  await client.resend(queue, "a/b");
  await client.queue(queue);
  await client.putQueue(queue, {});
  await client.removeQueue(queue);
  await client.pause(queue);
  await client.drain(queue, { mode: "hold" });
  await client.resume(queue);
  await client.purge(queue);
  await client.cancelPurge(queue);
  await client.lease(queue);
  await client.putEndpoint(endpoint, { url: "http://a.example" });
  await client.endpoint(endpoint);
  await client.removeEndpoint(endpoint);
  await client.testEndpoint(endpoint);
  const [of, key, hook] = ["/v1/queues/tenant-7%2Forders", "/v1/queues/tenant-7%2Forders/timers/a%2Fb", "/v1/endpoints/tenant-7%2Fhook"];
  assert.deepEqual(asked, [
    key, `${of}/timers`, key, key, key, `${of}/timers`, `${key}/runs`, `${key}:backfill`, `${key}:fire`, `${key}:revive`, `${key}:resend`,
    of, of, of, `${of}:pause`, `${of}:drain`, `${of}:resume`, `${of}:purge`, `${of}:cancel-purge`, `${of}:lease`,
    hook, hook, hook, `${hook}:test`,
  ]);
});

test("events of the program are read, and a stream goes on behind the last one, also over a crash", async (t) => {
  const watched = await Service.start(t);
  const client = new Client({ url: watched.url });
  const control = new AbortController();
  const stream = client.events({ queue: "watched", kinds: ["set", "removed"], signal: control.signal });
  const first = stream.next();
  // The stream begins with what happens once it is open, so the first set is made until one is told.
  let told = false;
  void first.then(() => (told = true));
  await until(async () => {
    if (!told) await client.set("watched", "k", timer());
    return told || undefined;
  }, "a set is told");
  const { value } = await first;
  assert.deepEqual([value?.kind, value?.data.key], ["set", "k"]);
  await client.remove("watched", "k");
  let last = value!;
  while (last.kind !== "removed") last = (await stream.next()).value!;
  await client.set("watched", "behind", timer());
  const behind = client.events({ queue: "watched", lastEventId: last.id!, signal: control.signal });
  const { value: next } = await behind.next();
  assert.deepEqual([next?.kind, next?.data.key], ["set", "behind"]);
  await behind.return();
  await watched.kill();
  await watched.start();
  // What the memory of the killed program had is gone: the stream says so.
  while (last.kind !== "gap") last = (await stream.next()).value!;
  assert.deepEqual(last.data, { shard: 0 });
  // Behind the gap the stream goes on, and so does one from the id of the gap.
  await client.set("watched", "later", timer());
  const later = (await stream.next()).value!;
  assert.deepEqual([later.kind, later.data.key, later.data.state], ["set", "later", "pending"]);
  const resumed = client.events({ queue: "watched", lastEventId: last.id!, signal: control.signal });
  assert.deepEqual((await resumed.next()).value, later);
  await resumed.return();
  const future = later.id!.replace(/\d+$/, "999999");
  await assert.rejects(client.events({ lastEventId: future }).next(), code("malformed"));
  control.abort();
  await assert.rejects(client.events({ kinds: ["dance"] }).next(), code("malformed"));
});

test("the speaker of the proof answers a line for each line", async () => {
  const speaker = spawn(process.execPath, ["test/speaker.mjs", service.url, service.url], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: speaker.stdout })[Symbol.asyncIterator]();
  const ask = async (line: object) => {
    speaker.stdin.write(`${JSON.stringify(line)}\n`);
    return JSON.parse((await lines.next()).value as string) as { ok?: Record<string, unknown>; no?: string; error?: string };
  };
  const name = { queue: "spoken", key: "k" };
  const set = await ask({ do: "set", ...name, in: "2h", url: target, retry: { fixed: "1s" }, if: "absent" });
  assert.equal(set.ok?.["replaced"], null);
  assert.deepEqual(await ask({ do: "set", ...name, in: "2h", url: target, if: "absent" }), { no: "exists" });
  assert.deepEqual(await ask({ do: "move", ...name, in: "3h", if: { revision: 0 } }), { no: "revision_mismatch" });
  assert.ok((await ask({ do: "move", ...name, by: "-1h", if: { revision: set.ok?.["revision"] } })).ok);
  assert.equal((await ask({ do: "get", ...name })).ok?.["state"], "pending");
  assert.equal(((await ask({ do: "list", queue: "spoken" })).ok?.["items"] as object[]).length, 1);
  assert.deepEqual(await ask({ do: "revive", ...name, in: "2h" }), { no: "conflict" });
  assert.ok((await ask({ do: "drain", queue: "spoken", mode: "hold" })).ok);
  assert.ok((await ask({ do: "fire", ...name })).ok);
  assert.deepEqual((await ask({ do: "resume", queue: null })).ok?.["was"], null);
  assert.ok((await ask({ do: "remove", ...name, only_pending: true, if: null })).ok);
  assert.deepEqual(await ask({ do: "remove", ...name, only_pending: false }), { no: "not_found" });
  const made = await ask({ do: "put_namespace", name: "spoken", quotas: { timers: 1 }, if: "absent" });
  assert.deepEqual(await ask({ do: "put_namespace", name: "spoken", quotas: {}, if: "absent" }), { no: "exists" });
  assert.deepEqual((await ask({ do: "namespace", name: "spoken" })).ok?.["quotas"], { timers: 1 });
  assert.equal(((await ask({ do: "namespaces" })).ok?.["namespaces"] as object[]).length, 2);
  assert.ok((await ask({ do: "remove_namespace", name: "spoken", if: { revision: made.ok?.["revision"] } })).ok);
  assert.match((await ask({ do: "dance" })).error ?? "", /^bug: /);
  speaker.stdin.end();
});
