/**
 * `npm run send -- <channel or event.type> '<json>' [aggregate type] [aggregate id]`: writes one event into the running
 * demo's event_outbox. A name with a dot in it is an event type.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import Pg from "pg"
import * as DemoAddress from "./DemoAddress.js"

class SendError extends Data.TaggedError("SendError")<{ readonly message: string }> {}

const send = Effect.gen(function* () {
  const [name, payload, aggregateType = null, aggregateId = null] = process.argv.slice(2)
  if (name === undefined || payload === undefined) {
    return yield* new SendError({ message: `Usage: npm run send -- campaign_click '{"a":1}'` })
  }
  yield* Effect.try({
    try: () => JSON.parse(payload),
    catch: (error) =>
      new SendError({
        message:
          `The payload is not JSON: ${payload}\n${error instanceof Error ? error.message : error}\n` +
          `Put it between single quotes, so that the shell leaves it alone: npm run send -- ${name} '{"a":1}'`
      })
  })
  const address = yield* DemoAddress.find
  if (Option.isNone(address)) {
    return yield* new SendError({ message: "The demo does not run. Start it with: npm start" })
  }
  const { databaseUrl, schema } = address.value
  const client = yield* Effect.acquireRelease(
    Effect.sync(() => {
      const client = new Pg.Client({
        connectionString: databaseUrl,
        connectionTimeoutMillis: 5000,
        query_timeout: 5000
      })
      client.on("error", () => {})
      return client
    }),
    (client) => Effect.timeoutOption(Effect.interruptible(Effect.ignore(Effect.tryPromise(() => client.end()))), 1000)
  )
  const { rows } = yield* Effect.tryPromise({
    try: () =>
      client.connect().then(() =>
        client.query(
          `insert into ${Pg.escapeIdentifier(schema)}.event_outbox
             (channel, event_type, payload, aggregate_type, aggregate_id)
           values ($1, $2, $3, $4, $5) returning id`,
          [...(name.includes(".") ? [null, name] : [name, null]), payload, aggregateType, aggregateId]
        )
      ),
    catch: (error) => new SendError({ message: error instanceof Error ? error.message : `${error}` })
  })
  yield* Console.log(`Written as ${rows[0]?.id}. The demo's window shows its arrival.`)
})

send.pipe(
  Effect.scoped,
  Effect.tapError((error) => Console.error(error.message)),
  NodeRuntime.runMain({ disableErrorReporting: true })
)
