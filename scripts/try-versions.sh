#!/usr/bin/env bash
# scripts/try-versions.sh [tests]: the tests (all, or those named as to vitest) on the versions of Node and PostgreSQL
# that the README promises: on each Node with PostgreSQL 18 from npm, and on this machine's Node with each other
# PostgreSQL that is installed (Debian: apt-get install postgresql-15). The logs are in .data/versions. The whole suite
# takes some six minutes for each line.
#
#   NODE_VERSIONS  the Nodes; "20.18.1 22 24" when not set
#   POSTGRES_BINS  folders with PostgreSQL's programs; those of Debian when not set
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

read -ra nodes <<<"${NODE_VERSIONS-20.18.1 22 24}"
read -ra postgres_bins <<<"${POSTGRES_BINS-$(printf '%s ' /usr/lib/postgresql/*/bin)}"
logs=.data/versions
mkdir -p "$logs"
node dev/setup.mjs || exit 1

failed=0
# one <name> <node> [<folder of PostgreSQL>]
one() {
  local name=$1 node=$2 postgres_bin=${3:-} report=$logs/$1.json code=0
  rm -f "$report"
  # First on the PATH, for the programs that tests start.
  PATH=$(dirname "$node"):$PATH PG_LISTENER_TEST_PG_BIN=$postgres_bin \
    "$node" node_modules/vitest/vitest.mjs run "${tests[@]}" \
    --reporter=default --reporter=json --outputFile.json="$report" >"$logs/$name.log" 2>&1 || code=$?
  local line
  line=$(node dev/count-tests.mjs "$report" "$code" 0) || failed=1
  printf '%-32s %s\n' "$name" "$line"
}

tests=("$@")
for version in "${nodes[@]}"; do
  if node=$(scripts/node-binary.sh "$version" "$logs/node-$version" 2>"$logs/node-$version.log"); then
    one "node-$("$node" --version)" "$node"
  else
    echo "node-$version can't be had: $(tail -1 "$logs/node-$version.log")"
    failed=1
  fi
done
for bin in "${postgres_bins[@]}"; do
  [ -x "$bin/postgres" ] || continue
  one "postgresql-$("$bin/postgres" --version | grep -oE '[0-9]+\.[0-9]+' | head -1)" "$(command -v node)" "$bin"
done
exit $failed
