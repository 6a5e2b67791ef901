/**
 * Dead letters over HTTP. Only there when `PG_LISTENER_ADMIN_TOKEN` is set; every request needs
 * `Authorization: Bearer <token>`.
 *
 * | request | answer (200) |
 * | --- | --- |
 * | `GET /admin/dead-letters?…` | `{"deadLetters": [Letter], "next": "17" or null}` |
 * | `GET /admin/dead-letters/:id` | `Letter`, with `"headers": {…}` and `"payload": any JSON` |
 * | `POST /admin/dead-letters/:id/retry` | `{"retried": 1, "id": "…"}` |
 * | `DELETE /admin/dead-letters/:id` | `{"discarded": 1, "id": "…"}` |
 * | `POST /admin/dead-letters/retry` | `{"retried": 120}` |
 * | `POST /admin/dead-letters/discard` | `{"discarded": 120}` |
 *
 * `Letter`: `{"seq": "17", "id": uuid, "channel", "eventType", "aggregateType", "aggregateId": text or null, "attempts": 10,
 * "lastError": text or null, "createdAt", "deadAt": "2026-01-31T08:00:00.123456Z", "target": "queue", "exchange/key" or null}`.
 * `target` is where the routes send it now. A payload that is too large to be loaded is left out, and `"payloadOmitted"` says why.
 *
 * Query: `channel`, `eventType`, `aggregateType`, `aggregateId`, `queue` (one that a route names), `error` (a piece of the last
 * error), `olderThan` and `newerThan` (of the death: a span such as `2h`, or a time such as `2026-01-31T08:00:00Z`); `limit`
 * (1 to 500, else 100), `after` (the `next` of the page before), `order` (`oldest`, by `seq`, or `newest`).
 *
 * The two bulk actions want a JSON object: `{"filter": {"eventType": "order.created"}}` with one or more of the same names, or
 * `{"all": true}`; never neither and never both, so that no forgotten filter means everything. `"limit": 100` takes the first
 * hundred. They act on what is dead when they begin. A client that goes away stops them between two steps of a few hundred.
 *
 * Else: `{"error": code, "message": sentence}`, with 400 `bad_request` (and `"parameter"`), 401 `unauthorized`, 404 `not_found`,
 * 409 `not_dead` (and `"state": "pending"` or `"processed"`), 413 `too_large`, 503 `unavailable` (after a bulk action that ended early with
 * `"retried"` or `"discarded"` as well).
 */
import * as HttpLayerRouter from "@effect/platform/HttpLayerRouter"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import type * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { Admin } from "./Admin.js"
import type { DeadLetterRef, DeadLetters } from "./DeadLetters.js"
import {
  adminFailure,
  bodyOf,
  jsonText,
  type RequestFailure,
  TokenUnreadable,
  Unauthorized
} from "./internal/adminHttp.js"
import { type BulkRequest, parseBulkBody, parseQuery } from "./internal/adminInput.js"
import { bearerToken, sameToken } from "./internal/bearerToken.js"
import { parseId } from "./internal/deadLettersInput.js"
import { letterJson, pageJson } from "./internal/deadLettersJson.js"
import { type Secret, Settings } from "./Settings.js"

type Port = DeadLetters["Type"]
type Request = HttpServerRequest.HttpServerRequest

/** The token is read anew for each request, since its file may have changed. */
const authorize = Effect.fnUntraced(function* (request: Request, secret: Secret) {
  const given = bearerToken(request.headers["authorization"])
  const wanted = yield* Effect.mapError(secret, (error) => new TokenUnreadable({ reason: error.message }))
  if (given === undefined || !sameToken(given, Redacted.value(wanted))) {
    return yield* new Unauthorized({ tokenGiven: given !== undefined })
  }
})

/** Who asked: all that is known of somebody who has the one token. */
const withAsker = (request: Request) => Effect.annotateLogs({ remote_address: Option.getOrNull(request.remoteAddress) })

const tellOne = (message: string, request: Request, { aggregateId, channel, eventType, id }: DeadLetterRef) =>
  Effect.logInfo(message).pipe(
    Effect.annotateLogs({ event_id: id, event_type: eventType, channel, aggregate_id: aggregateId }),
    withAsker(request)
  )

const tellMany = (message: string, request: Request, { limit, selection }: BulkRequest, rows: number) =>
  Effect.logInfo(message).pipe(
    Effect.annotateLogs({ rows, filter: selection, ...(limit === undefined ? undefined : { limit }) }),
    withAsker(request)
  )

