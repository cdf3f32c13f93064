#!/bin/sh
# Checks all of this client: its generated types, its build, its package, its page and its tests, against the program that
# COUNTWHEEL names. It needs Node 20 and what `npm ci` installs here by package-lock.json, and no network.
set -eu
cd "$(dirname "$0")"
: "${COUNTWHEEL:?names the program, such as ../../target/release/countwheel}"
COUNTWHEEL=$(realpath "$COUNTWHEEL")
export COUNTWHEEL
if [ ! -d node_modules/typescript ]; then
    echo "first: cd clients/typescript && npm ci --ignore-scripts" >&2
    exit 1
fi
node scripts/generate.mjs --check
rm -rf dist build
node scripts/readme.mjs
node node_modules/typescript/bin/tsc -p tsconfig.json
node node_modules/typescript/bin/tsc -p tsconfig.test.json
node --test --test-timeout=60000 --test-concurrency=4 --test-reporter=spec build/test/*.test.js
