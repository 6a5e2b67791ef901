/**
 * The shared servers of a test run: one PostgreSQL, one RabbitMQ, started side by side before the first test and thrown
 * away after the last. They start only when a test under test/live/ is among those to run.
 */
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { TestProject } from "vitest/node"
import * as PrivatePostgres from "../../dev/PrivatePostgres.js"
import * as PrivateRabbitMq from "../../dev/PrivateRabbitMq.js"

declare module "vitest" {
  export interface ProvidedContext {
    /** Of the shared server's database `postgres`, as a superuser. */
    readonly postgresUrl: string
    /** Of the shared broker's vhost `/`. */
    readonly amqpUrl: string
    readonly managementUrl: string
    /** For private servers of single tests; everything in it is deleted after the run. */
    readonly serversFolder: string
    /** Empty for the programs from npm. */
    readonly postgresBinDir: string
  }
}

const start = (project: TestProject) =>
  Effect.gen(function* () {
    const folder = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const made = Fs.mkdtempSync(Path.join(Os.tmpdir(), "pg-listener-test-"))
        // mkdtemp gives a folder to one user alone, and PostgreSQL runs as another one when we are root.
        Fs.chmodSync(made, 0o755)
        return made
      }),
      (made) => Effect.sync(() => Fs.rmSync(made, { recursive: true, force: true, maxRetries: 3 }))
    )
    const binDir = yield* Config.string("PG_LISTENER_TEST_PG_BIN").pipe(Config.withDefault(""))
    const [postgres, rabbitMq] = yield* Effect.all(
      [
        PrivatePostgres.make({
          folder: Path.join(folder, "postgres"),
          throwAway: true,
          settings: { max_connections: "300" },
          binDir: binDir === "" ? undefined : binDir
        }),
        PrivateRabbitMq.make({ folder: Path.join(folder, "rabbitmq"), throwAway: true })
      ],
      { concurrency: 2 }
    )
    project.provide("postgresUrl", postgres.url)
    project.provide("amqpUrl", rabbitMq.url)
    project.provide("managementUrl", rabbitMq.managementUrl)
    project.provide("serversFolder", folder)
    project.provide("postgresBinDir", binDir)
  })

/** Called by vitest; the function it returns is called at the end. */
export default (project: TestProject): Promise<(() => Promise<void>) | undefined> =>
  Effect.gen(function* () {
    // The names given on the command line; vitest has them without declaring them.
    const named: unknown = Reflect.get(project.vitest, "filenamePattern")
    const filters = Array.isArray(named) ? named.filter((name) => typeof name === "string") : []
    const { testFiles } = yield* Effect.promise(() => project.globTestFiles(filters))
    if (!testFiles.some((file) => file.includes("/test/live/"))) return undefined
    const scope = yield* Scope.make()
    yield* start(project).pipe(
      Scope.extend(scope),
      Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
    )
    return () => Effect.runPromise(Scope.close(scope, Exit.void))
  }).pipe(Effect.runPromise)
