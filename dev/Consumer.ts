/**
 * A consumer on a queue, as the services at the far end have one: for the tests and the demo.
 */
import * as Amqp from "amqplib"
import * as Clock from "effect/Clock"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"

/** Could not consume, or not enough messages came in time. */
export class ConsumerError extends Data.TaggedError("ConsumerError")<{
  readonly queue: string
  readonly reason: string
}> {
  override get message(): string {
    return `queue ${this.queue}: ${this.reason}`
  }
}

export interface Received {
  readonly messageId: string
  readonly body: string
  readonly properties: Amqp.MessageProperties
  readonly headers: Readonly<Record<string, unknown>>
  readonly exchange: string
  readonly routingKey: string
  readonly redelivered: boolean
  /** Epoch milliseconds. */
  readonly receivedAt: number
}

export interface Consumer {
  /** The next `n` messages, in the order of their arrival; fails and says what came when they do not come in time. */
  readonly take: (n: number, within: Duration.DurationInput) => Effect.Effect<Array<Received>, ConsumerError>
  /** All that have come so far, taken or not. */
  readonly received: ReadonlyArray<Received>
}

/**
 * Consumes until the scope ends. A queue that is not there yet is declared, durable and classic. Messages are
 * acknowledged as they come.
 */
export const consume = (url: string, queue: string): Effect.Effect<Consumer, ConsumerError, Scope.Scope> =>
  Effect.gen(function* () {
    const failed = (error: unknown) =>
      new ConsumerError({ queue, reason: error instanceof Error ? error.message : `${error}` })
    const bounded = <A>(run: () => Promise<A>) =>
      Effect.tryPromise({ try: run, catch: failed }).pipe(
        Effect.timeoutFail({ duration: "10 seconds", onTimeout: () => failed("no answer from the broker within 10 s") })
      )
    const clock = yield* Effect.clock
    const arrivals = yield* Queue.unbounded<Received>()
    const received: Array<Received> = []

    const connection = yield* Effect.acquireRelease(
      bounded(() => Amqp.connect(url, { timeout: 5000 })),
      (open) =>
        Effect.ignore(
          Effect.interruptible(
            Effect.timeout(
              Effect.tryPromise(() => open.close()),
              "1 second"
            )
          )
        )
    )
    // The broker may be killed under us; what did not arrive is seen by `take`.
    connection.on("error", () => {})
    const openChannel = Effect.tap(
      bounded(() => connection.createChannel()),
      (channel) => Effect.sync(() => channel.on("error", () => {}))
    )
    // A look at a missing queue closes the channel, hence one for the look alone.
    const look = yield* openChannel
    const isThere = yield* Effect.isSuccess(bounded(() => look.checkQueue(queue)))
    const channel = yield* openChannel
    if (!isThere) yield* bounded(() => channel.assertQueue(queue, { durable: true }))
    yield* bounded(() =>
      channel.consume(
        queue,
        (message) => {
          if (message === null) return
          const { properties, fields } = message
          const one: Received = {
            messageId: `${properties.messageId}`,
            body: message.content.toString("utf8"),
            properties,
            headers: properties.headers ?? {},
            exchange: fields.exchange,
            routingKey: fields.routingKey,
            redelivered: fields.redelivered,
            receivedAt: clock.unsafeCurrentTimeMillis()
          }
          received.push(one)
          arrivals.unsafeOffer(one)
        },
        { noAck: true }
      )
    )

    return {
      received,
      take: (n, within) =>
        Effect.gen(function* () {
          const until = (yield* Clock.currentTimeMillis) + Duration.toMillis(within)
          const taken: Array<Received> = []
          while (taken.length < n) {
            const left = until - (yield* Clock.currentTimeMillis)
            const next = yield* Effect.timeoutOption(Queue.take(arrivals), Math.max(left, 0))
            if (Option.isNone(next)) {
              const came = taken.map(({ body }) => body.slice(0, 100)).join(", ")
              return yield* failed(`${taken.length} of ${n} messages came in time: [${came}]`)
            }
            taken.push(next.value)
          }
          return taken
        })
    }
  })
