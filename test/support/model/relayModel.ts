/**
 * The real relay and the real publisher between a database and a broker in memory, driven by a history: what happens
 * when, and what the two servers answer. Runs on virtual time until every row has come to its end, then stops.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FastCheck from "effect/FastCheck"
import * as FiberId from "effect/FiberId"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { AmqpPublisher } from "../../../src/AmqpPublisher.js"
import { DoorbellDatabase } from "../../../src/Doorbell.js"
import { Fatal } from "../../../src/Fatal.js"
import { AmqpSessions } from "../../../src/internal/amqpSession.js"
import { Outbox } from "../../../src/Outbox.js"
import { ListenEvent, PgListen } from "../../../src/PgListen.js"
import { Relay } from "../../../src/Relay.js"
import { SchemaGate } from "../../../src/SchemaGate.js"
import { Settings } from "../../../src/Settings.js"
import { scriptedDoorbellDatabase } from "../scripted.js"
import { type AnswerWord, answerWords, makeBrokerModel } from "./brokerModel.js"
import {
  type Aggregate,
  claimWords,
  type DatabaseScript,
  type Kind,
  type ModelRow,
  makeOutboxModel,
  openWords,
  type Process,
  settleWords
} from "./outboxModel.js"
import { makeSimulation } from "./simulation.js"

const happenings = [
  "insert a",
  "insert b",
  "insert -",
  "insert a, poison",
  "insert -, poison",
  "insert a, unroutable",
  "insert a, too large",
  "insert b, nobody rings",
  "stop and start",
  "kill and start",
  "database away for 3 s",
  "broker away for 3 s",
  "broker blocked for 12 s"
] as const

/** What can happen to a relay. The words are consumed in order; after the last one each answer is the usual one. */
export interface History extends DatabaseScript {
  readonly replicas: number
  readonly workers: number
  readonly batchSize: number
  /** In which order fibers run that could all run now; 0 is first come, first served. */
  readonly order: number
  /** Milliseconds after the one before, and what happens then. */
  readonly timeline: ReadonlyArray<readonly [afterMillis: number, what: (typeof happenings)[number]]>
  readonly answers: ReadonlyArray<AnswerWord>
}

const script = <A extends string>(list: ReadonlyArray<A>, maxLength: number) =>
  FastCheck.array(FastCheck.constantFrom(...list), { maxLength })

export const histories: FastCheck.Arbitrary<History> = FastCheck.record({
  replicas: FastCheck.integer({ min: 1, max: 2 }),
  workers: FastCheck.integer({ min: 1, max: 3 }),
  batchSize: FastCheck.integer({ min: 1, max: 4 }),
  order: FastCheck.nat({ max: 1_000_000 }),
  timeline: FastCheck.array(
    FastCheck.tuple(FastCheck.constantFrom(0, 1, 2, 3, 40, 900, 7000), FastCheck.constantFrom(...happenings)),
    { minLength: 1, maxLength: 16 }
  ),
  answers: script(answerWords, 16),
  claims: script(claimWords, 6),
  settles: script(settleWords, 8),
  opens: script(openWords, 4)
})

const maxAttempts = 3
const horizonMillis = 20 * 60 * 1000

