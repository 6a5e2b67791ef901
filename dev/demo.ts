/**
 * `npm start`: the whole way of an event, on this machine. Servers, tables, the service, a sample of each event, and every
 * message as it arrives. With `--once` it ends after the samples: 0 when all arrived, 1 when one did not in 30 seconds.
 */
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import * as ConfigError from "effect/ConfigError"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import { consume, type Received } from "./Consumer.js"
import * as DemoAddress from "./DemoAddress.js"
import { runAsProcess } from "./DemoInterrupts.js"
import * as DemoServers from "./DemoServers.js"
import * as DemoService from "./DemoService.js"
import * as DemoTables from "./DemoTables.js"

class DemoError extends Data.TaggedError("DemoError")<{ readonly message: string }> {}

const once = process.argv.includes("--once")

const routes = [
  "attribute_changed=attribute_change",
  "friend_track_event_inserted=friend_track_event_trigger",
  "form_submitted=form_submitted_trigger",
  "campaign_click=campaign_click_trigger",
  "booking_event=booking_event_trigger",
  "order.created=orders"
]

/** A sample on its way: when its insert began, and the promise that it arrives. */
interface Expected {
  readonly sample: DemoTables.Sample
  readonly writtenAt: number
  readonly arrived: Deferred.Deferred<void>
}

const demo = Effect.gen(function* () {
  if (Option.isSome(yield* DemoAddress.find)) {
    return yield* new DemoError({
      message: "A demo runs in this folder already. Stop it first (Ctrl-C in its window)."
    })
  }
  const servers = yield* DemoServers.start
  const schema = yield* Config.string("PG_LISTENER_SCHEMA").pipe(Config.withDefault("public"))
  const env = {
    // The user's own are in the environment already, as they are or as files.
    ...(servers.isPrivateDatabase ? { DATABASE_URL: servers.databaseUrl } : {}),
    ...(servers.isPrivateBroker ? { AMQP_URL: servers.amqpUrl } : {}),
    PG_LISTENER_ROUTES: routes.join(","),
    PG_LISTENER_HEALTH_PORT: `${servers.healthPort}`,
    PG_LISTENER_HEALTH_HOST: servers.healthHost,
    LOG_FORMAT: "pretty"
  }

  yield* Console.log("Creating the tables (node dist/main.js migrate)...")
  yield* DemoService.migrate(env)
  const tables = yield* DemoTables.make({ url: servers.databaseUrl, schema })
  if (!servers.isPrivateDatabase) yield* Effect.addFinalizer(() => Effect.ignoreLogged(tables.drop))
  yield* Console.log("Starting the service (node dist/main.js)...")
  const service = yield* DemoService.start(env, `${servers.healthUrl}/readyz`)
  yield* DemoAddress.publish({ databaseUrl: servers.databaseUrl, schema })

  const expected: Array<Expected> = []
  const width = Math.max(...routes.map((route) => route.length - route.indexOf("=") - 1))
  const print = ({ body, messageId, receivedAt }: Received, queue: string) =>
    Effect.gen(function* () {
      const known = expected.find(({ sample }) => body.includes(sample.id))
      // Somebody else's event has no start that we saw; its row knows when its transaction began.
      const since = known?.writtenAt ?? (yield* tables.createdAt(messageId).pipe(Effect.orElseSucceed(() => undefined)))
      const latency = since === undefined ? "      " : `${Math.max(0, Math.round(receivedAt - since))} ms`.padStart(6)
      yield* Console.log(
        `  ${queue.padEnd(width)}  ${latency}  ${body.length > 300 ? `${body.slice(0, 300)}...` : body}`
      )
      if (known !== undefined && known.sample.queue === queue) yield* Deferred.succeed(known.arrived, undefined)
    })
  for (const route of routes) {
    const queue = route.slice(route.indexOf("=") + 1)
    const consumer = yield* consume(servers.amqpUrl, queue)
    const next = Effect.flatMap(consumer.take(1, "1 day"), (messages) =>
      Effect.forEach(messages, (message) => print(message, queue))
    )
    yield* Effect.forkScoped(Effect.forever(Effect.orElse(next, () => Effect.void)))
  }

  yield* Console.log(
    "\nWriting one event of each kind. What arrives, in which queue, and how long after the INSERT began:\n"
  )
  for (const make of DemoTables.samples) {
    const sample = make()
    yield* Console.log(`  ${sample.name}: ${sample.how}`)
    const arrived = yield* Deferred.make<void>()
    expected.push({ sample, arrived, writtenAt: yield* Clock.currentTimeMillis })
    yield* tables.write(sample)
    // One after the other reads better; a sample that is late does not hold the others up.
    yield* Effect.timeoutOption(Deferred.await(arrived), "2 seconds")
  }
  const late = yield* Effect.filter(
    expected,
    ({ arrived }) => Deferred.await(arrived).pipe(Effect.timeout("30 seconds"), Effect.isFailure),
    { concurrency: "unbounded" }
  )
  if (late.length > 0) {
    const names = late.map(({ sample }) => `${sample.name} (queue ${sample.queue})`).join(", ")
    const message = `Not arrived within 30 seconds: ${names}`
    if (once) return yield* new DemoError({ message })
    yield* Console.error(message)
  }
  if (once) return yield* Console.log(`\nAll ${expected.length} samples arrived.`)

  yield* Console.log(DemoServers.instructions(servers, schema))
  // The service runs until somebody stops the demo; if it ends before, so do we.
  yield* Effect.repeat(service.pid, Schedule.spaced("500 millis"))
})

const stopped = Console.log("Stopped. All that is left is the folder .data.")

demo.pipe(
  Effect.scoped,
  Effect.mapError((error) => (ConfigError.isConfigError(error) ? new DemoError({ message: `${error}` }) : error)),
  Effect.onInterrupt(() => stopped),
  (program) => runAsProcess(program, { mustFinish: once })
)
