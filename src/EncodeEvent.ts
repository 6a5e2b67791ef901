/**
 * From an event to its message (design, section 8). Pure, and called once per event: no Effect in here.
 */
import * as Either from "effect/Either"
import { canonical, type NotJson } from "./CanonicalJson.js"
import { type Headers, headersTooLarge, parseHeaders } from "./internal/amqpHeaders.js"
import { exceedsBytes, shown } from "./internal/shown.js"
import { type Message, type Publishable, Refusal } from "./Message.js"
import type { OutboxRow } from "./Outbox.js"
import type { RouteKey } from "./Routes.js"
import type { SettingsShape } from "./Settings.js"

/** What the encoder needs to know of the settings. */
export type EncodeSettings = Pick<SettingsShape, "maxMessageBytes" | "routes">

/** A notification that is an event of its own. */
export interface LiveEvent {
  readonly id: string
  readonly channel: string
  readonly payload: string
  /** By this process's clock, in whole seconds since 1970: a notification has no `created_at`. */
  readonly receivedAtSeconds: number
}

const MAX_TYPE_BYTES = 255

/**
 * The message of a row, or why it has none; and the key of its aggregate.
 *
 * `aggregate_type`, `aggregate_id` and `channel` of the row win over headers of the same names. An integer beyond ±2^53
 * and a number that a double can't hold travel as text in the headers.
 */
export const encodeRow = (row: OutboxRow, settings: EncodeSettings): Publishable => ({
  message: messageOfRow(row, settings),
  orderKey: row.aggregateId === undefined ? undefined : JSON.stringify([row.aggregateType ?? "", row.aggregateId])
})

const messageOfRow = (row: OutboxRow, settings: EncodeSettings): Either.Either<Message, Refusal> => {
  if (row.unreadable !== undefined) return refuse(`the payload can't be read as text: ${row.unreadable}`)
  return row.payload === undefined ? tooLarge(row.payloadBytes, settings) : rowMessage(row, row.payload, settings)
}

const rowMessage = (row: OutboxRow, payload: string, settings: EncodeSettings): Either.Either<Message, Refusal> => {
  const json = canonical(payload)
  return Either.isLeft(json)
    ? refuse(json.left.reason)
    : toMessage(row, row.id, row.createdAtSeconds, row.headers, json.right, settings)
}

/** The message of a live event; it has no order key. Left: the payload is not JSON, so it can never be a message. */
export const encodeLive = (event: LiveEvent, settings: EncodeSettings): Either.Either<Publishable, NotJson> => {
  const json = canonical(event.payload)
  if (Either.isLeft(json)) return Either.left(json.left)
  const key = { channel: event.channel, eventType: undefined, aggregateType: undefined, aggregateId: undefined }
  return Either.right({
    message: toMessage(key, event.id, event.receivedAtSeconds, undefined, json.right, settings),
    orderKey: undefined
  })
}

/** Not for good: a deploy may bring a route, or a program that can encode it. */
const refuse = (reason: string): Either.Either<never, Refusal> => Either.left(new Refusal({ reason, permanent: false }))

/** For good: a row's content never changes, and its aggregate need not wait for a body that will not shrink. */
const tooLarge = (bytes: number, { maxMessageBytes }: EncodeSettings): Either.Either<never, Refusal> =>
  Either.left(
    new Refusal({
      reason: `the body has ${bytes} bytes, more than PG_LISTENER_MAX_MESSAGE_BYTES (${maxMessageBytes})`,
      permanent: true
    })
  )

const toMessage = (
  key: RouteKey,
  id: string,
  timestampSeconds: number,
  headersText: string | undefined,
  json: string,
  settings: EncodeSettings
): Either.Either<Message, Refusal> => {
  const destination = settings.routes.resolve(key)
  if (Either.isLeft(destination)) return Either.left(destination.left)
  const { exchange, routingKey } = destination.right

  const type = key.eventType ?? key.channel ?? ""
  if (exceedsBytes(type, MAX_TYPE_BYTES)) {
    return refuse(`the event type ${shown(type)} is longer than ${MAX_TYPE_BYTES} bytes, the most that AMQP can carry`)
  }

  let headers: Headers = {}
  if (headersText !== undefined) {
    const parsed = parseHeaders(headersText)
    if (Either.isLeft(parsed)) return refuse(parsed.left)
    headers = parsed.right
  }
  const { aggregateId, aggregateType, channel } = key
  if (aggregateType !== undefined) headers["aggregate_type"] = aggregateType
  if (aggregateId !== undefined) headers["aggregate_id"] = aggregateId
  if (channel !== undefined) headers["channel"] = channel
  const characters = (headersText?.length ?? 0) + (aggregateType?.length ?? 0) + (aggregateId?.length ?? 0)
  const problem = headersTooLarge(headers, characters)
  if (problem !== undefined) return refuse(problem)

  const body = Buffer.from(json, "utf8")
  if (body.length > settings.maxMessageBytes) return tooLarge(body.length, settings)
  return Either.right({ id, exchange, routingKey, type, timestampSeconds, headers, body })
}