/** Runs a history; returns every broken promise, in words. */
export const broken = (history: History): ReadonlyArray<string> => {
  const complaints: Array<string> = []
  const simulation = makeSimulation(history.order)
  const complain = (what: string) => {
    complaints.push(`at ${simulation.nowMillis()} ms: ${what}`)
  }
  const rowOf = (id: string): ModelRow | undefined => outbox.rows.find((row) => row.id === id)
  const written = new Set<string>()
  const broker = makeBrokerModel(simulation, {
    answers: history.answers,
    isPoison: (id) => rowOf(id)?.kind === "poison",
    onWrite: (id) => {
      written.add(id)
      const row = rowOf(id)
      if (row === undefined) return complain(`promise 6: the message id ${id} is no row's`)
      for (const earlier of outbox.rows) {
        if (earlier.aggregate === undefined || earlier.aggregate !== row.aggregate || earlier.seq >= row.seq) continue
        if (earlier.state === "pending" && !broker.wasConfirmed(earlier.id)) {
          complain(
            `promise 4: ${row.seq} was published before ${earlier.seq} of its aggregate was confirmed or given up`
          )
        }
      }
    }
  })
  const outbox = makeOutboxModel(simulation, broker, { script: history, maxAttempts, seed: history.order }, complain)

  const processes = Array.from({ length: history.replicas }, () =>
    startProcess(history, simulation, complain, outbox, broker)
  )

  let nth = 0
  const pick = (): number => nth++ % processes.length
  const ring = () => {
    for (const process of processes) process.ring()
  }
  const replace = (index: number) => {
    processes[index] = startProcess(history, simulation, complain, outbox, broker)
  }
  const insert = (aggregate: Aggregate, kind: Kind) => () => {
    outbox.insert(aggregate, kind)
    ring()
  }
  const happen: { readonly [What in (typeof happenings)[number]]: () => void } = {
    "insert a": insert("a", "good"),
    "insert b": insert("b", "good"),
    "insert -": insert(undefined, "good"),
    "insert a, poison": insert("a", "poison"),
    "insert -, poison": insert(undefined, "poison"),
    "insert a, unroutable": insert("a", "unroutable"),
    "insert a, too large": insert("a", "too large"),
    "insert b, nobody rings": () => void outbox.insert("b", "good"),
    "stop and start": () => {
      const index = pick()
      processes[index]?.stop(() => replace(index))
    },
    "kill and start": () => {
      const index = pick()
      processes[index]?.kill()
      replace(index)
    },
    "database away for 3 s": () => {
      outbox.goAway()
      simulation.after(3000, outbox.comeBack)
    },
    "broker away for 3 s": () => {
      broker.goAway()
      simulation.after(3000, broker.comeBack)
    },
    "broker blocked for 12 s": () => {
      broker.block()
      simulation.after(12_000, broker.unblock)
    }
  }

  let happened = 0
  let atMillis = 10
  for (const [afterMillis, what] of history.timeline) {
    atMillis += afterMillis
    simulation.after(atMillis, () => {
      happened++
      happen[what]()
    })
  }
  const settled = () =>
    complaints.length > 0 ||
    (happened === history.timeline.length &&
      outbox.rows.every((row) => row.state !== "pending") &&
      processes.every((process) => !process.stopping()))
  simulation.runUntil(settled, horizonMillis)
  // One is enough, and what follows from it would only hide it.
  if (complaints.length > 0) return complaints

  for (const row of outbox.rows) {
    if (row.state === "pending") complain(`promise 1: ${row.seq} never came to an end`)
    const deadAt = row.kind === "too large" ? 1 : maxAttempts
    if ((row.state === "dead") !== row.attempts >= deadAt)
      complain(`promise 5: ${row.seq} is ${row.state} with ${row.attempts}`)
    if (row.state === "processed" && !broker.deliveries.some(({ id }) => id === row.id)) {
      complain(`promise 1: ${row.seq} is processed, and in no queue`)
    }
  }
  const first = new Map<string, number>()
  broker.deliveries.forEach(({ id }, place) => {
    if (!first.has(id)) first.set(id, place)
  })
  for (const later of outbox.rows) {
    for (const earlier of outbox.rows) {
      if (later.aggregate === undefined || later.aggregate !== earlier.aggregate || earlier.seq >= later.seq) continue
      if ((first.get(earlier.id) ?? -1) > (first.get(later.id) ?? Infinity)) {
        complain(`promise 4: ${later.seq} arrived before ${earlier.seq} of its aggregate`)
      }
    }
  }

  for (const process of processes) process.stop(() => {})
  const stopped = () => processes.every((process) => process.ended())
  if (!simulation.runUntil(stopped, simulation.nowMillis() + 120_000)) complain("a process did not stop")
  if (outbox.openTransactions() > 0) complain("a transaction was left open")
  if (outbox.openSessions() > 0) complain("a database session was left open")
  return complaints
}

const startProcess = (
  history: History,
  simulation: ReturnType<typeof makeSimulation>,
  complain: (what: string) => void,
  outbox: ReturnType<typeof makeOutboxModel>,
  broker: ReturnType<typeof makeBrokerModel>
) => {
  const process: Process = { killed: false }
  const events = Effect.runSync(Queue.unbounded<ListenEvent>())
  events.unsafeOffer(ListenEvent.Listening({ backendPid: 1, disconnectedAt: undefined }))
  const app = Relay.layer.pipe(
    Layer.provide(SchemaGate.layer),
    Layer.provide(AmqpPublisher.layerOnSessions),
    Layer.provide(Layer.succeed(AmqpSessions, broker.sessionsFor(process))),
    Layer.provide(Layer.succeed(Outbox, outbox.portFor(process))),
    Layer.provide(
      Layer.succeed(PgListen, {
        events: Stream.fromQueue(events),
        status: Effect.succeed({ connected: true, disconnectedAt: undefined }),
        isLiveOwner: Effect.succeed(true),
        stop: Effect.void
      })
    ),
    Layer.provide(Layer.succeed(DoorbellDatabase, scriptedDoorbellDatabase)),
    Layer.provideMerge(Fatal.layer),
    Layer.provide(
      Settings.layerFrom({
        DATABASE_URL: "postgres://relay@db/app",
        AMQP_URL: "amqp://relay@broker",
        PG_LISTENER_WORKERS: String(history.workers),
        PG_LISTENER_BATCH_SIZE: String(history.batchSize),
        PG_LISTENER_MAX_ATTEMPTS: String(maxAttempts)
      })
    )
  )
  const fiber = Effect.runFork(
    Effect.flatMap(Fatal, Deferred.await).pipe(
      Effect.provide(app),
      Effect.withClock(simulation.clock),
      Logger.withMinimumLogLevel(LogLevel.None)
    ),
    { scheduler: simulation.scheduler }
  )
  let ended = false
  let stopping = false
  let onEnded = () => {}
  fiber.addObserver((exit) => {
    ended = true
    if (!stopping) complain(`the process ended by itself: ${Exit.isFailure(exit) ? String(exit.cause) : "no failure"}`)
    onEnded()
  })
  return {
    ring: () => {
      events.unsafeOffer(ListenEvent.Notification({ channel: "event_outbox", payload: "" }))
    },
    stop: (then: () => void) => {
      if (stopping) return
      stopping = true
      onEnded = then
      fiber.unsafeInterruptAsFork(FiberId.none)
    },
    /** The process is gone without a word; the servers notice at once. */
    kill: () => {
      process.killed = true
      outbox.forget(process)
    },
    stopping: () => stopping && !ended,
    ended: () => ended
  }
}
