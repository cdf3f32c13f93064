// Writes src/schema.ts from the OpenAPI document: the schemas, and for each operation with a query a schema of that.
// With `--check` it writes nothing, and fails if the file differs. COUNTWHEEL_OPENAPI names another document.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const document = process.env.COUNTWHEEL_OPENAPI ?? at("../../../docs/openapi.json");
const written = at("../src/schema.ts");

if (!existsSync(document)) {
  console.error(`there is no ${document}; COUNTWHEEL_OPENAPI names the document`);
  process.exit(1);
}
const { openapi, info, paths, components } = JSON.parse(readFileSync(document, "utf8"));
const schemas = { ...components.schemas };
for (const path of Object.values(paths)) {
  for (const operation of Object.values(path)) {
    const query = (operation.parameters ?? []).filter((parameter) => parameter.in === "query");
    if (query.length === 0) continue;
    const name = `${operation.operationId[0].toUpperCase()}${operation.operationId.slice(1)}Query`;
    if (name in schemas) throw new Error(`two schemas have the name ${name}`);
    schemas[name] = {
      type: "object",
      description: `The query of ${operation.operationId}.`,
      properties: Object.fromEntries(query.map(({ name, schema, description }) => [name, { ...schema, description }])),
      required: query.filter(({ required }) => required).map(({ name }) => name),
      additionalProperties: false,
    };
  }
}
const sorted = Object.fromEntries(Object.entries(schemas).sort(([a], [b]) => (a < b ? -1 : 1)));
const tree = await openapiTS({ openapi, info, paths: {}, components: { schemas: sorted } });
const all = astToString(tree);
const begin = all.indexOf("export interface components");
const end = all.indexOf("export type $defs");
const text = `// Written by scripts/generate.mjs from docs/openapi.json: change the document, and then run \`npm run generate\`.

${all.slice(begin, end < 0 ? undefined : end).trimEnd()}
`;

if (!process.argv.includes("--check")) {
  writeFileSync(written, text);
} else if (!existsSync(written) || readFileSync(written, "utf8") !== text) {
  console.error(`src/schema.ts is not what ${document} gives: run \`npm run generate\``);
  process.exit(1);
}
