#!/bin/sh
# Runs all checks of this client: its generated types, its build, its package, its page and its tests. Needs Node 20.
#
#   ./check.sh install                       takes the tools into node_modules, by the hashes of package-lock.json; does
#                                            nothing if they are there
#   COUNTWHEEL=path/to/program ./check.sh    runs the checks, without the network
#
# COUNTWHEEL_OPENAPI names another document than docs/openapi.json.
set -eu
cd "$(dirname "$0")"

if [ "${1:-}" = install ]; then
    if ! cmp -s package-lock.json node_modules/.lock-of-check; then
        npm ci --ignore-scripts --no-audit --no-fund
        cp package-lock.json node_modules/.lock-of-check
    fi
    exit
fi

: "${COUNTWHEEL:?names the program}"
[ -d node_modules/typescript ] || { echo "run ./check.sh install first" >&2; exit 1; }
COUNTWHEEL=$(realpath "$COUNTWHEEL")
export COUNTWHEEL
unset COUNTWHEEL_TOKEN http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

node scripts/generate.mjs --check
rm -rf dist build
node scripts/readme.mjs
node node_modules/typescript/bin/tsc -p tsconfig.json
node node_modules/typescript/bin/tsc -p tsconfig.test.json
# What waits for the program in one file leaves time for the others.
node --test --test-timeout=60000 --test-concurrency=4 --test-reporter=spec build/test/*.test.js
