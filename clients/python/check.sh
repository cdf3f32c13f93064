#!/bin/sh
# Runs all checks of this client.
#
#   ./check.sh install                       takes the tools into .tools, by the hashes of requirements.txt; does
#                                            nothing if they are there
#   COUNTWHEEL=path/to/program ./check.sh    runs the checks, without the network
#
# PYTHON names another Python, COUNTWHEEL_PYTHON_TOOLS another directory for the tools.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
tools=${COUNTWHEEL_PYTHON_TOOLS:-$PWD/.tools}

if [ "${1:-}" = install ]; then
    stamp="$("$python" -VV) $(cat requirements.txt)"
    if [ -f "$tools/stamp" ] && [ "$(cat "$tools/stamp")" = "$stamp" ]; then
        exit
    fi
    rm -rf "$tools"
    pip="$python -m pip --disable-pip-version-check"
    $pip download --quiet --only-binary :all: --require-hashes --dest "$tools/wheels" -r requirements.txt
    $pip install --quiet --no-index --find-links "$tools/wheels" --require-hashes --target "$tools/site" \
        -r requirements.txt
    printf '%s\n' "$stamp" > "$tools/stamp"
    exit
fi

: "${COUNTWHEEL:?names the program}"
[ -d "$tools/site" ] || { echo "run ./check.sh install first" >&2; exit 1; }
COUNTWHEEL=$(cd "$(dirname "$COUNTWHEEL")" && pwd)/$(basename "$COUNTWHEEL")
PYTHONPATH=$PWD/src:$PWD:$tools/site
COUNTWHEEL_PYTHON_TOOLS=$tools
export COUNTWHEEL PYTHONPATH COUNTWHEEL_PYTHON_TOOLS
unset COUNTWHEEL_TOKEN http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

# Exits with 1 if a part fails. The parts run beside each other.
exec "$python" tools/check.py
