#!/usr/bin/env bash
# Evaluates and builds flake.nix without nixpkgs: each package that the flake takes from there is stood in for by this
# machine's own program. What that shows: the flake evaluates, the hashes of the npm dependencies are right, the
# service builds and works, the unit tests pass in the check, two builds give the same bytes, and the demo runs. What
# it can't show is told in docs/packaging.md.
#
# Needs Nix (Debian: apt-get install nix-bin), npm's registry, RabbitMQ and PostgreSQL's programs
# (PG_LISTENER_TEST_PG_BIN, else Debian's newest). Everything goes to a temporary folder, the Nix store as well. Some
# three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v nix >/dev/null || { echo "There is no nix here: apt-get install nix-bin" >&2 && exit 1; }
postgres_bin=${PG_LISTENER_TEST_PG_BIN:-$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)}
if ! [ -x "$postgres_bin/initdb" ]; then
  echo "There is no PostgreSQL here; name the folder of its programs in PG_LISTENER_TEST_PG_BIN" >&2
  exit 1
fi

folder=$(mktemp -d)
clean_up() {
  chmod -R u+w "$folder"
  rm -rf "$folder"
}
trap clean_up EXIT
chmod 755 "$folder"

step() { printf '\n== %s\n' "$*"; }
ok() { echo "ok  $*"; }
fail() { echo "FAILED  $*" >&2 && exit 1; }

