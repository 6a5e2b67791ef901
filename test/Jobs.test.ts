/** The jobs' loop: what it tells about a database that is away for hours. */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as TestClock from "effect/TestClock"
import { DatabaseError } from "../src/Errors.js"
import { spaced } from "../src/Jobs.js"

const failing = (reason: string) =>
  Effect.fail(new DatabaseError({ operation: "look", kind: "connection", reason, sqlState: undefined }))

describe("a job", () => {
  it.scoped("that fails is tried at every turn, and told once per reason until it has worked again", () =>
    Effect.gen(function* () {
      const turns = [failing("gone"), failing("gone"), failing("full"), failing("full"), Effect.void, failing("full")]
      let turn = 0
      const lines: Array<string> = []
      const job = Effect.suspend(() => turns[turn++] ?? Effect.void)
      yield* spaced("job", Duration.seconds(2), job).pipe(
        Effect.provide(
          Logger.replace(
            Logger.defaultLogger,
            Logger.make(({ message }) => void lines.push(String(message)))
          )
        ),
        Effect.forkScoped
      )
      yield* TestClock.adjust("20 seconds")
      assert.isAtLeast(turn, turns.length)
      assert.deepStrictEqual(lines, ["job failed: look: gone", "job failed: look: full", "job failed: look: full"])
    })
  )
})
