/**
 * The queues of one run, and how many messages they hold.
 */
import * as Amqp from "amqplib"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ManagementApi } from "../dev/ManagementApi.js"
import { BenchError } from "./BenchError.js"

export type QueueType = "classic" | "quorum"

export interface Queues {
  /** Ready messages in all of them together. */
  readonly depth: Effect.Effect<number, BenchError>
}

const failed = (error: unknown) => new BenchError({ what: "RabbitMQ", reason: `${error}` })

/** Declares them, durable, and watches them until the scope ends. */
export const open = (options: {
  readonly api: ManagementApi
  readonly amqpUrl: string
  readonly names: ReadonlyArray<string>
  readonly type: QueueType
}): Effect.Effect<Queues, BenchError, Scope.Scope> =>
  Effect.gen(function* () {
    const { amqpUrl, api, names, type } = options
    yield* Effect.forEach(names, (name) => api.declareQueue(name, { "x-queue-type": type })).pipe(
      Effect.mapError(failed)
    )
    const connection = yield* Effect.acquireRelease(
      Effect.tryPromise({ try: () => Amqp.connect(amqpUrl, { noDelay: true }), catch: failed }),
      (open) => Effect.promise(() => open.close().catch(() => {}))
    )
    connection.on("error", () => {})
    const channel = yield* Effect.tryPromise({ try: () => connection.createChannel(), catch: failed })
    channel.on("error", () => {})
    return {
      depth: Effect.tryPromise({
        try: () => Promise.all(names.map((name) => channel.checkQueue(name))),
        catch: failed
      }).pipe(
        Effect.timeoutFail({ duration: "10 seconds", onTimeout: () => failed("no answer within 10 s") }),
        Effect.map((all) => all.reduce((sum, { messageCount }) => sum + messageCount, 0))
      )
    }
  })
