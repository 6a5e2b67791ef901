import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Logger from "effect/Logger"
import { DatabaseError } from "../src/Errors.js"
import { Outcome, Refusal } from "../src/Message.js"
import type { OutboxRow } from "../src/Outbox.js"
import { runCycle } from "../src/RelayCycle.js"
import { row, scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const encode = (r: OutboxRow) => ({
  orderKey: r.aggregateId,
  message: Either.right({
    id: r.id,
    exchange: "",
    routingKey: "q",
    type: "t",
    timestampSeconds: 0,
    headers: {},
    body: Buffer.from(r.payload ?? "")
  })
})

const setup = Effect.gen(function* () {
  const outbox = scriptedOutbox()
  const publisher = scriptedPublisher()
  const worker = yield* outbox.port.openWorker
  const cycle = (over: Partial<Parameters<typeof runCycle>[0]> = {}) =>
    runCycle({
      worker,
      publisher: publisher.port,
      encode,
      limit: 10,
      full: false,
      maxAttempts: 3,
      eventTypeLabel: () => "other",
      ...over
    })
  return { outbox, publisher, cycle }
})

const lost = new DatabaseError({ operation: "settle", kind: "connection", reason: "gone", sqlState: undefined })

describe("one relay cycle", () => {
  it.scoped("marks exactly the confirmed rows processed, and costs exactly the refused ones an attempt", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [row(1), row(2), row(3), row(4)], contended: false }))
      const outcomes = [
        Outcome.Confirmed(),
        Outcome.Refused({ reason: "nacked", permanent: false }),
        Outcome.Unknown({ reason: "connection lost" }),
        Outcome.Held()
      ]
      publisher.state.outcome = (_, index) => outcomes[index] ?? Outcome.Held()
      const result = yield* cycle()
      assert.deepStrictEqual(outbox.settles, [
        { processed: ["1"], failed: [{ seq: "2", reason: "nacked", dead: false }] }
      ])
      assert.strictEqual(result.unknown, 1)
      assert.strictEqual(outbox.rollbacks.count, 0)
    })
  )

  it.scoped("rolls back and counts no attempt when the broker answered nothing", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [row(1), row(2)], contended: false }))
      publisher.state.outcome = (_, index) => (index === 0 ? Outcome.Unknown({ reason: "time-out" }) : Outcome.Held())
      yield* cycle()
      assert.deepStrictEqual(outbox.settles, [])
      assert.strictEqual(outbox.rollbacks.count, 1)
    })
  )

  it.scoped("publishes nothing and settles nothing when the claim is empty", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [], contended: true }))
      const result = yield* cycle()
      assert.deepStrictEqual(publisher.published, [])
      assert.deepStrictEqual(outbox.settles, [])
      assert.isTrue(result.contended)
    })
  )

  it.scoped("hands an event that can't be encoded to the publisher in its place, so that its aggregate waits", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [row(1), row(2)], contended: false }))
      const refusal = Either.left(new Refusal({ reason: "no route", permanent: false }))
      yield* cycle({ encode: (r) => (r.seq === "1" ? { orderKey: "a", message: refusal } : encode(r)) })
      assert.strictEqual(publisher.published[0]?.length, 2)
      assert.strictEqual(publisher.published[0]?.[0]?.message, refusal)
    })
  )

  it.scoped("says that an aggregate became free when a retry is confirmed or a row is given up", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [row(1)], contended: false }))
      assert.isFalse((yield* cycle()).released)
      outbox.claims.push(Effect.succeed({ rows: [row(2, { attempts: 1 })], contended: false }))
      assert.isTrue((yield* cycle()).released)
      // A dead letter that is sent again has all its attempts before it.
      outbox.claims.push(Effect.succeed({ rows: [row(2, { attempts: 0, waited: true })], contended: false }))
      assert.isTrue((yield* cycle()).released)
      publisher.state.outcome = () => Outcome.Refused({ reason: "nacked", permanent: false })
      outbox.claims.push(Effect.succeed({ rows: [row(3, { attempts: 1 })], contended: false }))
      assert.isFalse((yield* cycle()).released)
      outbox.claims.push(Effect.succeed({ rows: [row(4, { attempts: 2 })], contended: false }))
      assert.isTrue((yield* cycle()).released)
    })
  )

  it.scoped("makes a dead letter of a message that no retry can help, says so, and frees its aggregate at once", () =>
    Effect.gen(function* () {
      const { cycle, outbox, publisher } = yield* setup
      const lines: Array<{ readonly text: string; readonly annotations: Record<string, unknown> }> = []
      const logger = Logger.make(({ annotations, logLevel, message }) => {
        lines.push({
          text: `${logLevel.label} ${Arr.ensure(message).join(" ")}`,
          annotations: Object.fromEntries(annotations)
        })
      })
      outbox.claims.push(
        Effect.succeed({ rows: [row(1, { aggregateId: "a" }), row(2, { aggregateId: "a" })], contended: false })
      )
      publisher.state.outcome = (_, index) =>
        index === 0 ? Outcome.Refused({ reason: "too large", permanent: true }) : Outcome.Held()
      const { released } = yield* Effect.provide(cycle(), Logger.replace(Logger.defaultLogger, logger))
      assert.deepStrictEqual(outbox.settles, [
        { processed: [], failed: [{ seq: "1", reason: "too large", dead: true }] }
      ])
      assert.isTrue(released)
      assert.deepStrictEqual(lines, [
        {
          text: "ERROR event became a dead letter: too large",
          annotations: {
            event_id: row(1).id,
            event_type: null,
            channel: "campaign_click",
            aggregate_id: "a",
            attempt: 1
          }
        }
      ])
    })
  )

  it.scoped("fails with the database's error when the settle fails: the outcome is unknown", () =>
    Effect.gen(function* () {
      const { cycle, outbox } = yield* setup
      outbox.claims.push(Effect.succeed({ rows: [row(1)], contended: false }))
      outbox.answers.settle = Effect.fail(lost)
      assert.strictEqual((yield* Effect.flip(cycle())).message, lost.message)
    })
  )
})
