/**
 * A session with the one confirm channel that all workers share, and its successor each time the broker closes it.
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberId from "effect/FiberId"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import { AmqpError } from "../Errors.js"
import type { ConfirmChannel } from "./amqpChannel.js"
import type { AmqpSession, SessionNews } from "./amqpSession.js"

export type SharedNews = SessionNews | { readonly kind: "channel closed"; readonly reason: string }

export interface SharedSession {
  readonly session: AmqpSession
  /** Opens the shared channel: once at the start, and again after each "channel closed". */
  readonly openChannel: Effect.Effect<void, AmqpError>
  /** The shared channel; waits while it is being opened again, but never longer than this. */
  readonly channel: (atMost: Duration.DurationInput) => Effect.Effect<ConfirmChannel, AmqpError>
  readonly nextNews: Effect.Effect<SharedNews>
}

export const makeSharedSession = (
  open: (onNews: (news: SessionNews) => void) => Effect.Effect<AmqpSession, AmqpError, Scope.Scope>
): Effect.Effect<SharedSession, AmqpError, Scope.Scope> =>
  Effect.gen(function* () {
    const news = yield* Queue.unbounded<SharedNews>()
    let channel = Deferred.unsafeMake<ConfirmChannel, AmqpError>(FiberId.none)
    const session = yield* open((item) => news.unsafeOffer(item))
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => Deferred.fail(channel, new AmqpError({ operation: "session", reason: "closed" })))
    )
    return {
      session,
      openChannel: Effect.flatMap(session.openChannel, (opened) => {
        opened.listen({
          onReturn: () => {},
          onDrain: () => {},
          onEnd: (end) => {
            if (end.kind === "lost") return
            // In the same turn as the close, so that no batch is handed the dead channel.
            channel = Deferred.unsafeMake(FiberId.none)
            news.unsafeOffer({ kind: "channel closed", reason: end.reason })
          }
        })
        return Deferred.succeed(channel, opened)
      }),
      channel: (atMost) =>
        Effect.suspend(() => Deferred.await(channel)).pipe(
          // Callers are uninterruptible, and a wait that can't be interrupted can't be bounded either.
          Effect.interruptible,
          Effect.timeoutFail({
            duration: atMost,
            onTimeout: () => new AmqpError({ operation: "open channel", reason: "the broker does not answer" })
          })
        ),
      nextNews: Queue.take(news)
    }
  })
