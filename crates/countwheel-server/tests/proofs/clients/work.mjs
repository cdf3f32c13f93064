// Works and receives with the client in TypeScript: `node work.mjs CLIENT SERVER SECRET`. Says what it sees, one object a line,
// until its input ends.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [directory, url, secret] = process.argv.slice(2);
const { Client, Worker } = await import(pathToFileURL(`${directory}/dist/index.js`));
const { createNodeReceiver } = await import(pathToFileURL(`${directory}/dist/receiver/index.js`));
const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

const receive = createNodeReceiver({
  secrets: [secret],
  handler: async (delivery) => {
    await sleep(40);
    if (delivery.attempt === 1 && delivery.id.endsWith("7")) {
      say({ refused: delivery.id });
      throw new Error("as told");
    }
    say({ handled: delivery.id });
  },
});
const server = createServer((request, response) => {
  say({ arrived: request.headers["webhook-id"] });
  receive(request, response);
});
server.listen(0, "127.0.0.1", () => say({ listens: `http://127.0.0.1:${server.address().port}/hook` }));

const seen = new Set();
const worker = new Worker(new Client({ url }), {
  queues: ["pulled"],
  concurrency: 50,
  lease: 1_000,
  wait: 1_000,
  onError: () => ({ detail: "as told", in: "10ms" }),
  handler: async (lease) => {
    await sleep(40);
    say({ worked: lease.key });
    if (lease.key.endsWith("3") && !seen.has(lease.key)) {
      seen.add(lease.key);
      throw new Error("as told");
    }
  },
});
process.stdin.resume();
process.stdin.on("end", () => worker.stop(5_000));
// The queue is made once the place where this listens is known.
await new Promise((ready) => process.stdin.once("data", ready));
await worker.run();
say({ stopped: true });
server.close();
server.closeAllConnections();
