/**
 * Requests and answers of `/admin`: bodies with a bound, failures with a status.
 */
import type * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { AdminClosed } from "../Admin.js"
import { BadInput } from "../Errors.js"
import { type DeadLettersFailure, deadLettersFailure, type FailureTold } from "./deadLettersJson.js"

export class Unauthorized extends Data.TaggedError("Unauthorized")<{ readonly tokenGiven: boolean }> {}

/** The file of the admin token can't be read; the reason is for the log alone. */
export class TokenUnreadable extends Data.TaggedError("TokenUnreadable")<{ readonly reason: string }> {}

export class BodyTooLarge extends Data.TaggedError("BodyTooLarge")<{ readonly bytes: number }> {}

export type RequestFailure = Unauthorized | TokenUnreadable | AdminClosed | BodyTooLarge | DeadLettersFailure

const longestBody = 16 * 1024

/** A body of this size is there at once, or its sender is in trouble. */
const bodyTimeout = Duration.seconds(5)

/**
 * The body as text. Its length must be told ahead: a stream that turns out too long could only be answered by hanging up.
 */
export const bodyOf = Effect.fnUntraced(function* (request: HttpServerRequest.HttpServerRequest) {
  const bad = (problem: string, mend: string) => new BadInput({ parameter: "body", problem, mend })
  const length = request.headers["content-length"]
  if (length === undefined) {
    return yield* bad("has no length told ahead", "Send a JSON object, with a Content-Length header")
  }
  const bytes = Number(length)
  if (bytes > longestBody) return yield* new BodyTooLarge({ bytes })
  return yield* request.text.pipe(
    Effect.timeout(bodyTimeout),
    Effect.mapError(() => bad("did not arrive whole", "Send it again"))
  )
})

/** JSON that is nobody's to keep. */
export const jsonText = (text: string, status = 200, headers: { readonly [name: string]: string } = {}) =>
  HttpServerResponse.text(text, {
    status,
    contentType: "application/json",
    headers: { "cache-control": "no-store", "x-content-type-options": "nosniff", ...headers }
  })

const told = (failure: RequestFailure): FailureTold => {
  switch (failure._tag) {
    case "Unauthorized":
      return {
        status: 401,
        error: "unauthorized",
        message: failure.tokenGiven ? "the token is wrong" : "send Authorization: Bearer <PG_LISTENER_ADMIN_TOKEN>"
      }
    case "TokenUnreadable":
      return { status: 503, error: "unavailable", message: "the admin token can't be read; the log says why" }
    case "BodyTooLarge":
      return {
        status: 413,
        error: "too_large",
        message: `the body has ${failure.bytes} bytes, more than ${longestBody}`
      }
    case "AdminClosed":
      return { status: 503, error: "unavailable", message: failure.message }
    default:
      return deadLettersFailure(failure)
  }
}

export const adminFailure = (failure: RequestFailure): HttpServerResponse.HttpServerResponse => {
  const { error, message, more, status } = told(failure)
  const challenge = `Bearer realm="pg-listener"`
  return jsonText(
    JSON.stringify({ error, message, ...more }),
    status,
    failure._tag === "Unauthorized"
      ? { "www-authenticate": failure.tokenGiven ? `${challenge}, error="invalid_token"` : challenge }
      : {}
  )
}
