// The worker of pull queues, against the real program.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, type Lease, LeaseLostError, ProblemError, UnauthorizedError, Worker, WorkerStoppedError } from "countwheel";
import { QuickClock, Service, json, problem, stub, until } from "./support.js";

const hooks: (() => void)[] = [];
let service: Service;
let client: Client;

before(async () => {
  service = await Service.start({ after: (hook) => void hooks.push(hook) });
  client = new Client({ url: service.url });
});
after(() => hooks.forEach((hook) => hook()));

async function queue(name: string, keys: number): Promise<string> {
  await client.putQueue(name, { mode: "pull", retry: { fixed: "1s", max_attempts: 3 } });
  const operations = Array.from({ length: keys }, (_, n) => ({ op: "set", queue: name, key: `k${n}`, in: 0, body: { n } }) as const);
  if (keys > 0) await client.batchAtomic(operations);
  return name;
}

const isOver = (name: string) => async () => {
  const { pending, delivering } = await client.queue(name);
  return pending + delivering === 0 ? true : undefined;
};

test("each timer is handled once and acked, and no more than the concurrency run at a time", async () => {
  const name = await queue("many", 200);
  const handled: string[] = [];
  let [now, most] = [0, 0];
  const worker = new Worker(client, {
    queues: [name],
    concurrency: 7,
    wait: 1_000,
    handler: async ({ key }) => {
      now += 1;
      most = Math.max(most, now);
      await new Promise((resolve) => setImmediate(resolve));
      handled.push(key);
      now -= 1;
    },
  });
  const run = worker.run();
  await until(isOver(name), "all are done");
  await worker.stop();
  await run;
  assert.equal(new Set(handled).size, 200);
  assert.equal(handled.length, 200);
  assert.ok(most <= 7 && most > 1, `${most}`);
  assert.equal((await client.queue(name)).done, 200);
});

test("a failed handler is nacked with its message, and as the policy says", async () => {
  const name = await queue("failing", 2);
  const worker = new Worker(client, {
    queues: [name],
    wait: 1_000,
    handler: ({ key }) => {
      throw new Error(`no ${key} ${"ä".repeat(300)}`);
    },
    onError: (error, lease) => (lease.key === "k0" ? { dead: true, detail: "never" } : { in: "1h", detail: (error as Error).message.slice(0, 5) }),
  });
  const run = worker.run();
  await until(async () => {
    const [first, second] = [await client.get(name, "k0"), await client.get(name, "k1")];
    return first.state === "dead" && second.state === "pending" && second.failures === 1 ? true : undefined;
  }, "both are nacked");
  await worker.stop();
  await run;
  assert.equal((await client.get(name, "k0")).attempts[0]?.detail, "never");
  const plain = await queue("plain", 1);
  const other = new Worker(client, { queues: [plain], wait: 1_000, handler: () => Promise.reject(new Error("ä\n".repeat(300))) });
  void other.run();
  await until(async () => ((await client.get(plain, "k0")).failures > 0 ? true : undefined), "it is nacked");
  await other.stop();
  assert.match((await client.get(plain, "k0")).attempts[0]?.detail ?? "", /^(ä ){30,}/);
});

test("a lease is extended while its handler runs", async () => {
  const name = await queue("long", 1);
  const worker = new Worker(client, {
    queues: [name],
    lease: 1_000,
    wait: 1_000,
    handler: () => new Promise((resolve) => setTimeout(resolve, 2_500)),
  });
  const run = worker.run();
  await until(isOver(name), "it is done");
  await worker.stop();
  await run;
  const timer = await client.get(name, "k0");
  assert.deepEqual([timer.state, timer.attempt], ["done", 1]);
});

test("a handler whose lease is lost is told so, and its outcome is not", async () => {
  const name = await queue("lost", 1);
  const reasons: unknown[] = [];
  let begun = false;
  const worker = new Worker(client, {
    queues: [name],
    lease: 1_000,
    wait: 1_000,
    handler: (_, { signal }) => {
      begun = true;
      return new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          reasons.push(signal.reason);
          reject(signal.reason);
        });
      });
    },
  });
  const run = worker.run();
  await until(() => begun || undefined, "the handler runs");
  await client.set(name, "k0", { in: "1h" });
  await until(() => (reasons.length > 0 ? true : undefined), "the handler is told");
  await worker.stop();
  await run;
  assert.ok(reasons[0] instanceof LeaseLostError);
  assert.equal((await client.get(name, "k0")).state, "pending");
});

test("a stop waits for handlers, and gives back what takes too long", async () => {
  const name = await queue("stopped", 2);
  const running: Lease[] = [];
  const reasons: unknown[] = [];
  let release = () => {};
  const worker = new Worker(client, {
    queues: [name],
    wait: 1_000,
    handler: (lease, { signal }) => {
      running.push(lease);
      if (lease.key === "k0") return new Promise<void>((resolve) => (release = resolve));
      return new Promise<void>(() => signal.addEventListener("abort", () => reasons.push(signal.reason)));
    },
  });
  const run = worker.run();
  await until(() => (running.length === 2 ? true : undefined), "both run");
  const stopped = worker.stop(300);
  release();
  await stopped;
  await run;
  assert.ok(reasons[0] instanceof WorkerStoppedError);
  assert.equal((await client.get(name, "k0")).state, "done");
  const [again] = await client.lease(name, { wait: "5s" });
  assert.deepEqual([again?.key, again?.attempt], ["k1", 2]);
});

test("a worker that waits for timers stops at once", async () => {
  const name = await queue("empty", 0);
  const worker = new Worker(client, { queues: [name], wait: 60_000, handler: () => {} });
  const run = worker.run();
  const begun = performance.now();
  await worker.stop();
  await run;
  assert.ok(performance.now() - begun < 20_000);
});

test("a worker throws what asking again does not mend", async (t) => {
  await client.set("pushed", "k", { in: "1h", target: { url: "http://127.0.0.1:1" } });
  const pushed = new Worker(client, { queues: ["pushed"], handler: () => {} });
  await assert.rejects(pushed.run(), (error) => error instanceof ProblemError && error.code === "push_queue");
  const { url } = await stub(t, (_, response) => json(response, 401, problem(401, "unauthorized")));
  await assert.rejects(new Worker(new Client({ url }), { queues: ["q"], handler: () => {} }).run(), UnauthorizedError);
  assert.throws(() => new Worker(client, { queues: ["q"], handler: () => {}, concurrency: 0 }), RangeError);
});

test("while the service is away, a worker asks again with waits that double up to a bound", async () => {
  const clock = new QuickClock();
  const away = (async () => {
    throw Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNREFUSED" } });
  }) as typeof fetch;
  const problems: unknown[] = [];
  const asking = new Client({ url: "http://a.example", fetch: away, clock, random: () => 1, backoff: { first: 10_000, cap: 10_000 } });
  const worker: Worker = new Worker(asking, {
    queues: ["q"],
    handler: () => {},
    clock,
    random: () => 1,
    lease: 1_000,
    wait: 0,
    backoff: { first: 1_500, cap: 7_000 },
    onProblem: (problem) => {
      problems.push(problem);
      if (problems.length === 6) void worker.stop();
    },
  });
  await worker.run();
  assert.deepEqual(clock.sleeps.filter((one) => one >= 1_500 && one !== 30_000), [1_500, 3_000, 6_000, 7_000, 7_000]);
});
