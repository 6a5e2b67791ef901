/**
 * pg-listener as a contender: the built service, as a process of its own, with its default settings and default routes.
 */
import { execFile } from "node:child_process"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { withDeathSignal } from "../dev/DeathSignal.js"
import { freePort } from "../dev/LoopbackPorts.js"
import * as ServerProcess from "../dev/ServerProcess.js"
import { BenchError } from "./BenchError.js"
import { type Contender, payload, profiling, type StartOptions } from "./Contender.js"
import type { Site, World } from "./World.js"

/** Each of these has a default route of its own. */
const channels = [
  "booking_event",
  "campaign_click",
  "form_submitted",
  "attribute_changed",
  "friend_track_event_inserted"
]

const queues = [
  "booking_event_trigger",
  "campaign_click_trigger",
  "form_submitted_trigger",
  "attribute_change",
  "friend_track_event_trigger"
]

/** Every event belongs to one of them, so that order has to be kept. */
const aggregates = 10_000

const failed = (reason: string) => new BenchError({ what: "pg-listener", reason })

const environment = (site: Site) => ({ DATABASE_URL: site.databaseUrl, AMQP_URL: site.amqpUrl })

const migrate = ({ serviceMain }: World, site: Site): Effect.Effect<void, BenchError> =>
  Effect.async((resume) => {
    const env = environment(site)
    execFile(process.execPath, [serviceMain, "migrate"], { env, timeout: 30_000 }, (error, stdout, stderr) =>
      resume(error === null ? Effect.void : Effect.fail(failed(`migrate: ${stdout}${stderr}`)))
    )
  })

/** A running service. */
export interface Service {
  readonly pid: number
  /** From the start of the process to the first 200 of `/readyz`. */
  readonly readyAfterMillis: number
  readonly url: string
}

const isReady = (url: string) =>
  Effect.tryPromise((signal) => fetch(`${url}/readyz`, { signal })).pipe(
    Effect.timeout("2 seconds"),
    Effect.map(({ ok }) => ok),
    Effect.orElseSucceed(() => false)
  )

/** Starts the service and waits until it is ready. It is stopped with the scope, by SIGTERM. */
export const start = (
  { serviceMain }: World,
  site: Site,
  { env = {}, profile = false }: StartOptions = {}
): Effect.Effect<Service, BenchError, Scope.Scope> =>
  Effect.gen(function* () {
    const port = yield* freePort
    const url = `http://127.0.0.1:${port}`
    const launch = yield* withDeathSignal("TERM", {
      command: process.execPath,
      args: [...(profile ? profiling(site, "pg-listener") : []), serviceMain]
    })
    const startedMillis = performance.now()
    const service = yield* ServerProcess.make({
      name: "pg-listener",
      folder: site.folder,
      file: `pg-listener-${port}`,
      launch,
      env: {
        ...environment(site),
        PG_LISTENER_HEALTH_PORT: `${port}`,
        PG_LISTENER_HEALTH_HOST: "127.0.0.1",
        ...env
      },
      output: "log",
      beforeStart: Effect.void,
      isReady: () => Effect.succeed(true),
      readyWithinMillis: 1000,
      stopSignal: "SIGTERM",
      stopWithinMillis: 20_000,
      killsChildren: true
    })
    const pid = yield* service.pid
    yield* Effect.sleep("5 millis").pipe(
      Effect.zipRight(isReady(url)),
      Effect.repeat({ until: (ready) => ready }),
      Effect.timeoutFail({ duration: "30 seconds", onTimeout: () => failed("not ready after 30 s") })
    )
    return { pid, url, readyAfterMillis: performance.now() - startedMillis }
  }).pipe(Effect.catchTag("ServerError", ({ message }) => failed(message)))

/** `withOrder`: every event has an aggregate. */
export const pgListener = (withOrder = true): Contender => {
  const aggregate = (number: string) => (withOrder ? `'order', (${number})::text` : "null, null")
  return {
    name: "pg-listener",
    how: `default settings: batch 200, 2 workers${withOrder ? ", order per aggregate" : ""}`,
    queues,
    setUp: migrate,
    table: "event_outbox",
    // As the index of such rows has it: with millions of rows kept, looking at them all would disturb the measurement.
    pending: "processed_at is null and dead_at is null and retry_after is null",
    fill: (events, count) => `
      insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
      select (array['${channels.slice(0, count).join("', '")}'])[1 + i % ${count}], ${aggregate(`i % ${aggregates}`)},
        ${payload("'fill'")}
      from generate_series(1, ${events}) i`,
    insert: `
      insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
      values ('${channels[0]}', ${aggregate(`floor(random() * ${aggregates})`)}, ${payload("$1::text")})`,
    start
  }
}
