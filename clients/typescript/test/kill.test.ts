// The program is killed and started again, while a client sets, gets, moves and works: nothing that was answered is lost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, CountwheelError, ProblemError, UnknownOutcomeError, Worker } from "countwheel";
import { Service, until } from "./support.js";

const ROUNDS = 5;

test("what was answered outlives every crash, and each timer of a pull queue is handled", async (t) => {
  const service = await Service.start(t);
  const client = new Client({ url: service.url, backoff: { first: 10, cap: 200 } });
  await client.putQueue("work", { mode: "pull", retry: { fixed: "1s" } });
  let over = false;

  // What each key was answered last, and whether a later request of it is in doubt.
  const known = new Map<string, { revision: number; due: string; doubt: boolean }>();
  const posted = new Map<string, string>();
  const work = new Set<string>();
  const handled = new Map<string, number>();
  let doubts = 0;

  async function setAndMove(of: number): Promise<void> {
    for (let n = 0; !over; n += 1) {
      const key = `${of}-${n}`;
      const timer = { in: "2h", target: { url: "http://127.0.0.1:1" } } as const;
      const set = await client.set("kept", key, timer);
      known.set(key, { ...set, doubt: false });
      try {
        const moved = await client.move("kept", key, n % 2 === 0 ? { in: "3h" } : { by: "1h" });
        known.set(key, { ...moved, doubt: false });
      } catch (error) {
        assert.ok(error instanceof UnknownOutcomeError, String(error));
        known.set(key, { ...set, doubt: true });
        doubts += 1;
      }
      const shown = await client.get("kept", key);
      if (!known.get(key)!.doubt) assert.equal(shown.revision, known.get(key)!.revision);
    }
  }

  async function post(): Promise<void> {
    for (let n = 0; !over; n += 1) {
      const { key, id } = await client.post("posted", { in: "2h", target: { url: "http://127.0.0.1:1" } });
      assert.ok(!posted.has(key));
      posted.set(key, id);
    }
  }

  async function feed(): Promise<void> {
    for (let n = 0; !over && n < 400; n += 1) {
      await client.set("work", `w${n}`, { in: 0, body: n });
      work.add(`w${n}`);
    }
  }

  const worker = new Worker(client, {
    queues: ["work"],
    concurrency: 4,
    lease: 1_000,
    wait: 500,
    backoff: { first: 10, cap: 100 },
    handler: ({ key }) => void handled.set(key, (handled.get(key) ?? 0) + 1),
  });
  const working = worker.run();
  const callers = Promise.all([setAndMove(0), setAndMove(1), setAndMove(2), post(), feed()]);
  let round = 0;
  const broken = callers.then(
    () => {},
    () => (round = ROUNDS),
  );
  for (; round < ROUNDS; round += 1) {
    // A crash comes in the middle of what was begun behind the last one, however slow the machine is.
    const enough = known.size + posted.size + 12;
    await until(() => (round >= ROUNDS || known.size + posted.size >= enough ? true : undefined), "callers go on");
    await service.kill();
    await service.start();
  }
  over = true;
  await broken;
  await callers;

  for (const [key, { revision, due, doubt }] of known) {
    const shown = await client.get("kept", key);
    if (doubt) assert.ok(shown.revision >= revision, key);
    else assert.deepEqual([shown.revision, shown.due], [revision, due], key);
  }
  const listed = new Map<string, string>();
  for await (const { key, id } of client.list("posted", { limit: 1_000 })) listed.set(key, id);
  for (const [key, id] of posted) assert.equal(listed.get(key), id);
  // A post may have been answered to nobody only at the very end: with its key, a repeat sets no second timer.
  assert.equal(listed.size, posted.size);

  await until(() => ([...work].every((key) => handled.has(key)) ? true : undefined), "all work is handled");
  await worker.stop();
  await working;
  for (const key of work) {
    const state = await client.get("work", key).then(
      ({ state }) => state,
      (error: unknown) => (error instanceof ProblemError ? error.code : String((error as CountwheelError).kind)),
    );
    assert.ok(["done", "pending", "leased"].includes(state), `${key}: ${state}`);
  }
  assert.ok(known.size > 5 && posted.size > 5 && work.size > 5, `${known.size} ${posted.size} ${work.size}`);
  t.diagnostic(`${known.size} set and moved (${doubts} moves in doubt), ${posted.size} posted, ${work.size} handled, ${ROUNDS} crashes`);
});
