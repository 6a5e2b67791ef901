/**
 * The queues and exchanges that routes name: looked at on each connect, and queues made where they are missing.
 *
 * A queue that exists is right as it is, whatever its properties: they are its owner's business.
 */
import * as Effect from "effect/Effect"
import type { AmqpError } from "../Errors.js"
import type { Message } from "../Message.js"
import type { SettingsShape } from "../Settings.js"
import type { AmqpSession } from "./amqpSession.js"
import { monotonicMillis } from "./monotonic.js"

type QueueSettings = Pick<SettingsShape, "routes" | "declareQueues" | "queueType">

/**
 * Checks every queue and exchange, declares missing queues when the settings say so, and warns once for each kind of
 * trouble. Returns the exchanges that are missing. Fails only when the session does.
 */
export const checkTopology = Effect.fn("AmqpPublisher.checkTopology")(function* (
  session: AmqpSession,
  settings: QueueSettings
) {
  const refusals: Array<string> = []
  const missingQueues: Array<string> = []
  for (const queue of settings.routes.queues) {
    const seen = yield* session.inspectQueue(queue)
    if (seen.kind === "refused") refusals.push(`queue ${queue}: ${seen.reason}`)
    if (seen.kind === "missing") {
      if (settings.declareQueues) yield* declare(session, settings, queue)
      else missingQueues.push(queue)
    }
  }
  const missingExchanges: Array<string> = []
  for (const exchange of settings.routes.exchanges) {
    const seen = yield* session.inspectExchange(exchange)
    if (seen.kind === "refused") refusals.push(`exchange ${exchange}: ${seen.reason}`)
    if (seen.kind === "missing") missingExchanges.push(exchange)
  }
  if (missingQueues.length > 0) {
    yield* Effect.logWarning(
      `these queues are missing, and PG_LISTENER_DECLARE_QUEUES is off, so events for them will be refused: ${missingQueues.join(", ")}`
    )
  }
  if (missingExchanges.length > 0) {
    yield* Effect.logWarning(
      `these exchanges are missing, so events for them will be refused: ${missingExchanges.join(", ")}`
    )
  }
  if (refusals.length > 0) {
    yield* Effect.logWarning(`the broker does not let us look, so we go on without: ${refusals.join("; ")}`)
  }
  return missingExchanges
})

/** Queues of ours that the broker had not when a message came for them; looked after before the next publish. */
export interface VanishedQueues {
  readonly note: (message: Message) => void
  readonly any: () => boolean
  /** Declares them again, unless somebody else was faster. At most once a second per queue; bounded; never fails. */
  readonly repair: (session: AmqpSession) => Effect.Effect<void>
}

export const makeVanishedQueues = (settings: QueueSettings): VanishedQueues => {
  const ours = new Set(settings.declareQueues ? settings.routes.queues : [])
  const vanished = new Set<string>()
  const lastLookMillis = new Map<string, number>()

  const look = Effect.fnUntraced(function* (session: AmqpSession, queue: string) {
    const now = yield* monotonicMillis
    if (now - (lastLookMillis.get(queue) ?? Number.NEGATIVE_INFINITY) < lookEveryMillis) return
    lastLookMillis.set(queue, now)
    vanished.delete(queue)
    const seen = yield* session.inspectQueue(queue)
    if (seen.kind === "missing") yield* declare(session, settings, queue)
  })
  return {
    note: ({ exchange, routingKey }) => {
      if (exchange === "" && ours.has(routingKey)) vanished.add(routingKey)
    },
    any: () => vanished.size > 0,
    repair: (session) =>
      Effect.forEach([...vanished], (queue) => look(session, queue), { discard: true }).pipe(
        Effect.catchAll((error) => Effect.logWarning(`could not look after a vanished queue: ${error.message}`)),
        Effect.interruptible,
        Effect.timeoutOption("2 seconds"),
        Effect.asVoid
      )
  }
}

const lookEveryMillis = 1_000

/** A refused declaration is one queue's trouble, and must not keep the session from the others. */
const declare = (session: AmqpSession, settings: QueueSettings, queue: string): Effect.Effect<void, AmqpError> =>
  session
    .declareQueue(queue, settings.queueType)
    .pipe(
      Effect.flatMap((made) =>
        made.kind === "refused"
          ? Effect.logWarning(`queue ${queue} is missing and can't be declared: ${made.reason}`)
          : Effect.logInfo(`queue ${queue} was missing: declared as a durable ${settings.queueType} queue`)
      )
    )
