// Two job queues of Node on a PostgreSQL: what the benchmark of the cluster asks of each of them.
//
//   node peer.mjs graphile-worker|pg-boss make URL          its tables
//   node peer.mjs graphile-worker|pg-boss adds URL SECONDS  adds far jobs, in batches
//   node peer.mjs graphile-worker|pg-boss lives URL SECONDS adds jobs that are due, and works them off
//   node peer.mjs graphile-worker|pg-boss idle URL SECONDS  works, and nothing is due
//
// It prints one line of JSON: how many were added or done in each second.

import pg from "pg";
import PgBoss from "pg-boss";
import { makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { setTimeout as pause } from "node:timers/promises";

const CONNECTIONS = 4;
/** Jobs that are added at a time. */
const BATCH = 1000;
/** Jobs that are due and not done, at the most. */
const AHEAD = 4000;
/** Jobs that are taken at a time. */
const TAKEN = 500;
const QUEUE = "bench";
/** Its JSON text has 100 bytes. */
const PAYLOAD = { p: "x".repeat(92) };

const [, , peer, action, url, number] = process.argv;
const span = Number(number ?? 0) * 1000;
const began = performance.now();
const isOver = () => performance.now() - began >= span;
const seconds = [];

function count(many) {
  const second = Math.floor((performance.now() - began) / 1000);
  while (seconds.length <= second) seconds.push(0);
  seconds[second] += many;
}

/** A day from now. */
const far = () => new Date(Date.now() + 86_400_000);

/** Calls `add` from all connections until the time is over, while not too many are ahead. */
async function produce(add, isAhead) {
  const one = async () => {
    while (!isOver()) {
      if (isAhead()) await pause(1);
      else await add();
    }
  };
  await Promise.all(Array.from({ length: CONNECTIONS }, one));
}

async function graphile() {
  if (action === "make") {
    await runMigrations({ connectionString: url });
    // The task has its row, so that others can load jobs.
    await pool(1).query("INSERT INTO graphile_worker._private_tasks (identifier) VALUES ($1)", [QUEUE]);
    return;
  }
  const utils = await makeWorkerUtils({ pgPool: pool(CONNECTIONS), logger: silent() });
  const add = (runAt, many) =>
    utils.addJobs(Array.from({ length: many }, () => ({ identifier: QUEUE, payload: PAYLOAD, runAt })));
  if (action === "adds") {
    await produce(
      () => add(far(), BATCH).then(() => count(BATCH)),
      () => false,
    );
    return;
  }
  let ahead = 0;
  const runner = await run({
    pgPool: pool(CONNECTIONS + 2),
    taskList: {
      [QUEUE]: async () => {
        ahead -= 1;
        count(1);
      },
    },
    noHandleSignals: true,
    logger: silent(),
    preset: {
      worker: {
        concurrentJobs: 24,
        localQueue: { size: TAKEN },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  if (action === "idle") await pause(span);
  else
    await produce(
      async () => {
        ahead += 100;
        await add(new Date(), 100);
      },
      () => ahead >= AHEAD,
    );
  await runner.stop();
}

function pool(max) {
  const pool = new pg.Pool({ connectionString: url, max });
  const say = (error) => console.error(error.message);
  pool.on("error", say);
  pool.on("connect", (client) => client.on("error", say));
  return pool;
}

function silent() {
  return {
    scope: silent,
    error: console.error,
    warn() {},
    info() {},
    debug() {},
  };
}

async function boss() {
  const boss = new PgBoss({ connectionString: url, max: CONNECTIONS * 2 });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  if (action === "make") await boss.createQueue(QUEUE);
  const jobs = (many, startAfter) =>
    Array.from({ length: many }, () => ({ name: QUEUE, data: PAYLOAD, startAfter }));
  if (action === "adds")
    await produce(
      () => boss.insert(jobs(BATCH, far())).then(() => count(BATCH)),
      () => false,
    );
  if (action === "idle") {
    await boss.work(QUEUE, { batchSize: TAKEN, pollingIntervalSeconds: 0.5 }, async () => {});
    await pause(span);
  }
  if (action === "lives") {
    let ahead = 0;
    const work = async () => {
      while (!isOver()) {
        const taken = await boss.fetch(QUEUE, { batchSize: TAKEN });
        if (taken.length === 0) {
          await pause(1);
          continue;
        }
        await boss.complete(
          QUEUE,
          taken.map((job) => job.id),
        );
        ahead -= taken.length;
        count(taken.length);
      }
    };
    const added = produce(
      async () => {
        ahead += BATCH;
        await boss.insert(jobs(BATCH));
      },
      () => ahead >= AHEAD,
    );
    await Promise.all([added, ...Array.from({ length: CONNECTIONS }, work)]);
  }
  await boss.stop({ graceful: false });
}

await (peer === "pg-boss" ? boss() : graphile());
console.log(JSON.stringify({ seconds }));
process.exit(0);
