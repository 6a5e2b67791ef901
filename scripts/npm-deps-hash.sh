#!/bin/sh
# scripts/npm-deps-hash.sh: installs the npm dependencies as the flake does, and writes the hashes of what came into
# scripts/npm-deps.json, where flake.nix and a test read them. To be run after every change of package-lock.json. Needs
# npm's registry, and no Nix.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

hash_of() {
  sh scripts/npm-deps.sh "$1" "$folder/$1-$2" "$2" >&2
  node scripts/nar-hash.mjs "$folder/$1-$2"
}
for which in production all; do
  for cpu in x64 arm64; do
    echo "$which $cpu $(hash_of $which $cpu)"
  done
done | node scripts/npm-deps-record.mjs
cat scripts/npm-deps.json
