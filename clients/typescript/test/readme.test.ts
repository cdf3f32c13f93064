// The code of README.md does what the page says, against the real program.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { Service } from "./support.js";

test("the code of the page runs", async (t) => {
  const service = await Service.start(t);
  const built = readdirSync("build/build/readme").filter((file) => file.startsWith("run-")).sort();
  assert.ok(built.length >= 10, `${built.length}`);
  mkdirSync("build/run", { recursive: true });
  const said: string[] = [];
  for (const file of built) {
    const code = readFileSync(`build/build/readme/${file}`, "utf8").replaceAll("http://127.0.0.1:7070", service.url);
    writeFileSync(`build/run/${file}`, code);
    said.push((await promisify(execFile)(process.execPath, [`build/run/${file}`], { timeout: 20_000 })).stdout);
  }
  const all = said.join("");
  for (const says of [/Z 1$/m, /^pending /m, /^true true$/m, /^1000$/m, /^\d+ pend, and \d+ of these are overdue$/m, /T09:00:00\+0[12]:00\[Europe\/Berlin\]$/m, /^5 runs are made$/m, /^\d+ fire default$/m, /^there is no such timer$/m, /^send a mail to a@example.com attempt 1$/m, /^400$/m]) {
    assert.match(all, says);
  }
});
