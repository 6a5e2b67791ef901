/**
 * The hot path: one batch onto the broker, one outcome per message.
 *
 * A batch is published in passes. The first is pipelined on the channel that all workers share. When the broker closes
 * that channel because of one message, nobody can tell which message it was; the rest of the batch then goes out on
 * channels of its own, one message at a time, so that the one in flight at the next close is the culprit. Messages to
 * an exchange that is known for closing channels go that way from the start.
 *
 * Within a pass there is no Effect step per message: plain loops and callbacks inside one `Effect.async`.
 */
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import type { AmqpError } from "../Errors.js"
import { type Message, Outcome, type Publishable } from "../Message.js"
import type { ChannelEnd, ConfirmChannel, Returned } from "./amqpChannel.js"
import { messageOf } from "./amqpWire.js"
import { indexById, type Ledger, makeLedger, messageAt, refusalAt } from "./batchLedger.js"
import { monotonicMillisOf } from "./monotonic.js"

export interface BatchOptions {
  /** The channel that all workers share. */
  readonly channel: ConfirmChannel
  /** A channel for this batch alone. */
  readonly openChannel: Effect.Effect<ConfirmChannel, AmqpError>
  readonly confirmTimeoutMillis: number
  /** Exchanges that closed a channel and have taken nothing since. Read and kept up to date here. */
  readonly suspects: Set<string>
  /** The broker returned this message: it is in no queue. */
  readonly onUnroutable: (message: Message) => void
  /** The broker left a message without an answer for the whole confirm time-out. */
  readonly onStalled: () => void
}

const confirmed = Outcome.Confirmed()

/** Never for good: queues, bindings and permissions can be mended while the row waits for its retry. */
const refusedByBroker = (reason: string): Outcome => Outcome.Refused({ reason, permanent: false })

/** Publishes a batch; outcomes in its order. Ends within twice the confirm time-out, and as long again for culprits. */
export const publishBatch = Effect.fnUntraced(function* (batch: ReadonlyArray<Publishable>, options: BatchOptions) {
  const ledger = makeLedger(batch)
  const clock = yield* Effect.clock
  const startedAt = monotonicMillisOf(clock)
  yield* runPass(ledger, clock, options.channel, { ...options, alone: false, startedAt, gone: noneGone })
  if (ledger.open() > 0) yield* isolate(ledger, clock, options)
  return ledger.outcomes()
})

/** One by one, on a channel that is replaced each time a culprit closes it. */
const isolate = Effect.fnUntraced(function* (ledger: Ledger, clock: Clock.Clock, options: BatchOptions) {
  const startedAt = monotonicMillisOf(clock)
  const gone = new Map<string, string>()
  while (ledger.open() > 0) {
    if (monotonicMillisOf(clock) >= startedAt + options.confirmTimeoutMillis) {
      return ledger.abandon("no time left to look for the message that closed the channel")
    }
    const opened = yield* Effect.either(options.openChannel)
    if (Either.isLeft(opened)) return ledger.abandon(opened.left.message)
    const end = yield* runPass(ledger, clock, opened.right, { ...options, alone: true, startedAt, gone })
    if (end.kind === "done") return opened.right.close()
    if (end.culprit === undefined) continue
    const { index, message } = end.culprit
    ledger.settle(index, refusedByBroker(end.reason))
    if (end.code === 404 || end.code === 403) options.suspects.add(message.exchange)
    if (isAboutExchange(end)) gone.set(message.exchange, end.reason)
  }
})

/** A topic permission hangs on the routing key; any other 403, and each 404, hits every message to the exchange. */
const isAboutExchange = (end: { readonly code: number | undefined; readonly reason: string }): boolean =>
  end.code === 404 || (end.code === 403 && !end.reason.includes("access to topic"))

const noneGone: ReadonlyMap<string, string> = new Map()

interface PassOptions extends BatchOptions {
  /** One message at a time. */
  readonly alone: boolean
  /** After `startedAt` + confirm time-out no message is begun. On the monotonic clock. */
  readonly startedAt: number
  /** Exchanges that just refused a message of this batch, and what the broker said: no second try. */
  readonly gone: ReadonlyMap<string, string>
}

type PassEnd =
  | { readonly kind: "done" }
  | {
      readonly kind: "closed"
      readonly code: number | undefined
      readonly reason: string
      /** The only message in flight, when there was just one at a time. */
      readonly culprit: { readonly index: number; readonly message: Message } | undefined
    }

const runPass = (
  ledger: Ledger,
  clock: Clock.Clock,
  channel: ConfirmChannel,
  options: PassOptions
): Effect.Effect<PassEnd> => {
  const pass = makePass(ledger, clock, channel, options)
  const firstWaitMillis = options.startedAt + options.confirmTimeoutMillis - monotonicMillisOf(clock)
  // Interruptible by itself: inside the caller's uninterruptible region the race would else wait for the sleep to end.
  const watch = Effect.iterate(firstWaitMillis, {
    while: () => true,
    body: (waitMillis) => Effect.zipRight(Effect.sleep(waitMillis), Effect.sync(pass.expire))
  }).pipe(Effect.zipRight(Effect.never), Effect.interruptible)
  return Effect.raceFirst(pass.ended, watch)
}

