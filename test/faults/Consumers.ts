/**
 * The far end: consumers on every queue that note each delivery. They connect directly, and again whenever the broker
 * was away. A message is acknowledged once it is noted, so that what was in flight when a broker dies comes again.
 */
import * as Amqp from "amqplib"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type Delivery, queues } from "./Model.js"

export interface Consumers {
  /** No more messages are taken off this queue. */
  readonly pause: (queue: string) => Effect.Effect<void>
  readonly resume: (queue: string) => Effect.Effect<void>
  /** Whether every queue that is there, and not paused, is consumed now. */
  readonly connected: () => boolean
  /** Deletes the queue while it is empty; fails when it is not. Its consumer is told and comes back by itself. */
  readonly deleteWhenEmpty: (queue: string) => Effect.Effect<void, ConsumersFailed>
}

export class ConsumersFailed extends Data.TaggedError("ConsumersFailed")<{ readonly reason: string }> {
  override get message(): string {
    return `the campaign's consumers: ${this.reason}`
  }
}

const bounded = <A>(question: () => Promise<A>): Effect.Effect<A, ConsumersFailed> =>
  Effect.tryPromise({ try: question, catch: (error) => new ConsumersFailed({ reason: `${error}` }) }).pipe(
    Effect.timeoutFail({
      duration: "10 seconds",
      onTimeout: () => new ConsumersFailed({ reason: "no answer in 10 s" })
    })
  )

const keyOf = (body: Buffer): string => {
  const parsed: unknown = JSON.parse(body.toString("utf8"))
  const key = typeof parsed === "object" && parsed !== null && "key" in parsed ? parsed.key : undefined
  return typeof key === "string" ? key : `no key in ${body.toString("utf8").slice(0, 80)}`
}

/** Consumes until the scope ends. */
export const make = (
  url: string,
  onDelivery: (delivery: Delivery) => void
): Effect.Effect<Consumers, never, Scope.Scope> =>
  Effect.gen(function* () {
    const clock = yield* Effect.clock
    const gates = new Map<string, { readonly open: Effect.Latch; cancel: () => void }>()
    for (const queue of queues) gates.set(queue, { open: yield* Effect.makeLatch(true), cancel: () => {} })
    let session = 0
    let model: Amqp.ChannelModel | undefined

    /** Consumes one queue on a channel of its own, until it is cancelled, deleted, or the channel or connection ends. */
    const consume = (connection: Amqp.ChannelModel, number: number, queue: string) =>
      Effect.gen(function* () {
        const gate = gates.get(queue)
        if (gate === undefined) return
        yield* gate.open.await
        const channel = yield* Effect.acquireRelease(
          bounded(() => connection.createChannel()),
          (open) => Effect.ignore(Effect.tryPromise(() => open.close()).pipe(Effect.interruptible, Effect.timeout(500)))
        )
        channel.on("error", () => {})
        let stop = () => {}
        const stopped = Effect.async<void>((resume) => {
          stop = () => resume(Effect.void)
          channel.once("close", stop)
        })
        yield* bounded(() => channel.checkQueue(queue))
        yield* bounded(() => channel.prefetch(500))
        const { consumerTag } = yield* bounded(() =>
          channel.consume(queue, (message) => {
            // The broker's word for "your queue is gone".
            if (message === null) return stop()
            onDelivery({
              key: keyOf(message.content),
              messageId: `${message.properties.messageId}`,
              queue,
              at: clock.unsafeCurrentTimeMillis(),
              redelivered: message.fields.redelivered,
              session: number
            })
            channel.ack(message)
          })
        )
        gate.cancel = () => {
          channel.cancel(consumerTag).then(stop, stop)
        }
        yield* stopped
      }).pipe(
        Effect.scoped,
        Effect.catchAll(() => Effect.void),
        Effect.zipRight(Effect.sleep("250 millis")),
        Effect.forever
      )

    const life = Effect.gen(function* () {
      const connection = yield* Effect.acquireRelease(
        bounded(() => Amqp.connect(url, { timeout: 5000 })),
        (open) => Effect.ignore(Effect.tryPromise(() => open.close()).pipe(Effect.interruptible, Effect.timeout(500)))
      )
      session++
      model = connection
      connection.on("error", () => {})
      const lost = Effect.async<void>((resume) => {
        connection.once("close", () => {
          if (model === connection) model = undefined
          resume(Effect.void)
        })
      })
      yield* Effect.raceFirst(
        lost,
        Effect.forEach(queues, (queue) => consume(connection, session, queue), { concurrency: "unbounded" })
      )
    })
    yield* life.pipe(
      Effect.scoped,
      Effect.catchAll(() => Effect.void),
      Effect.zipRight(Effect.sleep("250 millis")),
      Effect.forever,
      Effect.forkScoped
    )

    return {
      connected: () => model !== undefined,
      pause: (queue) =>
        Effect.suspend(() => {
          const gate = gates.get(queue)
          if (gate === undefined) return Effect.void
          return Effect.zipRight(gate.open.close, Effect.sync(gate.cancel))
        }),
      resume: (queue) => Effect.suspend(() => gates.get(queue)?.open.open ?? Effect.void),
      deleteWhenEmpty: (queue) =>
        Effect.scoped(
          Effect.gen(function* () {
            const connection = model
            if (connection === undefined) return yield* new ConsumersFailed({ reason: "not connected" })
            const channel = yield* Effect.acquireRelease(
              bounded(() => connection.createChannel()),
              (open) =>
                Effect.ignore(Effect.tryPromise(() => open.close()).pipe(Effect.interruptible, Effect.timeout(500)))
            )
            channel.on("error", () => {})
            yield* bounded(() => channel.deleteQueue(queue, { ifEmpty: true }))
          })
        )
    }
  })
