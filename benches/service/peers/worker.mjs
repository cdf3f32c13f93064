// graphile-worker for the benchmark of the service.
//
//   node worker.mjs make URL                 its tables
//   node worker.mjs deliver URL PORT PLACES  posts the payload of each job to a port of this machine
//
// `deliver` prints `ready` once it works, and ends when its input is closed.

import http from "node:http";
import { run, runMigrations } from "graphile-worker";

const [, , action, url, port, places] = process.argv;

function silent() {
  return { scope: silent, error: console.error, warn() {}, info() {}, debug() {} };
}

const agent = new http.Agent({ keepAlive: true, maxSockets: Number(places ?? 1) });

function post(payload) {
  const body = JSON.stringify(payload);
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const request = http.request({ host: "127.0.0.1", port, method: "POST", agent, headers }, (answer) => {
      answer.resume();
      answer.on("end", () => (answer.statusCode === 200 ? resolve() : reject(new Error(answer.statusCode))));
    });
    request.on("error", reject);
    request.end(body);
  });
}

if (action === "make") {
  await runMigrations({ connectionString: url });
  process.exit(0);
}
await run({
  connectionString: url,
  maxPoolSize: 10,
  taskList: { deliver: post },
  noHandleSignals: true,
  logger: silent(),
  preset: {
    worker: {
      concurrentJobs: Number(places),
      pollInterval: 100,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
});
console.log("ready");
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
