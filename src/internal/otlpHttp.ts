/**
 * One request of OTLP/HTTP: https://opentelemetry.io/docs/specs/otlp/#otlphttp
 */
import * as FetchHttpClient from "@effect/platform/FetchHttpClient"
import * as HttpClient from "@effect/platform/HttpClient"
import type * as HttpClientError from "@effect/platform/HttpClientError"
import * as HttpClientRequest from "@effect/platform/HttpClientRequest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { TraceExportError } from "./otlpExporter.js"

const TIMEOUT = Duration.seconds(10)

/** By which a collector says that it may take the request later. */
const AGAIN = new Set([429, 502, 503, 504])

export interface OtlpTarget {
  /** Without user and password, so it may be shown. */
  readonly url: string
  readonly user: string
  readonly password: string
}

/** `<endpoint>/v1/traces`. A user and a password in the endpoint go into a header, where fetch wants them. */
export const otlpTarget = (endpoint: string): OtlpTarget => {
  const url = new URL(endpoint)
  const [user, password] = [decodeURIComponent(url.username), decodeURIComponent(url.password)]
  url.username = ""
  url.password = ""
  url.pathname = `${url.pathname.replace(/\/+$/, "")}/v1/traces`
  return { url: url.href, user, password }
}

/** Fetch says only that it failed; why is the cause of its cause, and with several addresses only a code. */
const innermost = (error: Error): string => {
  if (error.cause instanceof Error) return innermost(error.cause)
  return error.message === "" && "code" in error ? String(error.code) : error.message
}

const notSent = (error: HttpClientError.HttpClientError): TraceExportError =>
  new TraceExportError({ reason: error.cause instanceof Error ? innermost(error.cause) : error.message, again: true })

/** Sends bodies to the target. A partial success counts as one: the collector will not take the rest later either. */
export const otlpSender = ({
  password,
  url,
  user
}: OtlpTarget): ((body: string) => Effect.Effect<void, TraceExportError>) => {
  const post = HttpClientRequest.post(url)
  const request = user === "" && password === "" ? post : HttpClientRequest.basicAuth(post, user, password)
  return (body) =>
    Effect.gen(function* () {
      const client = yield* HttpClient.HttpClient
      const response = yield* client.execute(HttpClientRequest.bodyText(request, body, "application/json"))
      // Read to its end in any case, so that the connection can be used again.
      yield* response.text
      if (response.status >= 200 && response.status < 300) return
      return yield* new TraceExportError({
        reason: `${url} answered with status ${response.status}`,
        again: AGAIN.has(response.status)
      })
    }).pipe(
      Effect.catchTags({
        RequestError: (error) => Effect.fail(notSent(error)),
        ResponseError: (error) => Effect.fail(notSent(error))
      }),
      Effect.timeoutFail({
        duration: TIMEOUT,
        onTimeout: () =>
          new TraceExportError({ reason: `${url} did not answer within ${Duration.format(TIMEOUT)}`, again: true })
      }),
      Effect.provide(FetchHttpClient.layer)
    )
}
