// Writes the code of README.md to build/readme, a file for each block. Those of `ts check` are typechecked, and not run.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const blocks = [...readFileSync(`${root}README.md`, "utf8").matchAll(/^```ts( check)?\n([^]*?)^```$/gm)];
if (blocks.length === 0) throw new Error("README.md has no code");
rmSync(`${root}build/readme`, { recursive: true, force: true });
mkdirSync(`${root}build/readme`, { recursive: true });
for (const [number, [, check, code]] of blocks.entries()) {
  writeFileSync(`${root}build/readme/${check === undefined ? "run" : "check"}-${String(number).padStart(2, "0")}.ts`, code);
}
