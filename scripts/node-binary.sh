#!/usr/bin/env bash
# scripts/node-binary.sh <version> <folder>: puts a Node into the folder and prints where its binary is. The version is
# as npm takes it: 24 for the newest of a major version, or 20.18.1. It comes from the npm package "node", so that
# nothing but npm's registry is needed.
set -euo pipefail
version=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
binary=$folder/node_modules/node/bin/node

is_there() { "$binary" --version 2>/dev/null | grep -qE "^v${version//./\\.}(\.|$)"; }

if ! is_there; then
  # npm must not look upwards for a project to install into.
  echo '{ "private": true }' >"$folder/package.json"
  # The package's install script fetches the binary for this machine.
  npm install --prefix "$folder" --no-audit --no-fund --no-save --foreground-scripts "node@$version" >&2
fi
is_there || { echo "npm's package node@$version brought no working binary" >&2 && exit 1; }
echo "$binary"
