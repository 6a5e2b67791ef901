/**
 * One connection to RabbitMQ, as the publisher needs it. The only file that talks to amqplib.
 *
 * Two habits of amqplib shape it: an emitter without an `error` listener takes the connection (or the process) down, and
 * neither `connect` nor `close` ever settles with a frozen peer. So every emitter is listened to, and every wait bounded.
 */
import * as Amqp from "amqplib"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { AmqpError } from "../Errors.js"
import { type ChannelEnd, type ConfirmChannel, makeChannel } from "./amqpChannel.js"
import { amqpAdvice, amqpTarget } from "./amqpTarget.js"
import { messageOf, refusalOf } from "./amqpWire.js"
import { sentences } from "./sentences.js"

/** What the broker says about a queue or an exchange when asked without creating it. */
export type Inspection =
  | { readonly kind: "present" }
  | { readonly kind: "missing" }
  /** It may well be there; the broker doesn't let us look. */
  | { readonly kind: "refused"; readonly reason: string }

/** News of the whole session, for the one loop that owns it. `lost` comes once, and last. */
export type SessionNews =
  | { readonly kind: "blocked"; readonly reason: string }
  | { readonly kind: "unblocked" }
  | { readonly kind: "lost"; readonly reason: string }

export interface AmqpSession {
  readonly openChannel: Effect.Effect<ConfirmChannel, AmqpError>
  readonly inspectQueue: (queue: string) => Effect.Effect<Inspection, AmqpError>
  readonly inspectExchange: (exchange: string) => Effect.Effect<Inspection, AmqpError>
  /** Declares a durable queue; `present` when it is there now. */
  readonly declareQueue: (queue: string, type: "classic" | "quorum") => Effect.Effect<Inspection, AmqpError>
  /** The broker's reason while it takes no messages. */
  readonly blockedReason: () => string | undefined
  /** Gives the session up at once: every channel ends as `lost`, and the news say so. */
  readonly drop: (reason: string) => void
}

/** How sessions are opened; scripted in tests. */
export class AmqpSessions extends Context.Tag("pg-listener/AmqpSessions")<
  AmqpSessions,
  {
    /** Connects. The session closes with the scope, within {@link closeTimeout}. */
    readonly open: (
      url: string,
      onNews: (news: SessionNews) => void
    ) => Effect.Effect<AmqpSession, AmqpError, Scope.Scope>
  }
>() {
  static readonly layer: Layer.Layer<AmqpSessions> = Layer.succeed(this, { open: (url, onNews) => open(url, onNews) })
}

/** For connecting, and for each question asked on the connection. */
export const replyTimeout: Duration.DurationInput = "10 seconds"
/** After this long without an answer to our goodbye, the socket is destroyed. */
export const closeTimeout: Duration.DurationInput = "2 seconds"

/** Says goodbye, and hangs up whatever the answer, or when none comes. */
export const closeBounded = (peer: {
  readonly close: () => Promise<unknown>
  readonly destroy: () => void
}): Effect.Effect<void> =>
  Effect.tryPromise(peer.close).pipe(
    Effect.interruptible,
    Effect.timeoutOption(closeTimeout),
    Effect.ignore,
    Effect.zipRight(Effect.sync(peer.destroy))
  )

const open = (url: string, onNews: (news: SessionNews) => void) =>
  Effect.gen(function* () {
    const target = amqpTarget(url)
    if (Either.isLeft(target)) {
      const { mend, problem, setting } = target.left
      return yield* new AmqpError({ operation: "connect", reason: `${setting} ${sentences(problem, mend)}` })
    }
    const { connect, tls } = target.right
    // Destroys the socket in whatever state it is: connecting, shaking hands, open, or half closed.
    const socket = new AbortController()
    let goodbye = () => Promise.resolve()
    yield* Effect.addFinalizer(() => closeBounded({ close: () => goodbye(), destroy: () => socket.abort() }))
    return yield* ask("connect", () =>
      Amqp.connect(connect, { ...socketOptions, ...tls, signal: socket.signal } as Amqp.SocketOptions).then(
        (model) => {
          goodbye = () => model.close()
          return makeSession(model, onNews)
        },
        (cause) => {
          const advice = amqpAdvice(cause, connect)
          throw advice === undefined ? cause : new Error(sentences(messageOf(cause), advice))
        }
      )
    )
  })

