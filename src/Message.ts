/**
 * What goes to the broker, and what became of it.
 */
import * as Data from "effect/Data"
import type * as Either from "effect/Either"

/** A value that an AMQP header table can hold. */
export type HeaderValue =
  | string
  | number
  | boolean
  | null
  | ReadonlyArray<HeaderValue>
  | { readonly [key: string]: HeaderValue }

/** One AMQP message, complete (design, section 8). Always persistent, mandatory, `application/json`, app id `pg-listener`. */
export interface Message {
  /** AMQP `message_id`: the row's `id`, or a fresh uuid for a live event. */
  readonly id: string
  /** Empty for the default exchange, where the routing key is the queue's name. */
  readonly exchange: string
  readonly routingKey: string
  /** AMQP `type`: `event_type`, or else the channel. */
  readonly type: string
  /** AMQP `timestamp`: `created_at` in whole seconds since 1970. */
  readonly timestampSeconds: number
  readonly headers: { readonly [key: string]: HeaderValue }
  /** Canonical JSON in UTF-8. */
  readonly body: Buffer
}

/**
 * Why an event can't become a message: no route, too large, not encodable. A message-level failure: it costs an attempt.
 * `permanent`: no retry can help, whatever is deployed or declared meanwhile; only the size is such a case.
 */
export class Refusal extends Data.TaggedError("Refusal")<{ readonly reason: string; readonly permanent: boolean }> {}

/** An event on its way out: its message, or why it has none; and its aggregate's key, when it has an aggregate. */
export interface Publishable {
  readonly message: Either.Either<Message, Refusal>
  /** Two of one key are never in flight together, and after a failed one the rest of the key is held. */
  readonly orderKey: string | undefined
}

/**
 * What became of one message.
 *
 * - `Confirmed`: the broker has it in a queue.
 * - `Refused`: the broker (or we) refused this very message: unroutable, nacked, too large, no such exchange. Costs an
 *   attempt; all of them when it is `permanent`.
 * - `Unknown`: the broker did not answer (connection lost, confirm time-out). It may or may not have the message. Costs nothing.
 * - `Held`: not published, because an earlier message of its aggregate in the batch was not confirmed. Costs nothing.
 */
export type Outcome = Data.TaggedEnum<{
  Confirmed: {}
  Refused: { readonly reason: string; readonly permanent: boolean }
  Unknown: { readonly reason: string }
  Held: {}
}>
export const Outcome = Data.taggedEnum<Outcome>()
