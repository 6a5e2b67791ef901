/** A collector of traces, as OpenTelemetry has them: takes OTLP/HTTP in JSON on loopback. */
import { createServer, type IncomingHttpHeaders } from "node:http"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface CollectedSpan {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly name: string
  readonly kind: number
  readonly startTimeUnixNano: string
  readonly endTimeUnixNano: string
  readonly attributes: ReadonlyArray<{ readonly key: string; readonly value: object }>
  readonly links: ReadonlyArray<{ readonly traceId: string; readonly spanId: string }>
}

interface ExportRequest {
  readonly resourceSpans: ReadonlyArray<{
    readonly scopeSpans: ReadonlyArray<{ readonly spans: ReadonlyArray<CollectedSpan> }>
  }>
}

export interface Collector {
  /** For `OTEL_EXPORTER_OTLP_ENDPOINT`. */
  readonly url: string
  readonly spans: ReadonlyArray<CollectedSpan>
  readonly requests: ReadonlyArray<{ readonly path: string | undefined; readonly headers: IncomingHttpHeaders }>
  /** The status of the answers to come; `"silence"` for none. */
  readonly answers: { status: number | "silence" }
}

/** Closes with the scope. */
export const collector: Effect.Effect<Collector, never, Scope.Scope> = Effect.gen(function* () {
  const spans: Array<CollectedSpan> = []
  const requests: Array<Collector["requests"][number]> = []
  const answers: Collector["answers"] = { status: 200 }
  const server = createServer((request, response) => {
    let body = ""
    request.on("data", (data: Buffer) => {
      body += data.toString()
    })
    request.on("end", () => {
      requests.push({ path: request.url, headers: request.headers })
      const { resourceSpans } = JSON.parse(body) as ExportRequest
      for (const { scopeSpans } of resourceSpans) for (const scope of scopeSpans) spans.push(...scope.spans)
      if (answers.status !== "silence")
        response.writeHead(answers.status, { "content-type": "application/json" }).end("{}")
    })
  })
  yield* Effect.acquireRelease(
    Effect.async<void>((resume) => {
      server.listen(0, "127.0.0.1", () => resume(Effect.void))
    }),
    () =>
      Effect.sync(() => {
        server.close()
        server.closeAllConnections()
      })
  )
  const address = server.address()
  const port = typeof address === "object" && address !== null ? address.port : 0
  return { url: `http://127.0.0.1:${port}`, spans, requests, answers }
})
