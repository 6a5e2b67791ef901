/**
 * The probes over HTTP (design, section 10): `/health`, `/readyz`, `/livez`; `/metrics`; and `/admin`.
 */
import { createServer } from "node:http"
import * as HttpLayerRouter from "@effect/platform/HttpLayerRouter"
import type * as HttpServerError from "@effect/platform/HttpServerError"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { Admin } from "./Admin.js"
import * as AdminRoutes from "./AdminRoutes.js"
import { HealthServerError } from "./Errors.js"
import { Health, type HealthReport } from "./Health.js"
import { CONTENT_TYPE } from "./internal/prometheusText.js"
import { MetricsText } from "./MetricsText.js"
import { Settings } from "./Settings.js"

const iso = (epochMillis: number): string => DateTime.formatIso(DateTime.unsafeMake(epochMillis))

/** 200 while LISTEN is connected, else 503. */
const health = Effect.gen(function* () {
  const report = yield* (yield* Health).report
  const now = yield* Clock.currentTimeMillis
  const { connected, disconnectedAt } = report.pg
  return yield* HttpServerResponse.json(
    {
      status: connected ? "ok" : "error",
      pg: { connected, disconnectedAt: disconnectedAt === undefined ? null : iso(disconnectedAt) },
      amqp: { connected: report.amqp.connected, blocked: report.amqp.blocked },
      timestamp: iso(now)
    },
    { status: connected ? 200 : 503 }
  )
})

/** Every readiness check by name, with what is wrong while it does not hold. */
export const readinessChecks = (report: HealthReport): ReadonlyArray<{ name: string; ok: boolean; detail: string }> => [
  {
    name: "pg-listener",
    ok: report.pg.connected,
    detail: report.pg.connected ? "listening" : "the LISTEN session is not connected"
  },
  {
    name: "amqp",
    ok: report.amqp.connected && !report.amqp.blocked,
    detail: !report.amqp.connected
      ? "not connected to RabbitMQ"
      : report.amqp.blocked
        ? `RabbitMQ blocks publishers: ${report.amqp.blockedReason ?? "no reason given"}`
        : "connected"
  },
  {
    name: "schema",
    ok: report.schemaInOrder,
    detail: report.schemaInOrder
      ? "in order"
      : "missing or not checked yet; see the log, and run: node dist/main.js migrate"
  },
  { name: "running", ok: !report.stopping, detail: report.stopping ? "shutting down" : "running" }
]

const ready = Effect.gen(function* () {
  const checks = readinessChecks(yield* (yield* Health).report)
  const ok = checks.every((check) => check.ok)
  return yield* HttpServerResponse.json({ status: ok ? "ok" : "error", checks }, { status: ok ? 200 : 503 })
})

const metrics = Effect.gen(function* () {
  const text = yield* (yield* MetricsText).read
  return HttpServerResponse.text(text, { contentType: CONTENT_TYPE })
})

const Routes = HttpLayerRouter.use((router) =>
  Effect.all(
    [
      router.add("GET", "/health", health),
      router.add("GET", "/readyz", ready),
      router.add("GET", "/livez", HttpServerResponse.json({ status: "ok" })),
      router.add("GET", "/metrics", metrics)
    ],
    { discard: true }
  )
)

/** How long a client may take to finish its request while the server closes. */
const CLOSE_GRACE = Duration.seconds(1)

const PORT = "PG_LISTENER_HEALTH_PORT"
const HOST = "PG_LISTENER_HEALTH_HOST"

/** What Node's word for a failed `listen` means for the one who set the port and the host. */
const cannotListen = (host: string, port: number, { cause }: HttpServerError.ServeError): HealthServerError => {
  const code = cause instanceof Error && "code" in cause ? String(cause.code) : "no reason given"
  switch (code) {
    case "EADDRINUSE":
      return new HealthServerError({
        setting: PORT,
        problem: `port ${port} on ${host} is already in use (${code})`,
        mend: "Give another port, or stop what uses it"
      })
    case "EACCES":
    case "EPERM":
      return new HealthServerError({
        setting: PORT,
        problem: `port ${port} on ${host} may not be used by this process (${code})`,
        mend: "Give a port from 1024 on, or the right to use this one"
      })
    case "EADDRNOTAVAIL":
    case "ENOTFOUND":
      return new HealthServerError({
        setting: HOST,
        problem: `${host} is no address of this machine (${code})`,
        mend: "Give one of its addresses, or 0.0.0.0 for all"
      })
    default:
      return new HealthServerError({
        setting: PORT,
        problem: `can't listen at port ${port} on ${host} (${code})`,
        mend: `Check it and ${HOST}`
      })
  }
}

/** The server; a port that is taken or not allowed ends the start with a clear error. */
export const layer: Layer.Layer<never, HealthServerError, Settings | Health | MetricsText | Admin> = Layer.unwrapEffect(
  Effect.map(Settings, ({ health: { host, port } }) => {
    const server = createServer()
    // Built above the listening server, so it runs before `close`, which would wait for ever for a half-sent request.
    const CutStragglers = Layer.scopedDiscard(
      Effect.addFinalizer(() =>
        Effect.sync(() => server.closeIdleConnections()).pipe(
          Effect.zipRight(
            Effect.forkDaemon(
              Effect.delay(
                Effect.sync(() => server.closeAllConnections()),
                CLOSE_GRACE
              )
            )
          )
        )
      )
    )
    return HttpLayerRouter.serve(Layer.mergeAll(Routes, AdminRoutes.layer), {
      disableLogger: true,
      disableListenLog: true
    }).pipe(
      Layer.merge(CutStragglers),
      Layer.provide(NodeHttpServer.layer(() => server, { port, host })),
      Layer.mapError((error) => cannotListen(host, port, error))
    )
  })
)
