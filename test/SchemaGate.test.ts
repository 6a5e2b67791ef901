import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as TestClock from "effect/TestClock"
import { DatabaseError, SchemaError } from "../src/Errors.js"
import { Fatal } from "../src/Fatal.js"
import { Outbox, type SchemaNote } from "../src/Outbox.js"
import { SchemaGate } from "../src/SchemaGate.js"
import { scriptedOutbox } from "./support/scripted.js"

const missing = new SchemaError({ reason: "the tables are missing", mend: "Run migrate" })
const tooOld = new SchemaError({ reason: "version 1 is needed", mend: "Run migrate" })
const gone = new DatabaseError({ operation: "inspect", kind: "connection", reason: "gone", sqlState: undefined })

const inOrder: Effect.Effect<ReadonlyArray<SchemaNote>> = Effect.succeed([])

/** A gate before tables that are in the state that the test says. */
const start = (first: Effect.Effect<ReadonlyArray<SchemaNote>, SchemaError | DatabaseError>) =>
  Effect.gen(function* () {
    const tables = { state: first, looks: 0 }
    const lines: Array<string> = []
    const outbox = {
      ...scriptedOutbox().port,
      verifySchema: Effect.suspend(() => {
        tables.looks++
        return tables.state
      })
    }
    const context = yield* Layer.build(
      SchemaGate.layer.pipe(
        Layer.provide(Layer.succeed(Outbox, outbox)),
        Layer.provide(Fatal.layer),
        Layer.provide(
          Logger.replace(
            Logger.defaultLogger,
            Logger.make(({ logLevel, message }) => {
              lines.push(`${logLevel.label} ${Arr.ensure(message).join(" ")}`)
            })
          )
        )
      )
    )
    const gate = Context.get(context, SchemaGate)
    const waiting = yield* Effect.forkScoped(gate.awaitOpen)
    yield* TestClock.adjust(0)
    const hasPassed = Effect.map(Fiber.poll(waiting), (exit) => exit._tag === "Some")
    return { gate, tables, lines, hasPassed }
  })

describe("the gate before the tables", () => {
  it.scoped("is open at once when the schema is in order", () =>
    Effect.gen(function* () {
      const { gate, hasPassed } = yield* start(inOrder)
      assert.isTrue(yield* gate.isOpen)
      assert.isTrue(yield* hasPassed)
    })
  )

  it.scoped("stays closed while the tables are missing, and opens by itself once they are there", () =>
    Effect.gen(function* () {
      const { gate, hasPassed, tables } = yield* start(missing)
      yield* TestClock.adjust("10 minutes")
      assert.isFalse(yield* gate.isOpen)
      assert.isFalse(yield* hasPassed)
      tables.state = inOrder
      yield* TestClock.adjust("2 seconds")
      assert.isTrue(yield* gate.isOpen)
      assert.isTrue(yield* hasPassed)
    })
  )

  it.scoped("lets those through at once who come when it is open, and looks no more", () =>
    Effect.gen(function* () {
      const { gate, tables } = yield* start(inOrder)
      yield* gate.awaitOpen
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(tables.looks, 1)
    })
  )

  it.scoped("says each new problem once, with its mend, and not at each look", () =>
    Effect.gen(function* () {
      const { lines, tables } = yield* start(gone)
      yield* TestClock.adjust("10 seconds")
      tables.state = missing
      yield* TestClock.adjust("10 seconds")
      tables.state = tooOld
      yield* TestClock.adjust("10 seconds")
      tables.state = inOrder
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(lines, [
        `WARN the schema can't be checked yet: ${gone.message}`,
        "ERROR the schema is not usable: the tables are missing. Run migrate",
        "ERROR the schema is not usable: version 1 is needed. Run migrate",
        "INFO the schema is in order"
      ])
    })
  )

  it.scoped("tells once, when it opens, what a person may want to know of the tables", () =>
    Effect.gen(function* () {
      const { lines } = yield* start(
        Effect.succeed([
          { level: "info", message: "no doorbell" },
          { level: "warning", message: "another channel" }
        ])
      )
      yield* TestClock.adjust("10 minutes")
      assert.deepStrictEqual(lines, ["INFO the schema is in order", "INFO no doorbell", "WARN another channel"])
    })
  )
})
