/**
 * The broker side: publish a batch, get one outcome per message.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { Outcome, Publishable } from "./Message.js"

/** `blockedReason` is the broker's own word for why it takes no messages now (memory or disk alarm). */
export interface AmqpStatus {
  readonly connected: boolean
  readonly blocked: boolean
  readonly blockedReason: string | undefined
}

export class AmqpPublisher extends Context.Tag("pg-listener/AmqpPublisher")<
  AmqpPublisher,
  {
    /**
     * Publishes a batch and waits for the broker's word on each message; outcomes are in the order of the batch.
     *
     * Messages of one `orderKey` go out one after the other, each after the confirm of the one before it; all others
     * are pipelined. Never fails and always ends: after `PG_LISTENER_CONFIRM_TIMEOUT` without an answer a message is
     * `Unknown`. Must not be interrupted in the middle (the caller makes it uninterruptible).
     */
    readonly publish: (batch: ReadonlyArray<Publishable>) => Effect.Effect<ReadonlyArray<Outcome>>
    /** Returns as soon as the session is connected and not blocked. */
    readonly awaitReady: Effect.Effect<void>
    readonly status: Effect.Effect<AmqpStatus>
  }
>() {}
