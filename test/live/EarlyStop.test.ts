/** SIGTERM and SIGINT while the service is still starting: from its first line on, that is a stop like any other. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { armed, sayWhenArmed } from "../support/armed.js"
import { eventually } from "../support/eventually.js"
import { freshVhost, migratedDatabase } from "../support/Servers.js"
import { startService } from "../support/Service.js"

describe("a stop in the first second", () => {
  for (const [signal, delaysMillis] of [
    ["SIGTERM", [0, 50, 200, 400, 800]],
    ["SIGINT", [0, 400]]
  ] as const) {
    for (const afterMillis of delaysMillis) {
      it.scopedLive(`by ${signal}, ${afterMillis} ms after the program's first line, ends with exit code 0`, () =>
        Effect.gen(function* () {
          const database = yield* migratedDatabase
          const vhost = yield* freshVhost
          const service = yield* startService({
            DATABASE_URL: database.url,
            AMQP_URL: vhost.url,
            NODE_OPTIONS: sayWhenArmed
          })
          yield* eventually("the first handler", Effect.sync(service.output), (output) => output.includes(armed))
          yield* Effect.sleep(afterMillis)
          yield* service.kill(signal)
          assert.deepStrictEqual(yield* service.exited(), { code: 0, signal: null }, service.output())
        })
      )
    }
  }
})
