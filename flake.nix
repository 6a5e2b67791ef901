{
  # What is in here, and what of it was tried with which Nix, is told in docs/packaging.md.
  description = "pg-listener carries events from PostgreSQL to RabbitMQ and loses none of them";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixpkgs-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (builtins.fromJSON (builtins.readFile ./package.json)) version description;
      hashes = builtins.fromJSON (builtins.readFile ./scripts/npm-deps.json);

      cpus = {
        x86_64-linux = "x64";
        aarch64-linux = "arm64";
      };
      forEachSystem = build: builtins.mapAttrs (system: _: build system nixpkgs.legacyPackages.${system}) cpus;

      # package-lock.json has no download addresses, so that everybody can use a registry of their own. nixpkgs'
      # functions for npm need the addresses; hence npm itself, in a derivation whose result is known by its hash. The
      # lock's digest in the name keeps Nix from taking an older lock's result out of its store for an unchanged hash.
      npmDependencies =
        system: pkgs: which:
        pkgs.runCommand "pg-listener-npm-${which}-${builtins.substring 0 12 hashes.lockedPackages}"
          {
            nativeBuildInputs = [ pkgs.nodejs_24 ];
            outputHashMode = "recursive";
            outputHashAlgo = "sha256";
            outputHash = hashes.${which}.${system};
            impureEnvVars = pkgs.lib.fetchers.proxyImpureEnvVars ++ [ "NIX_SSL_CERT_FILE" ];
          }
          ''
            export HOME=$TMPDIR
            export NODE_EXTRA_CA_CERTS=${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt
            if [ -r "''${NIX_SSL_CERT_FILE:-}" ]; then export NODE_EXTRA_CA_CERTS=$NIX_SSL_CERT_FILE; fi
            cp ${./package.json} package.json
            cp ${./package-lock.json} package-lock.json
            sh ${./scripts/npm-deps.sh} ${which} $out ${cpus.${system}}
          '';

      # lib/pg-listener is what the image of the Dockerfile has in /app; bin/pg-listener starts it.
      service =
        system: pkgs:
        pkgs.runCommand "pg-listener-${version}"
          {
            nativeBuildInputs = [ pkgs.nodejs_24 ];
            meta = {
              inherit description;
              license = pkgs.lib.licenses.mit;
              mainProgram = "pg-listener";
            };
          }
          ''
            cp -r ${./src} src
            cp ${./tsconfig.json} tsconfig.json
            cp ${./tsconfig.build.json} tsconfig.build.json
            cp ${./package.json} package.json
            ln -s ${npmDependencies system pkgs "all"}/node_modules node_modules
            home=$out/lib/pg-listener
            mkdir -p $home $out/bin
            node node_modules/typescript/bin/tsc -p tsconfig.build.json --outDir $home/dist \
              --declaration false --sourceMap false
            cp -r ${./sql} $home/sql
            cp ${./package.json} $home/package.json
            cp ${./LICENSE} $home/LICENSE
            cp ${./deploy/image/healthcheck.mjs} $home/healthcheck.mjs
            ln -s ${npmDependencies system pkgs "production"}/node_modules $home/node_modules
            printf '#!%s\nexec %s %s "$@"\n' ${pkgs.runtimeShell} ${pkgs.nodejs-slim_24}/bin/node $home/dist/main.js \
              > $out/bin/pg-listener
            chmod +x $out/bin/pg-listener
          '';

      # The same as the image of the Dockerfile, without Debian around it: `docker load < result`.
      image =
        system: pkgs:
        let
          node = "${pkgs.nodejs-slim_24}/bin/node";
          home = "${service system pkgs}/lib/pg-listener";
          seconds = n: n * 1000000000;
        in
        pkgs.dockerTools.buildLayeredImage {
          name = "pg-listener";
          tag = version;
          # Says that names of hosts are looked up in /etc/hosts first.
          contents = [ pkgs.dockerTools.fakeNss ];
          config = {
            Entrypoint = [
              "${pkgs.tini}/bin/tini"
              "--"
              node
              "${home}/dist/main.js"
            ];
            User = "1000:1000";
            ExposedPorts."6010/tcp" = { };
            Healthcheck = {
              Test = [
                "CMD"
                node
                "${home}/healthcheck.mjs"
              ];
              Interval = seconds 30;
              Timeout = seconds 5;
              StartPeriod = seconds 30;
              Retries = 3;
            };
            Labels = {
              "org.opencontainers.image.title" = "pg-listener";
              "org.opencontainers.image.description" = description;
              "org.opencontainers.image.licenses" = "MIT";
              "org.opencontainers.image.authors" = "the pg-listener authors";
              "org.opencontainers.image.version" = version;
              "org.opencontainers.image.revision" = self.rev or "unknown";
            };
          };
        };

      # With erl in reach, which the tests and the demo look for beside rabbitmq-server.
      servers = pkgs: [
        pkgs.postgresql_18
        pkgs.rabbitmq-server
        pkgs.erlang
      ];

      # What scripts/nix-demo.sh calls.
      tools = pkgs: [
        pkgs.nodejs_24
        pkgs.coreutils
        pkgs.gnused
        pkgs.util-linux
      ];

      # `npm start`, with PostgreSQL and RabbitMQ from nixpkgs.
      demo =
        system: pkgs:
        pkgs.writeShellScriptBin "pg-listener-demo" ''
          export PATH=${pkgs.lib.makeBinPath (tools pkgs ++ servers pkgs)}:$PATH
          exec ${pkgs.runtimeShell} ${./scripts/nix-demo.sh} ${service system pkgs}/lib/pg-listener/dist \
            ${npmDependencies system pkgs "all"}/node_modules ${./dev} ${./src} ${./sql} ${./package.json} -- "$@"
        '';

      unitTests =
        system: pkgs:
        pkgs.runCommand "pg-listener-unit-tests" { nativeBuildInputs = [ pkgs.nodejs_24 ]; } ''
          export HOME=$TMPDIR
          cp -r ${self}/. .
          chmod -R u+w .
          # The runner writes beside its own files.
          cp -r ${npmDependencies system pkgs "all"}/node_modules node_modules
          chmod -R u+w node_modules
          node node_modules/vitest/vitest.mjs run test/*.test.ts
          touch $out
        '';
    in
    {
      packages = forEachSystem (
        system: pkgs: {
          default = service system pkgs;
          image = image system pkgs;
          demo = demo system pkgs;
        }
      );

      apps = forEachSystem (
        system: pkgs: {
          default = {
            type = "app";
            program = "${demo system pkgs}/bin/pg-listener-demo";
          };
        }
      );

      checks = forEachSystem (
        system: pkgs: {
          service = service system pkgs;
          unit-tests = unitTests system pkgs;
        }
      );

      devShells = forEachSystem (
        system: pkgs: {
          default = pkgs.mkShell {
            packages = [ pkgs.nodejs_24 ] ++ servers pkgs;
            # The tests' own PostgreSQL, from npm, is built for other systems than NixOS.
            PG_LISTENER_TEST_PG_BIN = "${pkgs.postgresql_18}/bin";
          };
        }
      );
    };
}
