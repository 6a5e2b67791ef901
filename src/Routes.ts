/**
 * Where events go (design, section 8): parsed once from `PG_LISTENER_ROUTES`, pure look-ups after that.
 */
import type * as Either from "effect/Either"
import type { Refusal } from "./Message.js"

/** What a route looks at. */
export interface RouteKey {
  readonly channel: string | undefined
  readonly eventType: string | undefined
  readonly aggregateType: string | undefined
  readonly aggregateId: string | undefined
}

/** A queue (`exchange` is empty, `routingKey` the queue's name) or an exchange and the finished routing key. */
export interface Destination {
  readonly exchange: string
  readonly routingKey: string
}

export interface Routes {
  /** By channel first, then by event type; exact before pattern, the longest pattern first. */
  readonly resolve: (key: RouteKey) => Either.Either<Destination, Refusal>
  /** The channels to LISTEN on: every exact source. */
  readonly channels: ReadonlyArray<string>
  /** The queues that routes name directly, each once. */
  readonly queues: ReadonlyArray<string>
  /** The exchanges that routes name, each once. */
  readonly exchanges: ReadonlyArray<string>
  /** Every route as configured, in order: for the start-up log, the commands and the page. */
  readonly all: ReadonlyArray<{ readonly source: string; readonly target: string }>
}
