# The service as an image: node:24 (LTS) on Debian slim, the built program, its production dependencies, and nothing to
# build or test with. It runs as uid 1000, writes no file, and takes its commands as arguments:
#
#   docker build --build-arg VERSION="$(node -p 'require("./package.json").version')" -t pg-listener .
#   docker run --read-only --env-file my.env pg-listener
#   docker run --read-only --env-file my.env pg-listener migrate
#
# docs/packaging.md tells the rest; scripts/try-image.sh builds and tries it without a Docker engine.
ARG NODE_IMAGE=docker.io/library/node:24-bookworm-slim

# Our own files. The optional packages are those of the tests: servers and bundlers for one platform.
FROM ${NODE_IMAGE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
RUN npm ci --omit=optional --ignore-scripts --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY src ./src
RUN node_modules/.bin/tsc -p tsconfig.build.json --outDir /app/dist --declaration false --sourceMap false
COPY package.json LICENSE deploy/image/healthcheck.mjs /app/
COPY sql /app/sql
# A working copy may be for its owner's eyes only.
RUN chmod -R a+rX,go-w /app

# What the program loads at run time: `npm ci --omit=dev`, without what only a compiler reads.
FROM ${NODE_IMAGE} AS dependencies
WORKDIR /build
COPY package.json package-lock.json scripts/npm-deps.sh ./
RUN sh npm-deps.sh production /dependencies

FROM ${NODE_IMAGE} AS init
RUN apt-get update && apt-get install -y --no-install-recommends tini

FROM ${NODE_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="pg-listener" \
      org.opencontainers.image.description="Carries events from PostgreSQL to RabbitMQ and loses none of them" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.authors="the pg-listener authors" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The kernel keeps from process 1 every signal that it has no handler for. An init as process 1 hands SIGTERM on, so
# that a stop before Node's first line ends the container at once.
COPY --from=init /usr/bin/tini-static /usr/local/bin/tini
WORKDIR /app
COPY --from=dependencies /dependencies/node_modules ./node_modules
COPY --from=build /app ./

# The user "node" of the base image, as a number: Kubernetes can only tell by a number that it is not root.
USER 1000:1000
EXPOSE 6010
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["node", "/app/healthcheck.mjs"]
ENTRYPOINT ["tini", "--", "node", "/app/dist/main.js"]
