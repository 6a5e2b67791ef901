/**
 * Scripted AMQP channels and sessions: the test plays the broker.
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Queue from "effect/Queue"
import { AmqpError } from "../../src/Errors.js"
import type { ChannelEnd, ChannelListener, ConfirmChannel } from "../../src/internal/amqpChannel.js"
import type { AmqpSession, Inspection, SessionNews } from "../../src/internal/amqpSession.js"
import { type Message, type Publishable, Refusal } from "../../src/Message.js"

export const message = (id: string, over: Partial<Message> = {}): Message => ({
  id,
  exchange: "",
  routingKey: "campaign_click_trigger",
  type: "campaign_click",
  timestampSeconds: 1,
  headers: {},
  body: Buffer.from("{}"),
  ...over
})

export const event = (id: string, orderKey?: string, over: Partial<Message> = {}): Publishable => ({
  message: Either.right(message(id, over)),
  orderKey
})

export const refused = (reason: string, orderKey?: string, permanent = false): Publishable => ({
  message: Either.left(new Refusal({ reason, permanent })),
  orderKey
})

/** A message that arrived at the scripted broker, and what the broker can do about it. */
export interface Written {
  readonly id: string
  readonly ack: Effect.Effect<void>
  readonly nack: Effect.Effect<void>
  readonly giveBack: Effect.Effect<void>
}

export interface ScriptedChannel {
  readonly channel: ConfirmChannel
  /** Waits for the next message. */
  readonly next: Effect.Effect<Written>
  /** Waits for this many messages. */
  readonly nextOf: (count: number) => Effect.Effect<ReadonlyArray<Written>>
  /** How many messages arrived that the test has not taken yet. */
  readonly unread: Effect.Effect<number>
  readonly drain: Effect.Effect<void>
  readonly end: (end: ChannelEnd) => Effect.Effect<void>
  /** What `publish` says to a message; may throw. */
  readonly script: { take: (message: Message) => "written" | "full" | "closed" }
  readonly state: { closedByUs: boolean; listeners: () => number }
}

export const closedBy = (code: number, text: string): ChannelEnd => ({
  kind: "closed",
  code,
  reason: `${code} ${text}`
})
export const lost: ChannelEnd = { kind: "lost", reason: "gone" }

export const scriptedChannel = Effect.gen(function* () {
  const arrived = yield* Queue.unbounded<Written>()
  const listeners = new Set<ChannelListener>()
  let ended: ChannelEnd | undefined
  const script: ScriptedChannel["script"] = { take: () => "written" }
  const state = { closedByUs: false, listeners: () => listeners.size }
  const next = Queue.take(arrived)
  const scripted: ScriptedChannel = {
    channel: {
      publish: (sent, onAnswer) => {
        const taken = script.take(sent)
        if (taken === "closed") return taken
        arrived.unsafeOffer({
          id: sent.id,
          ack: Effect.sync(() => onAnswer(true)),
          nack: Effect.sync(() => onAnswer(false)),
          giveBack: Effect.sync(() => {
            for (const listener of listeners) {
              listener.onReturn({
                messageId: sent.id,
                exchange: sent.exchange,
                routingKey: sent.routingKey,
                code: 312,
                text: "NO_ROUTE"
              })
            }
          })
        })
        return taken
      },
      listen: (listener) => {
        listeners.add(listener)
        return () => {
          listeners.delete(listener)
        }
      },
      ended: () => ended,
      close: () => {
        state.closedByUs = true
      }
    },
    next,
    nextOf: (count) => Effect.all(Array.from({ length: count }, () => next)),
    unread: Effect.zipRight(settle, Queue.size(arrived)),
    drain: Effect.sync(() => {
      for (const listener of [...listeners]) listener.onDrain()
    }),
    end: (why) =>
      Effect.sync(() => {
        ended = why
        for (const listener of [...listeners]) listener.onEnd(why)
        listeners.clear()
      }),
    script,
    state
  }
  return scripted
})

/** Lets every fiber that can run go as far as it can. */
export const settle: Effect.Effect<void> = Effect.repeatN(Effect.yieldNow(), 50)

export interface ScriptedSession {
  readonly session: AmqpSession
  /** The channels opened so far: the shared one first. */
  readonly nextChannel: Effect.Effect<ScriptedChannel>
  readonly news: (news: SessionNews) => Effect.Effect<void>
  readonly dropped: Array<string>
  readonly declared: Array<string>
  /** Queues and exchanges that are not as they should be; all others are present. */
  readonly odd: Map<string, Inspection>
  readonly inspected: Array<string>
}

/** `onNews` is what the publisher gave to `open`. */
export const scriptedSession = (
  onNews: (news: SessionNews) => void,
  odd: ReadonlyMap<string, Inspection> = new Map()
) =>
  Effect.gen(function* () {
    const opened = yield* Queue.unbounded<ScriptedChannel>()
    const channels: Array<ScriptedChannel> = []
    const state = { blocked: undefined as string | undefined, lost: false }
    const dropped: Array<string> = []
    const declared: Array<string> = []
    const inspected: Array<string> = []
    const oddities = new Map(odd)
    const inspect = (name: string) =>
      Effect.sync((): Inspection => {
        inspected.push(name)
        return oddities.get(name) ?? { kind: "present" }
      })
    const tell = (news: SessionNews) =>
      Effect.gen(function* () {
        if (news.kind === "blocked") state.blocked = news.reason
        else state.blocked = undefined
        if (news.kind === "lost") {
          if (state.lost) return
          state.lost = true
          for (const channel of channels) yield* channel.end(news)
        }
        onNews(news)
      })
    const scripted: ScriptedSession = {
      session: {
        openChannel: Effect.gen(function* () {
          if (state.lost) return yield* new AmqpError({ operation: "open channel", reason: "lost" })
          const channel = yield* scriptedChannel
          channels.push(channel)
          opened.unsafeOffer(channel)
          return channel.channel
        }),
        inspectQueue: inspect,
        inspectExchange: inspect,
        declareQueue: (queue) =>
          Effect.sync((): Inspection => {
            declared.push(queue)
            oddities.delete(queue)
            return { kind: "present" }
          }),
        blockedReason: () => state.blocked,
        drop: (reason) => {
          dropped.push(reason)
          Effect.runSync(tell({ kind: "lost", reason }))
        }
      },
      nextChannel: Queue.take(opened),
      news: tell,
      dropped,
      declared,
      odd: oddities,
      inspected
    }
    return scripted
  })
