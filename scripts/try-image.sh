#!/usr/bin/env bash
# Builds the Dockerfile without a Docker engine, and tries the image: what is in it, and whether it carries an event,
# as an unprivileged user, on a read-only file system, under an init that hands signals on.
#
# Needs root on Debian (apt-get install buildah debootstrap), npm's registry and a Debian mirror. The base image is made
# here: Debian's smallest system, Node from npm's package "node". It stands in for the official one of the same content.
# TRY_IMAGE_FOLDER keeps the base for the next time. Some three minutes the first time, one later.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts=$PWD/scripts

for tool in buildah debootstrap unshare setpriv; do
  command -v "$tool" >/dev/null && continue
  echo "There is no $tool here: apt-get install buildah debootstrap util-linux" >&2
  exit 1
done

if [ -n "${TRY_IMAGE_FOLDER:-}" ]; then
  folder=$TRY_IMAGE_FOLDER
  mkdir -p "$folder"
else
  folder=$(mktemp -d)
fi
# A store of its own: whatever other images are on this machine stay alone.
store=(buildah --root "$folder/images" --runroot "$folder/run")
mounted=
clean_up() {
  if [ -n "$mounted" ]; then "${store[@]}" rm "$mounted" >/dev/null; fi
  if [ -z "${TRY_IMAGE_FOLDER:-}" ]; then
    "${store[@]}" rmi --all --force >/dev/null 2>&1 || true
    rm -rf "$folder"
  fi
}
trap clean_up EXIT

step() { printf '\n== %s\n' "$*"; }
ok() { echo "ok  $*"; }
fail() { echo "FAILED  $*" >&2 && exit 1; }

base=localhost/try-node:24
if ! "${store[@]}" inspect --type image "$base" >/dev/null 2>&1; then
  step "the base image"
  rm -rf "$folder/base"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$folder/base" >"$folder/debootstrap.log" ||
    { tail -20 "$folder/debootstrap.log" >&2 && fail "debootstrap"; }
  install -m 755 "$("$scripts/node-binary.sh" 24 "$folder/node")" "$folder/base/usr/local/bin/node"
  npm install --global --prefix "$folder/base/usr/local" --no-audit --no-fund npm@11
  chroot "$folder/base" useradd --uid 1000 --user-group --create-home --shell /bin/bash node
  # Who must trust a proxy's certificates on this machine must do so in the build as well.
  cp /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/"
  container=$("${store[@]}" from scratch)
  "${store[@]}" add -q "$container" "$folder/base" /
  "${store[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt \
    --env NPM_CONFIG_UPDATE_NOTIFIER=false --cmd node "$container"
  "${store[@]}" commit -q --rm "$container" "$base"
  rm -rf "$folder/base"
fi

step "the image"
version=$(node -p 'require("./package.json").version')
image=localhost/pg-listener:try
# A HEALTHCHECK is a thing of Docker's own format.
"${store[@]}" build --isolation chroot --format docker --quiet \
  --build-arg "NODE_IMAGE=$base" --build-arg "VERSION=$version" --tag "$image" .

config() { "${store[@]}" inspect --type image --format "{{$1}}" "$image"; }
[ "$(config .Docker.Config.User)" = 1000:1000 ] || fail "the user is $(config .Docker.Config.User)"
[ "$(config 'index .Docker.Config.Labels "org.opencontainers.image.version"')" = "$version" ] ||
  fail "the version in the label"
config .Docker.Config.Healthcheck.Test | grep -q healthcheck || fail "there is no health check"
ok "user 1000:1000, version $version in the label, a health check"

mounted=$("${store[@]}" from "$image")
root=$("${store[@]}" mount "$mounted")
for unwanted in node_modules/typescript node_modules/vitest node_modules/tsx src test dev .git; do
  [ ! -e "$root/app/$unwanted" ] || fail "$unwanted is in the image"
done
for wanted in dist/main.js sql/0001_event_outbox.sql LICENSE; do
  [ -e "$root/app/$wanted" ] || fail "$wanted is not in the image"
done
writable=$(find "$root/app" ! -type l \( -uid 1000 -o -perm /022 \) | head -3)
[ -z "$writable" ] || fail "the service's user could write $writable"
ok "the service and nothing to build or test with, in $(du -sm "$root/app" | cut -f1) MB beside the base image"

# The image's entry point, word by word; its arguments are the commands of the service.
mapfile -t entry < <(config 'range .Docker.Config.Entrypoint}}{{println .}}{{end' | grep .)
export NODE_EXTRA_CA_CERTS=
in_root=(node "$scripts/run-in-root.mjs" "$root" env PATH=/usr/local/bin:/usr/bin:/bin)

step "a strict container"
"${in_root[@]}" node -e '
  const { readFileSync, writeFileSync } = require("node:fs")
  const status = readFileSync("/proc/self/status", "utf8")
  const must = (holds, what) => { if (!holds) { console.error(what); process.exit(1) } }
  must(process.getuid() === 1000, `uid ${process.getuid()}`)
  must(/^CapEff:\s0+$/m.test(status), "it has capabilities")
  must(process.pid === 1, "it is not process 1")
  for (const path of ["/app/x", "/tmp/x", "/home/node/x"]) {
    let code = "it can be written"
    try { writeFileSync(path, "") } catch (error) { code = error.code }
    must(code === "EROFS", `${path}: ${code}`)
  }
' || fail "the container is not as strict as it should be"
ok "process 1, uid 1000, no capabilities, nothing can be written"

if "${in_root[@]}" node /app/healthcheck.mjs; then fail "the health check holds while nothing runs"; fi
ok "the health check fails while nothing runs"

step "the service in it"
check=$(printf '%q ' "${in_root[@]}" node /app/healthcheck.mjs)
while_ready="PG_LISTENER_HEALTH_HOST=0.0.0.0 $check && echo 'ok  the health check holds'"
node --import tsx scripts/carry-event.ts --while-ready "$while_ready" "${in_root[@]}" "${entry[@]}"

step "a stop before Node's first line"
# Nothing answers at these addresses: the service would run, and try, until it is stopped.
nowhere=(DATABASE_URL=postgres://nobody@127.0.0.1:1/none AMQP_URL=amqp://127.0.0.1:1 PG_LISTENER_HEALTH_PORT=0)
env "${nowhere[@]}" "${in_root[@]}" "${entry[@]}" >/dev/null 2>&1 &
pid=$!
first_child() { cut -d ' ' -f 1 "/proc/$1/task/$1/children" 2>/dev/null; }
# Stopped as soon as process 1 is the init: Node's own start takes some 40 ms from there.
for _ in $(seq 400); do
  if [ "$(cat "/proc/$(first_child "$(first_child $pid)")/comm" 2>/dev/null)" = tini ]; then break; fi
  sleep 0.005
done
SECONDS=0
kill -TERM $pid
code=0
wait $pid || code=$?
if [ "$SECONDS" -gt 3 ] || { [ $code -ne 0 ] && [ $code -ne 143 ]; }; then fail "exit code $code after $SECONDS s"; fi
ok "ends it at once (exit code $code)"
