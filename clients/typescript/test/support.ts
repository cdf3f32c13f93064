// What the tests share: the real program, servers that answer what a test says, and a clock that is moved.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import { type AddressInfo, type Socket, createServer as createTcp } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import type { Clock } from "countwheel";

export const binary = process.env["COUNTWHEEL"] ?? "";

/** A service on a data directory of its own, which a test may kill and start again. */
export class Service {
  private process: ChildProcess | undefined;
  private readonly data = mkdtempSync(join(tmpdir(), "countwheel-typescript-"));
  private log = "";
  url = "";

  static async start(context: { after(f: () => void): void }, ...options: string[]): Promise<Service> {
    assert.notEqual(binary, "", "COUNTWHEEL names the program");
    const service = new Service(options);
    context.after(() => service.remove());
    await service.start();
    return service;
  }

  private constructor(private readonly options: string[]) {}

  /** Starts the program, on the port that it had before. */
  async start(): Promise<void> {
    const listen = this.url === "" ? "127.0.0.1:0" : new URL(this.url).host;
    const command = ["serve", "--data", join(this.data, "data"), "--listen", listen, "--allow-private-targets", ...this.options];
    const process = spawn(binary, command, { stdio: ["ignore", "pipe", "pipe"] });
    this.process = process;
    const found = new Promise<string>((resolve, reject) => {
      let text = "";
      const read = (piece: Buffer) => {
        text += piece.toString();
        this.log = text;
        const listening = /started .*listen="(http:\S+)"/.exec(text.replace(/\x1b\[[0-9;]*m/g, ""));
        if (listening?.[1] !== undefined) resolve(listening[1]);
      };
      process.stdout.on("data", read);
      process.stderr.on("data", read);
      process.on("exit", (code) => reject(new Error(`the program ended with ${code}: ${this.log}`)));
    });
    this.url = await found;
  }

  /** Ends the program as a crash does. */
  async kill(): Promise<void> {
    const process = this.process;
    this.process = undefined;
    if (process === undefined || process.exitCode !== null) return;
    process.removeAllListeners("exit");
    process.kill("SIGKILL");
    await once(process, "exit");
  }

  private remove(): void {
    this.process?.removeAllListeners("exit");
    this.process?.kill("SIGKILL");
    rmSync(this.data, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** A server that answers as a test says. */
export async function stub(
  context: TestContext,
  answer: (request: IncomingMessage, response: ServerResponse, number: number) => void,
): Promise<{ url: string; requests: () => number }> {
  let number = 0;
  const server = createServer((request, response) => answer(request, response, (number += 1)));
  return { url: await listening(context, server), requests: () => number };
}

/** A server that says what a test says, HTTP or not. */
export async function raw(context: TestContext, answer: (socket: Socket, number: number) => void): Promise<string> {
  let number = 0;
  const sockets = new Set<Socket>();
  const server = createTcp((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => sockets.delete(socket));
    socket.once("data", () => answer(socket, (number += 1)));
  });
  context.after(() => sockets.forEach((socket) => socket.destroy()));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  context.after(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Starts a server, which ends with the test. */
export async function listening(context: { after(f: () => void): void }, server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  context.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Answers with JSON. */
export function json(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): void {
  const type = status < 400 ? "application/json" : "application/problem+json";
  response.writeHead(status, { "content-type": type, ...headers });
  response.end(JSON.stringify(body));
}

/** The body of a problem. */
export function problem(status: number, code: string): object {
  return { type: `/problems/${code}`, title: code, status, code, detail: code };
}

/** A clock that goes on to the next sleeper whenever nothing else is left to do. */
export class QuickClock implements Clock {
  private time = 0;
  private readonly sleepers = new Set<{ at: number; wake: () => void }>();
  private ticking = false;
  readonly sleeps: number[] = [];

  now(): number {
    return this.time;
  }

  sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      this.sleeps.push(milliseconds);
      const aborted = () => {
        this.sleepers.delete(sleeper);
        reject(signal?.reason);
      };
      const wake = () => {
        signal?.removeEventListener("abort", aborted);
        resolve();
      };
      const sleeper = { at: this.time + milliseconds, wake };
      this.sleepers.add(sleeper);
      signal?.addEventListener("abort", aborted);
      this.tick();
    });
  }

  private tick(): void {
    if (this.ticking) return;
    this.ticking = true;
    setImmediate(() => {
      this.ticking = false;
      const next = [...this.sleepers].sort((a, b) => a.at - b.at)[0];
      if (next === undefined) return;
      this.sleepers.delete(next);
      this.time = Math.max(this.time, next.at);
      next.wake();
      this.tick();
    });
  }
}

/** Waits until something holds of another process. */
export async function until<T>(look: () => Promise<T | undefined> | T | undefined, what: string): Promise<T> {
  const end = performance.now() + 20_000;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    assert.ok(performance.now() < end, `not within 20 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** All that an iteration gives. */
export async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const one of source) found.push(one);
  return found;
}
