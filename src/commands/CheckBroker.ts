/**
 * RabbitMQ as the service needs it: reached, and with the queues and exchanges that routes name. Nothing is declared.
 */
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import type { AmqpError } from "../Errors.js"
import { type AmqpSession, AmqpSessions, type Inspection } from "../internal/amqpSession.js"
import { amqpAdviceIn } from "../internal/amqpTarget.js"
import { addressOf } from "../internal/amqpWire.js"
import type { SettingsShape } from "../Settings.js"
import { type Check, Finding, type Findings, notChecked } from "./Finding.js"

const connection = "broker connection"

const topologyWhats = ({ routes }: SettingsShape): ReadonlyArray<string> => [
  ...routes.queues.map((queue) => `queue ${queue}`),
  ...routes.exchanges.map((exchange) => `exchange ${exchange}`)
]

/** Every check of this file, for the case that none can be made. */
export const brokerWhats = (settings: SettingsShape): ReadonlyArray<string> => [connection, ...topologyWhats(settings)]

const onQueue = ({ declareQueues, queueType }: SettingsShape, queue: string, seen: Inspection): Finding => {
  const what = `queue ${queue}`
  switch (seen.kind) {
    case "present":
      return Finding.Holds({ what, detail: "present" })
    case "refused":
      return Finding.Note({ what, detail: `the broker does not let us look: ${seen.reason}` })
    case "missing":
      return declareQueues
        ? Finding.Note({ what, detail: `missing; will be declared as a durable ${queueType} queue at the start` })
        : Finding.Fails({
            what,
            detail: "missing, and PG_LISTENER_DECLARE_QUEUES is off",
            mend: "Declare the queue, correct PG_LISTENER_ROUTES, or set PG_LISTENER_DECLARE_QUEUES=true"
          })
  }
}

const onExchange = (exchange: string, seen: Inspection): Finding => {
  const what = `exchange ${exchange}`
  switch (seen.kind) {
    case "present":
      return Finding.Holds({ what, detail: "present" })
    case "refused":
      return Finding.Note({ what, detail: `the broker does not let us look: ${seen.reason}` })
    case "missing":
      return Finding.Fails({
        what,
        detail: "missing; exchanges are never declared by the service",
        mend: "Declare the exchange and bind its queues, or correct PG_LISTENER_ROUTES"
      })
  }
}

/** A connection that is lost on the way fails the one that was being looked at, and ends the look. */
const checkTopology = (session: AmqpSession, settings: SettingsShape): Check => {
  const looks = [
    ...settings.routes.queues.map((queue) =>
      Effect.map(session.inspectQueue(queue), (seen) => onQueue(settings, queue, seen))
    ),
    ...settings.routes.exchanges.map((exchange) =>
      Effect.map(session.inspectExchange(exchange), (seen) => onExchange(exchange, seen))
    )
  ]
  const whats = topologyWhats(settings)
  return Effect.gen(function* () {
    const findings: Array<Finding> = []
    for (const [place, look] of looks.entries()) {
      const found = yield* Effect.either(look)
      if (found._tag === "Left") {
        const detail = found.left.reason
        findings.push(Finding.Fails({ what: whats[place] ?? connection, detail, mend: "Look into the broker's log" }))
        return [...findings, ...notChecked(whats.slice(place + 1), "the connection to the broker was lost")]
      }
      findings.push(found.right)
    }
    return findings
  })
}

const onConnectError = ({ reason }: AmqpError, settings: SettingsShape): Findings => {
  const advice = amqpAdviceIn(reason)
  return [
    advice === undefined
      ? Finding.Fails({
          what: connection,
          detail: reason,
          mend: "Start RabbitMQ, or correct host, port and vhost in AMQP_URL"
        })
      : Finding.Fails({ what: connection, detail: reason.slice(0, -advice.length).replace(/\.? $/, ""), mend: advice }),
    ...notChecked(topologyWhats(settings), "no connection to the broker")
  ]
}

export const checkBroker = (settings: SettingsShape): Check<AmqpSessions> =>
  Effect.gen(function* () {
    const sessions = yield* AmqpSessions
    const url = Redacted.value(yield* settings.amqpUrl)
    const session = yield* sessions.open(url, () => {})
    const found = yield* checkTopology(session, settings)
    const blocked = session.blockedReason()
    return [
      blocked === undefined
        ? Finding.Holds({ what: connection, detail: addressOf(url) })
        : Finding.Fails({
            what: connection,
            detail: `the broker takes no messages now: ${blocked}`,
            mend: "Free memory or disk on the broker"
          }),
      ...found
    ]
  }).pipe(
    Effect.scoped,
    Effect.catchTags({
      AmqpError: (error) => Effect.succeed(onConnectError(error, settings)),
      SettingsError: ({ problems }) =>
        Effect.succeed<Findings>([
          ...problems.map(({ mend, problem }) => Finding.Fails({ what: connection, detail: problem, mend })),
          ...notChecked(topologyWhats(settings), "no connection to the broker")
        ])
    })
  )