/** A bulk action's count goes into the log also when it ended early. */
const inBulk = Effect.fnUntraced(function* (
  request: Request,
  queues: ReadonlyArray<string>,
  act: (asked: BulkRequest) => ReturnType<Port["retryAll"]>,
  done: "retried" | "discarded"
) {
  const asked = yield* parseBulkBody(yield* bodyOf(request), queues)
  const rows = yield* act(asked).pipe(
    Effect.tapErrorTag("BulkUnfinished", (error) =>
      tellMany(`admin ${done}, and then failed`, request, asked, error.done)
    ),
    withAsker(request)
  )
  yield* tellMany(`admin ${done}`, request, asked, rows)
  return jsonText(JSON.stringify({ [done]: rows }))
})

const requestedId = Effect.flatMap(HttpLayerRouter.RouteContext, ({ params }) => parseId(params["id"] ?? ""))

/** The routes, or none of them without a token. */
export const layer: Layer.Layer<never, never, HttpLayerRouter.HttpRouter | Settings | Admin> = Layer.unwrapEffect(
  Effect.gen(function* () {
    const { adminToken, routes } = yield* Settings
    const admin = yield* Admin
    if (Option.isNone(adminToken)) return Layer.empty
    const { queues } = routes

    const handler = (
      answer: (
        deadLetters: Port,
        request: Request
      ) => Effect.Effect<HttpServerResponse.HttpServerResponse, RequestFailure, HttpLayerRouter.RouteContext>
    ) =>
      Effect.gen(function* () {
        const request = yield* HttpServerRequest.HttpServerRequest
        return yield* authorize(request, adminToken.value).pipe(
          Effect.zipRight(admin.deadLetters),
          Effect.flatMap((deadLetters) => answer(deadLetters, request)),
          Effect.catchAll((failure) => Effect.zipRight(tellRefusal(request, failure), adminFailure(failure)))
        )
      })

    const list = handler((deadLetters, request) =>
      parseQuery(request.url, queues).pipe(
        Effect.flatMap(deadLetters.list),
        Effect.map((page) => jsonText(pageJson(page)))
      )
    )
    const show = handler((deadLetters, request) =>
      requestedId.pipe(
        Effect.flatMap(deadLetters.show),
        Effect.tap((letter) => tellOne("admin looked at", request, letter)),
        Effect.map((letter) => jsonText(letterJson(letter)))
      )
    )
    const retryOne = handler((deadLetters, request) =>
      requestedId.pipe(
        Effect.flatMap(deadLetters.retryOne),
        Effect.tap((letter) => tellOne("admin retried", request, letter)),
        Effect.map(({ id }) => jsonText(JSON.stringify({ retried: 1, id })))
      )
    )
    const discard = handler((deadLetters, request) =>
      requestedId.pipe(
        Effect.flatMap(deadLetters.discard),
        Effect.tap((letter) => tellOne("admin discarded", request, letter)),
        Effect.map(({ id }) => jsonText(JSON.stringify({ discarded: 1, id })))
      )
    )
    return HttpLayerRouter.use((router) =>
      Effect.all(
        [
          router.add("GET", "/admin/dead-letters", list),
          router.add(
            "POST",
            "/admin/dead-letters/retry",
            handler((it, request) => inBulk(request, queues, it.retryAll, "retried"))
          ),
          router.add(
            "POST",
            "/admin/dead-letters/discard",
            handler((it, request) => inBulk(request, queues, it.discardAll, "discarded"))
          ),
          router.add("GET", "/admin/dead-letters/:id", show),
          router.add("POST", "/admin/dead-letters/:id/retry", retryOne),
          router.add("DELETE", "/admin/dead-letters/:id", discard)
        ],
        { discard: true }
      )
    )
  })
)

/** What an operator of the service should see: who knocked without the token, and what the asker was not told. */
const tellRefusal = (request: Request, failure: RequestFailure): Effect.Effect<void> => {
  switch (failure._tag) {
    case "Unauthorized":
      return withAsker(request)(Effect.logWarning("admin refused: the token is missing or wrong"))
    case "TokenUnreadable":
      return withAsker(request)(Effect.logError(`admin refused: ${failure.reason}`))
    case "DatabaseError":
      return withAsker(request)(Effect.logWarning(`admin failed: ${failure.message}`))
    default:
      return Effect.void
  }
}
