/**
 * One confirm channel: messages out, and the broker's word on each of them back.
 *
 * When amqplib loses a channel it answers every pending confirm with an error that looks like a nack, and with the same
 * words whether the channel or the whole connection is gone. Here a channel ends once, and says which of the two it was.
 */
import * as Amqp from "amqplib"
import type { Message } from "../Message.js"
import { refusalOf, returnedOf } from "./amqpWire.js"

/**
 * Why a channel can't be used any more.
 *
 * - `closed`: the broker closed this channel because of something published on it; the connection lives.
 * - `lost`: the connection is gone, or is being given up.
 */
export type ChannelEnd =
  | { readonly kind: "closed"; readonly code: number | undefined; readonly reason: string }
  | { readonly kind: "lost"; readonly reason: string }

/** A `mandatory` message that the broker could not route. Arrives before the ack of the same message. */
export interface Returned {
  readonly messageId: string
  readonly exchange: string
  readonly routingKey: string
  readonly code: number
  readonly text: string
}

export interface ChannelListener {
  readonly onReturn: (returned: Returned) => void
  readonly onDrain: () => void
  /** Called at most once. No answer of this channel is delivered after it. */
  readonly onEnd: (end: ChannelEnd) => void
}

/** A channel in confirm mode. */
export interface ConfirmChannel {
  /**
   * Writes one message; `onAnswer(true)` is its ack, `onAnswer(false)` its nack. Throws when the message can't be
   * encoded; nothing was written then.
   *
   * - `written`: go on.
   * - `full`: written, but wait for `onDrain` before the next.
   * - `closed`: not written; `onEnd` has come or is about to.
   */
  readonly publish: (message: Message, onAnswer: (acked: boolean) => void) => "written" | "full" | "closed"
  /** Returns what takes the listener off again. */
  readonly listen: (listener: ChannelListener) => () => void
  readonly ended: () => ChannelEnd | undefined
  /** Asks the broker to close it, and does not wait. */
  readonly close: () => void
}

export const makeChannel = (
  channel: Amqp.ConfirmChannel,
  channels: Set<(end: ChannelEnd) => void>,
  sessionLost: () => string | undefined
): ConfirmChannel => {
  const listeners = new Set<ChannelListener>()
  let ended: ChannelEnd | undefined
  let silent = false

  const end = (why: ChannelEnd) => {
    if (ended !== undefined) return
    ended = why
    silent = true
    channels.delete(end)
    for (const listener of [...listeners]) listener.onEnd(why)
    listeners.clear()
  }
  channels.add(end)
  channel.on("error", (error) => end({ kind: "closed", ...refusalOf(error) }))
  // Ahead of amqplib's own listener, which answers every pending confirm with an error that looks like a nack. A close
  // without an `error` before it is the connection's; its own close event follows and brings the reason.
  channel.prependListener("close", () => {
    silent = true
  })
  channel.on("return", (message) => {
    const returned = returnedOf(message)
    for (const listener of listeners) listener.onReturn(returned)
  })
  channel.on("drain", () => {
    for (const listener of [...listeners]) listener.onDrain()
  })
  const lost = sessionLost()
  if (lost !== undefined) end({ kind: "lost", reason: lost })

  return {
    publish: (message, onAnswer) => {
      if (silent) return "closed"
      const properties = {
        persistent: true,
        mandatory: true,
        messageId: message.id,
        type: message.type,
        timestamp: message.timestampSeconds,
        contentType: "application/json",
        appId: "pg-listener",
        headers: message.headers
      }
      try {
        const more = channel.publish(message.exchange, message.routingKey, message.body, properties, (error) => {
          if (!silent) onAnswer(error === null)
        })
        return more ? "written" : "full"
      } catch (cause) {
        if (cause instanceof Amqp.IllegalOperationError) return "closed"
        throw cause
      }
    },
    listen: (listener) => {
      listeners.add(listener)
      return () => {
        listeners.delete(listener)
      }
    },
    ended: () => ended,
    close: () => {
      channels.delete(end)
      try {
        channel.close().catch(() => {})
      } catch {
        // amqplib throws when the channel is closed already, which is what was asked for.
      }
    }
  }
}
