/**
 * RabbitMQ in memory, behind the real publisher: sessions and channels whose answer to each message is the next word of
 * a script. It knows what became of each message, and says so when order is broken.
 */
import * as Effect from "effect/Effect"
import { AmqpError } from "../../../src/Errors.js"
import type { ChannelEnd, ChannelListener, ConfirmChannel } from "../../../src/internal/amqpChannel.js"
import type { AmqpSession, AmqpSessions, SessionNews } from "../../../src/internal/amqpSession.js"
import type { Message } from "../../../src/Message.js"
import { type Process, unanswered } from "./outboxModel.js"
import { type Simulation, words } from "./simulation.js"

export const answerWords = [
  "ack",
  "nack",
  "return, then ack",
  "silence",
  "queued, silence",
  "queued, ack after the time-out",
  "channel closed",
  "queued, channel closed",
  "connection lost",
  "queued, connection lost",
  "blocked, then closed",
  "ack, but wait for the drain"
] as const
export type AnswerWord = (typeof answerWords)[number]

/**
 * What the broker made known about a message. `suspected`: it was the only one in flight when its channel was closed; the
 * relay may blame it, or try it once more on a channel of its own.
 */
export type Word = "confirmed" | "refused" | "suspected"

export interface Delivery {
  readonly id: string
  readonly atMillis: number
}

export interface BrokerModel {
  readonly sessionsFor: (process: Process) => AmqpSessions["Type"]
  /** Every arrival of a message in a queue. */
  readonly deliveries: ReadonlyArray<Delivery>
  /** Every word about a message that was told since then. */
  readonly wordsSince: (id: string, sinceMillis: number) => ReadonlySet<Word>
  readonly wasWrittenSince: (id: string, sinceMillis: number) => boolean
  readonly wasConfirmed: (id: string) => boolean
  readonly goAway: () => void
  readonly comeBack: () => void
  readonly block: () => void
  readonly unblock: () => void
}

export interface BrokerOptions {
  readonly answers: ReadonlyArray<AnswerWord>
  readonly isPoison: (id: string) => boolean
  /** Each message, at the moment it is written. */
  readonly onWrite: (id: string) => void
}

interface Line {
  readonly process: Process
  readonly end: (reason: string) => void
  readonly tell: (news: SessionNews) => void
}