# A store of its own, elsewhere than /nix: nothing comes from a cache, and nothing is left behind.
export NIX_STORE_DIR=$folder/nix/store NIX_STATE_DIR=$folder/nix/state NIX_LOG_DIR=$folder/nix/log
export NIX_CONF_DIR=$folder/nix/conf NIX_LOCALSTATE_DIR=$folder/nix/var XDG_CACHE_HOME=$folder/cache
export NIX_SSL_CERT_FILE=${NIX_SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
mkdir -p "$NIX_CONF_DIR"
cat >"$NIX_CONF_DIR/nix.conf" <<END
experimental-features = nix-command flakes
substituters =
build-users-group =
sandbox = false
END

step "the files that git would give to Nix"
project=$folder/project
mkdir "$project"
git ls-files -z --cached --others --exclude-standard |
  tar --null --files-from=- --ignore-failed-read -cf - |
  tar -xf - -C "$project"
ok "$(find "$project" -type f | wc -l) files"

step "the stand-in for nixpkgs"
node=$(scripts/node-binary.sh 24 "$folder/node")
npm=$(readlink -f "$(command -v npm)")
mkdir "$folder/nixpkgs"
cat >"$folder/nixpkgs/flake.nix" <<END
{
  outputs = { self }:
    let
      system = "$(nix eval --impure --raw --expr builtins.currentSystem)";
      runCommand = name: env: buildCommand:
        derivation (removeAttrs env [ "meta" ] // {
          inherit name system buildCommand;
          builder = "/bin/bash";
          args = [
            "-euc"
            ''
              export PATH=/usr/local/bin:/usr/bin:/bin SOURCE_DATE_EPOCH=1
              # As short a name as Nix's sandbox gives it, where it is /build.
              export TMPDIR=\$(mktemp -d -p /tmp)
              trap 'rm -rf \$TMPDIR' EXIT
              for input in \''\${nativeBuildInputs:-}; do export PATH=\$input/bin:\$PATH; done
              cd \$NIX_BUILD_TOP
              eval "\$buildCommand"
            ''
          ];
        }) // { meta = env.meta or { }; };
      links = name: programs: runCommand name { inherit programs; } ''
        mkdir -p \$out/bin
        for program in \$programs; do ln -s \$program \$out/bin/; done
      '';
      node = runCommand "node" { } ''
        mkdir -p \$out/bin
        ln -s $node \$out/bin/node
        printf '#!/bin/sh\nexec $node $npm "\$@"\n' > \$out/bin/npm
        chmod +x \$out/bin/npm
      '';
      writeShellScriptBin = name: text: runCommand name { inherit text; } ''
        mkdir -p \$out/bin
        printf '#!/bin/bash\n%s\n' "\$text" > \$out/bin/\${name}
        chmod +x \$out/bin/\${name}
      '';
    in
    {
      legacyPackages.\${system} = {
        inherit runCommand writeShellScriptBin;
        runtimeShell = "/bin/bash";
        nodejs_24 = node;
        nodejs-slim_24 = node;
        cacert = runCommand "cacert" { } ''
          mkdir -p \$out/etc/ssl/certs
          ln -s $NIX_SSL_CERT_FILE \$out/etc/ssl/certs/ca-bundle.crt
        '';
        coreutils = links "coreutils" [ ];
        gnused = links "gnused" [ ];
        util-linux = links "util-linux" [ ];
        postgresql_18 = links "postgresql" [ $(printf '"%s" ' "$postgres_bin"/*) ];
        rabbitmq-server = links "rabbitmq" [ ];
        erlang = links "erlang" [ ];
        tini = links "tini" [ ];
        mkShell = { packages, ... }@env:
          runCommand "shell" (removeAttrs env [ "packages" ] // { inherit packages; outputs = [ "out" ]; }) "touch \$out";
        dockerTools = {
          fakeNss = links "fake-nss" [ ];
          buildLayeredImage = { name, tag, contents, config }:
            runCommand "\${name}.tar" { inherit tag contents; config = builtins.toJSON config; } ''
              printf '%s\n' "\$tag" "\$contents" "\$config" > \$out
            '';
        };
        lib = {
          fetchers.proxyImpureEnvVars = [ "http_proxy" "https_proxy" "no_proxy" ];
          licenses.mit = "MIT";
          makeBinPath = inputs: builtins.concatStringsSep ":" (map (input: "\${input}/bin") inputs);
        };
      };
    };
}
END
# Nix's own words are shown only when something goes wrong.
nix_flake() {
  local command=$1
  shift
  nix "$command" --override-input nixpkgs "path:$folder/nixpkgs" --no-write-lock-file --print-build-logs "$@" \
    2>"$folder/nix.log" || { grep FAIL "$folder/nix.log" >&2 || true; tail -40 "$folder/nix.log" >&2 && exit 1; }
}
system=$(nix eval --impure --raw --expr builtins.currentSystem)

step "the lock"
nix flake metadata "path:$project" --no-update-lock-file --json >"$folder/metadata.json" 2>"$folder/metadata.log" ||
  { cat "$folder/metadata.log" >&2 && fail "flake.lock is not that of flake.nix"; }
ok "flake.lock is that of flake.nix"

step "the hash of npm's dependencies"
scripts/npm-deps.sh production "$folder/npm" 2>&1 | tail -1
[ "$(node scripts/nar-hash.mjs "$folder/npm")" = "$(nix hash path "$folder/npm")" ] || fail "it is not Nix's hash"
ok "scripts/nar-hash.mjs gives Nix's own hash"

step "the service"
nix_flake build "path:$project" --out-link "$folder/service"
node --import tsx scripts/carry-event.ts "$folder/service/bin/pg-listener"

step "the image's configuration"
nix_flake build "path:$project#image" --out-link "$folder/image"
grep -q "/lib/pg-listener/dist/main.js" "$folder/image" || fail "the image does not start the service"
ok "$(tail -1 "$folder/image" | cut -c 1-100)..."

step "two builds"
nix_flake build "path:$project" --rebuild --no-link
nix_flake build "path:$project#image" --rebuild --no-link
nix_flake build "path:$project#checks.$system.service" --rebuild --no-link
ok "the same bytes"

step "the unit tests, as a check"
nix_flake build "path:$project#checks.$system.unit-tests" --out-link "$folder/checked"
ok "$(grep -E 'Tests .*passed' "$folder/nix.log" | tail -1 | sed -E 's/.*Tests +//')"

step "the development shell"
nix_flake develop "path:$project" --command sh -c 'test -x "$PG_LISTENER_TEST_PG_BIN/postgres"'
ok "names PostgreSQL's folder for the tests"

step "the demo (nix run)"
demo=$(nix_flake eval --raw "path:$project#apps.$system.default.program")
nix_flake build "path:$project#demo" --out-link "$folder/demo"
[ "$(readlink -f "$folder/demo/bin/pg-listener-demo")" = "$(readlink -f "$demo")" ] ||
  fail "nix run starts something else"
run=(env TMPDIR=/tmp HOME=/tmp "$demo" --once)
if [ "$(id -u)" = 0 ]; then run=(setpriv --reuid=nobody --regid=nogroup --clear-groups "${run[@]}"); fi
"${run[@]}" >"$folder/demo.log" 2>&1 || { tail -40 "$folder/demo.log" >&2 && fail "the demo"; }
ok "$(grep -o 'All .* samples arrived' "$folder/demo.log")"