const socketOptions: Amqp.SocketOptions = {
  // Without it a frozen broker would keep the connect pending for ever.
  timeout: 10_000,
  noDelay: true,
  keepAlive: true,
  keepAliveDelay: 10_000,
  clientProperties: { connection_name: "pg-listener" }
}

/** A bounded question. An answer that comes after the asker went away goes to `discard`. */
const ask = <A>(
  operation: string,
  question: () => Promise<A>,
  discard: (answer: A) => void = () => {}
): Effect.Effect<A, AmqpError> =>
  Effect.async<A, AmqpError>((resume) => {
    let abandoned = false
    const fail = (cause: unknown) => resume(Effect.fail(new AmqpError({ operation, reason: messageOf(cause) })))
    try {
      question().then((answer) => (abandoned ? discard(answer) : resume(Effect.succeed(answer))), fail)
    } catch (cause) {
      fail(cause)
    }
    return Effect.sync(() => {
      abandoned = true
    })
  }).pipe(
    // A batch in hand is uninterruptible, and a wait that can't be interrupted can't be bounded either.
    Effect.interruptible,
    Effect.timeoutFail({
      duration: replyTimeout,
      onTimeout: () => new AmqpError({ operation, reason: "the broker does not answer" })
    })
  )

/** In the same turn as the connect's answer, so that no event of the new connection finds nobody listening. */
const makeSession = (model: Amqp.ChannelModel, onNews: (news: SessionNews) => void): AmqpSession => {
  const channels = new Set<(end: ChannelEnd) => void>()
  let blocked: string | undefined
  let lost: string | undefined

  const lose = (reason: string) => {
    if (lost !== undefined) return
    lost = reason
    blocked = undefined
    for (const end of [...channels]) end({ kind: "lost", reason })
    onNews({ kind: "lost", reason })
  }
  model.on("error", (error) => lose(messageOf(error)))
  model.on("close", (error) => lose(error === undefined ? "the connection was closed" : messageOf(error)))
  model.on("blocked", (reason) => {
    blocked = reason
    onNews({ kind: "blocked", reason })
  })
  model.on("unblocked", () => {
    blocked = undefined
    onNews({ kind: "unblocked" })
  })

  /** On a channel of its own: a refusal closes the channel on which the question was asked. */
  const inspect = (operation: string, question: (channel: Amqp.Channel) => Promise<unknown>) =>
    ask(operation, async (): Promise<Inspection> => {
      const channel = await model.createChannel()
      channel.on("error", () => {})
      try {
        await question(channel)
      } catch (cause) {
        const refusal = refusalOf(cause)
        // Without a code it is no answer of the broker's, but the end of the connection.
        if (refusal.code === undefined) throw cause
        return refusal.code === 404 ? { kind: "missing" } : { kind: "refused", reason: refusal.reason }
      }
      channel.close().catch(() => {})
      return { kind: "present" }
    })

  return {
    openChannel: ask(
      "open channel",
      () => model.createConfirmChannel().then((channel) => makeChannel(channel, channels, () => lost)),
      (channel) => channel.close()
    ),
    inspectQueue: (queue) => inspect(`check queue "${queue}"`, (channel) => channel.checkQueue(queue)),
    inspectExchange: (exchange) =>
      inspect(`check exchange "${exchange}"`, (channel) => channel.checkExchange(exchange)),
    declareQueue: (queue, type) =>
      inspect(`declare queue "${queue}"`, (channel) =>
        channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": type } })
      ),
    blockedReason: () => blocked,
    drop: lose
  }
}