export const makeBrokerModel = (simulation: Simulation, options: BrokerOptions): BrokerModel => {
  const deliveries: Array<Delivery> = []
  const told: Array<{ readonly id: string; readonly word: Word; readonly atMillis: number }> = []
  const writtenAtMillis = new Map<string, number>()
  const lines = new Set<Line>()
  const nextAnswer = words(options.answers, "ack")
  let up = true
  let blocked = false

  const say = (id: string, word: Word) => told.push({ id, word, atMillis: simulation.nowMillis() })

  const open = (process: Process, onNews: (news: SessionNews) => void): AmqpSession => {
    const ends = new Set<(end: ChannelEnd) => void>()
    let lost: string | undefined
    let blockedReason: string | undefined = blocked ? "memory" : undefined
    const line: Line = {
      process,
      end: (reason) => {
        if (lost !== undefined) return
        lost = reason
        lines.delete(line)
        for (const end of [...ends]) end({ kind: "lost", reason })
        onNews({ kind: "lost", reason })
      },
      tell: (news) => {
        if (lost !== undefined) return
        blockedReason = news.kind === "blocked" ? news.reason : undefined
        onNews(news)
      }
    }
    lines.add(line)

    const openChannel = Effect.gen(function* () {
      yield* Effect.sleep(1)
      if (process.killed) return yield* unanswered
      if (lost !== undefined) return yield* new AmqpError({ operation: "open channel", reason: lost })
      return makeChannel(line, ends)
    })
    return {
      openChannel,
      inspectQueue: () => Effect.succeed({ kind: "present" }),
      inspectExchange: () => Effect.succeed({ kind: "present" }),
      declareQueue: () => Effect.succeed({ kind: "present" }),
      blockedReason: () => blockedReason,
      drop: line.end
    }
  }

  const makeChannel = (line: Line, ends: Set<(end: ChannelEnd) => void>): ConfirmChannel => {
    const listeners = new Set<ChannelListener>()
    const open = new Set<object>()
    let ended: ChannelEnd | undefined
    const end = (why: ChannelEnd) => {
      if (ended !== undefined) return
      ended = why
      ends.delete(end)
      for (const listener of [...listeners]) listener.onEnd(why)
      listeners.clear()
    }
    ends.add(end)

    const carryOut = (word: AnswerWord, message: Message, onAnswer: (acked: boolean) => void) => {
      const { id } = message
      const flight = {}
      open.add(flight)
      /** In the future, and only when the channel and the process are still there. */
      const later = (millis: number, task: () => void) =>
        simulation.after(millis, () => {
          if (ended === undefined && !line.process.killed) task()
        })
      const queue = () => simulation.after(1, () => deliveries.push({ id, atMillis: simulation.nowMillis() }))
      const answer = (millis: number, acked: boolean, toldAs: Word) =>
        later(millis, () => {
          open.delete(flight)
          say(id, toldAs)
          onAnswer(acked)
        })
      const close = () =>
        later(2, () => {
          // With others in flight nobody can know whose fault it was.
          if (open.size === 1) say(id, "suspected")
          end({ kind: "closed", code: 406, reason: "406 PRECONDITION_FAILED" })
        })
      switch (word) {
        case "ack":
        case "ack, but wait for the drain":
          queue()
          answer(2, true, "confirmed")
          if (word !== "ack") later(3, () => [...listeners].forEach((listener) => void listener.onDrain()))
          return
        case "nack":
          return answer(2, false, "refused")
        case "return, then ack":
          later(1, () => {
            const { exchange, routingKey } = message
            const returned = { messageId: id, exchange, routingKey, code: 312, text: "NO_ROUTE" }
            for (const listener of listeners) listener.onReturn(returned)
          })
          return answer(2, true, "refused")
        case "silence":
          return
        case "queued, silence":
          return queue()
        case "queued, ack after the time-out":
          queue()
          // Too late to count: nobody may take it for an answer.
          return later(11_000, () => onAnswer(true))
        case "queued, channel closed":
          queue()
          return close()
        case "channel closed":
          return close()
        case "queued, connection lost":
          queue()
          return later(2, () => line.end("reset"))
        case "connection lost":
          return later(2, () => line.end("reset"))
        case "blocked, then closed":
          simulation.after(1, () => line.tell({ kind: "blocked", reason: "memory" }))
          return simulation.after(4_000, () => line.end("closed by the operator"))
      }
    }

    return {
      publish: (message, onAnswer) => {
        if (ended !== undefined) return "closed"
        options.onWrite(message.id)
        writtenAtMillis.set(message.id, simulation.nowMillis())
        const scripted = nextAnswer()
        const word =
          options.isPoison(message.id) && scripted.startsWith("ack") ? "nack" : blocked ? "silence" : scripted
        carryOut(word, message, onAnswer)
        return word === "ack, but wait for the drain" ? "full" : "written"
      },
      listen: (listener) => {
        listeners.add(listener)
        return () => {
          listeners.delete(listener)
        }
      },
      ended: () => ended,
      close: () => {
        ends.delete(end)
      }
    }
  }

  return {
    deliveries,
    wordsSince: (id, sinceMillis) =>
      new Set(told.filter((one) => one.id === id && one.atMillis >= sinceMillis).map(({ word }) => word)),
    wasWrittenSince: (id, sinceMillis) => (writtenAtMillis.get(id) ?? -1) >= sinceMillis,
    wasConfirmed: (id) => told.some((one) => one.id === id && one.word === "confirmed"),
    goAway: () => {
      up = false
      for (const line of [...lines]) line.end("the broker went away")
    },
    comeBack: () => {
      up = true
    },
    block: () => {
      blocked = true
      for (const line of [...lines]) line.tell({ kind: "blocked", reason: "memory" })
    },
    unblock: () => {
      blocked = false
      for (const line of [...lines]) line.tell({ kind: "unblocked" })
    },
    sessionsFor: (process) => ({
      open: (_url, onNews) =>
        Effect.gen(function* () {
          yield* Effect.sleep(1)
          if (process.killed) return yield* unanswered
          if (!up) return yield* new AmqpError({ operation: "connect", reason: "ECONNREFUSED" })
          const session = open(process, onNews)
          yield* Effect.addFinalizer(() => Effect.sync(() => session.drop("closed by us")))
          return session
        })
    })
  }
}
