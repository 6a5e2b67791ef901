#!/usr/bin/env bash
# Run by `nix run`: the demo of `npm start` with PostgreSQL and RabbitMQ from the PATH. Its arguments are the parts of
# the project as Nix has them, then "--", then the demo's own. What it makes is thrown away at the end.
set -eu
if [ "$(id -u)" = 0 ]; then
  echo "PostgreSQL refuses to run as root: run the demo as another user." >&2
  exit 1
fi
folder=$(mktemp -d)
postgres=
clean_up() {
  if [ -n "$postgres" ]; then
    kill -INT "$postgres" 2>/dev/null || true
    wait "$postgres" || true
  fi
  chmod -R u+w "$folder"
  rm -rf "$folder"
}
trap clean_up EXIT
# The demo hears Ctrl-C as well, and stops in order; what is left is cleaned up after it.
trap : INT TERM

# Nix's store is read-only, and the demo keeps its data beside the program. Names in the store begin with a hash.
mkdir "$folder/project"
while [ "$1" != -- ]; do
  name=$(basename "$1" | sed -E 's/^[a-z0-9]{32}-//')
  case $name in
    node_modules) ln -s "$1" "$folder/project/node_modules" ;;
    *) cp -r "$1" "$folder/project/$name" ;;
  esac
  shift
done
shift
chmod -R u+w "$folder/project"
cd "$folder/project"

initdb -D "$folder/postgres" --auth=trust --username=postgres --encoding=UTF8 --locale=C >/dev/null
port=$(node -e '
  const server = require("node:net").createServer().listen(0, "127.0.0.1", () => {
    console.log(server.address().port)
    server.close()
  })
')
# In a session of its own, out of Ctrl-C's reach: the demo says goodbye to it first.
setsid postgres -D "$folder/postgres" -c "port=$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
  >"$folder/postgres.log" 2>&1 &
postgres=$!
until pg_isready -q -h 127.0.0.1 -p "$port"; do
  kill -0 "$postgres" 2>/dev/null || { cat "$folder/postgres.log" >&2 && exit 1; }
  sleep 0.1
done

# Waited for in a loop: our own signal ends `wait`, not the demo.
DATABASE_URL="postgres://postgres@127.0.0.1:$port/postgres" node --import tsx dev/demo.ts "$@" &
demo=$!
code=0
wait "$demo" || code=$?
while kill -0 "$demo" 2>/dev/null; do
  code=0
  wait "$demo" || code=$?
done
exit "$code"
