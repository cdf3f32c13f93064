// The package, as npm makes it: installed into an empty folder, typechecked and run there.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

test("the package is made, installed, typechecked and run in an empty folder", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "countwheel-package-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const npm = (...of: string[]) => execFileSync("npm", of, { encoding: "utf8", env: { ...process.env, npm_config_cache: join(folder, "cache") } });
  const [packed] = JSON.parse(npm("pack", "--json", "--ignore-scripts", "--pack-destination", folder)) as [{ filename: string; files: { path: string }[] }];
  const files = packed.files.map(({ path }) => path);
  for (const file of ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "dist/index.js", "dist/index.d.ts", "dist/receiver/index.js"]) assert.ok(files.includes(file), file);
  assert.deepEqual(files.filter((file) => !/^(dist\/|README|LICENSE|package\.json)/.test(file)), []);

  const app = join(folder, "app");
  npm("install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", app, join(folder, packed.filename));
  assert.deepEqual(readdirSync(join(app, "node_modules")).filter((name) => !name.startsWith(".")), ["countwheel"]);
  writeFileSync(
    join(app, "use.mts"),
    `import { Client, BadUrlError, type Timer } from "countwheel";
import { Verifier } from "countwheel/receiver";
const client: Client = new Client({ url: "http://127.0.0.1:7070" });
export const get = (): Promise<Timer> => client.get("q", "k");
// @ts-expect-error a timer has a target with a URL, and no number
export const wrong = () => client.set("q", "k", { in: "1h", target: { url: 7 } });
try {
  new Client({ url: "nowhere" });
} catch (error) {
  console.log(error instanceof BadUrlError, typeof Verifier);
}
`,
  );
  const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");
  const options = ["--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom,dom.iterable"];
  execFileSync(process.execPath, [tsc, ...options, "use.mts"], { cwd: app, encoding: "utf8" });
  assert.equal(execFileSync(process.execPath, ["use.mjs"], { cwd: app, encoding: "utf8" }), "true function\n");
});