const makePass = (ledger: Ledger, clock: Clock.Clock, channel: ConfirmChannel, options: PassOptions) => {
  const { alone, confirmTimeoutMillis, gone, startedAt, suspects } = options
  const queue = ledger.waiting(alone ? "all" : "first of each key")
  /** When each message in flight was written; -1 for the others. */
  const writtenAt = new Float64Array(ledger.batch.length).fill(-1)
  const unroutable = new Map<number, string>()
  let byId: ReadonlyMap<string, ReadonlyArray<number>> | undefined
  let head = 0
  let inFlight = 0
  let paused = false
  let late = false
  let ended: PassEnd | undefined
  let stop = () => {}

  const finish = (end: PassEnd) => {
    if (ended !== undefined) return
    ended = end
    stop()
  }

  const feed = () => {
    while (head < queue.length && !paused && !late && ended === undefined && !(alone && inFlight > 0)) {
      const index = queue[head++]
      if (index !== undefined && ledger.isOpen(index)) begin(index)
    }
    if (inFlight === 0 && (late || head === queue.length)) finish({ kind: "done" })
  }

  const begin = (index: number) => {
    const message = messageAt(ledger, index)
    if (message === undefined) return ledger.settle(index, refusalAt(ledger, index))
    // Left open, and with it the later ones of its key: they go out alone, after this pass.
    if (!alone && suspects.size > 0 && suspects.has(message.exchange)) return
    const refusal = gone.get(message.exchange)
    if (refusal !== undefined) return ledger.settle(index, refusedByBroker(refusal))

    writtenAt[index] = monotonicMillisOf(clock)
    inFlight++
    try {
      const taken = channel.publish(message, (acked) => answer(index, message, acked))
      if (taken !== "written") paused = true
      if (taken === "closed") notInFlight(index)
      else ledger.written(index)
    } catch (cause) {
      notInFlight(index)
      ledger.settle(index, refusedByBroker(`can't be encoded for AMQP: ${messageOf(cause)}`))
    }
  }

  const notInFlight = (index: number) => {
    writtenAt[index] = -1
    inFlight--
  }

  const answer = (index: number, message: Message, acked: boolean) => {
    if (ended !== undefined || !isInFlight(index)) return
    notInFlight(index)
    if (suspects.size > 0) suspects.delete(message.exchange)
    const returned = unroutable.get(index)
    if (returned !== undefined) {
      options.onUnroutable(message)
      ledger.settle(index, refusedByBroker(returned))
    } else if (acked) ledger.settle(index, confirmed)
    else ledger.settle(index, refusedByBroker("nacked by the broker (queue full?)"))
    const next = ledger.next(index)
    if (next !== -1 && !alone) queue.push(next)
    feed()
  }
  const isInFlight = (index: number) => (writtenAt[index] ?? -1) >= 0

  /**
   * A return names no delivery tag, so it is matched by id and address. When a message timed out and its retry is in
   * flight on the same channel, a return of the first counts against the second as well: better a needless retry than
   * a message taken for delivered that is in no queue.
   */
  const onReturn = (returned: Returned) => {
    byId ??= indexById(ledger.batch)
    for (const index of byId.get(returned.messageId) ?? []) {
      const message = messageAt(ledger, index)
      if (!isInFlight(index) || message?.exchange !== returned.exchange) continue
      if (message.routingKey === returned.routingKey) unroutable.set(index, unroutableReason(returned))
    }
  }

  const onEnd = (end: ChannelEnd) => {
    if (ended !== undefined) return
    if (end.kind === "lost") {
      ledger.abandon(`connection lost: ${end.reason}`)
      return finish({ kind: "done" })
    }
    const index = alone ? writtenAt.findIndex((at) => at >= 0) : -1
    const message = messageAt(ledger, index)
    finish({ ...end, culprit: message === undefined ? undefined : { index, message } })
  }

  /** Looks at the clock; returns after how many milliseconds to look again. */
  const expire = (): number => {
    const now = monotonicMillisOf(clock)
    if (!late && now >= startedAt + confirmTimeoutMillis) {
      late = true
      ledger.abandon("not answered before its channel was closed", isInFlight)
    }
    let stalled = false
    let oldest = now
    for (let index = 0; index < writtenAt.length; index++) {
      const at = writtenAt[index] ?? -1
      if (at < 0) continue
      if (now < at + confirmTimeoutMillis) {
        oldest = Math.min(oldest, at)
        continue
      }
      stalled = true
      notInFlight(index)
      ledger.settle(index, Outcome.Unknown({ reason: `no answer from the broker within ${confirmTimeoutMillis} ms` }))
    }
    if (stalled) options.onStalled()
    feed()
    return oldest + confirmTimeoutMillis - now
  }

  return {
    expire,
    ended: Effect.async<PassEnd>((resume) => {
      const stopListening = channel.listen({
        onReturn,
        onEnd,
        onDrain: () => {
          paused = false
          feed()
        }
      })
      stop = () => {
        stopListening()
        if (ended !== undefined) resume(Effect.succeed(ended))
      }
      const end = channel.ended()
      if (end === undefined) feed()
      else onEnd(end)
      return Effect.sync(stopListening)
    })
  }
}

const unroutableReason = ({ code, exchange, routingKey, text }: Returned): string =>
  code === 312
    ? `unroutable: no queue is bound for exchange '${exchange}' and routing key '${routingKey}' (312 NO_ROUTE)`
    : `returned by the broker: ${code} ${text} for exchange '${exchange}' and routing key '${routingKey}'`
