// Speaks for the client in the proof of all clients: one object a line on standard input, one answer a line on standard
// output. Its arguments are the URLs of servers, which are asked in turn; COUNTWHEEL_TOKEN is their token.
import { createInterface } from "node:readline";
import { Client, CountwheelError, ProblemError } from "../dist/index.js";

const urls = process.argv.slice(2);
if (urls.length === 0) {
  console.error("usage: node speaker.mjs URL...");
  process.exit(2);
}
const token = process.env.COUNTWHEEL_TOKEN;
const nodes = (at) => [...urls.slice(at), ...urls.slice(0, at)];
const clients = urls.map((_, at) => new Client({ url: nodes(at), tryTimeout: 5_000, ...(token !== undefined && { token }) }));
let turn = 0;

function condition(of) {
  if (of === undefined || of === null) return {};
  return of === "absent" ? { ifNoneMatch: "*" } : { ifMatch: of.revision };
}

async function ask(client, { do: verb, queue, key, if: precondition, ...more }) {
  const options = condition(precondition);
  switch (verb) {
    case "set": {
      const timer = { in: more.in, target: { url: more.url } };
      if (more.retry !== undefined && more.retry !== null) timer.retry = more.retry;
      return await client.set(queue, key, timer, options);
    }
    case "move":
      return await client.move(queue, key, more.by === undefined ? { in: more.in } : { by: more.by }, options);
    case "remove":
      return await client.remove(queue, key, { ...options, ...(more.only_pending && { only: "pending" }) });
    case "get":
      return await client.get(queue, key);
    case "list": {
      const items = [];
      for await (const timer of client.list(queue)) items.push(timer);
      return { items };
    }
    case "fire":
      return await client.fire(queue, key);
    case "revive":
      return await client.revive(queue, key, more.in === undefined ? undefined : { in: more.in });
    case "drain":
      return await client.drain(queue, { mode: more.mode });
    case "resume":
      return await client.resume(queue);
    case "create_token":
      return await client.createToken({ name: more.name, scopes: more.scopes, namespace: more.namespace });
    case "tokens":
      return await client.tokens();
    case "token":
      return await client.token(more.id);
    case "rotate_token":
      return await client.rotateToken(more.id, more.overlap === undefined ? {} : { overlap: more.overlap });
    case "revoke_token":
      return await client.revokeToken(more.id, options);
    case "audit": {
      const entries = [];
      for await (const entry of client.audit(more.filter)) entries.push(entry);
      return { entries };
    }
    case "put_namespace":
      return await client.putNamespace(more.name, { quotas: more.quotas }, options);
    case "namespace":
      return await client.namespace(more.name);
    case "namespaces":
      return await client.namespaces();
    case "remove_namespace":
      return await client.removeNamespace(more.name, options);
    default:
      throw new TypeError(`there is no verb ${JSON.stringify(verb)}`);
  }
}

async function answer(line) {
  try {
    const client = clients[turn];
    turn = (turn + 1) % clients.length;
    return { ok: await ask(client, JSON.parse(line)) };
  } catch (error) {
    if (error instanceof ProblemError) return { no: error.code };
    const kind = error instanceof CountwheelError ? error.kind : "bug";
    return { error: `${kind}: ${error.message}` };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  if (line.trim() !== "") process.stdout.write(`${JSON.stringify(await answer(line))}\n`);
}
