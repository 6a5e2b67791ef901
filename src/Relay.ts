/**
 * The relay: everything that runs, wired together. Listen → wake → claim → publish → settle, and the jobs beside it.
 */
import { randomUUID } from "node:crypto"
import * as Chunk from "effect/Chunk"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { AmqpPublisher } from "./AmqpPublisher.js"
import * as Doorbell from "./Doorbell.js"
import { encodeLive, encodeRow } from "./EncodeEvent.js"
import type { DatabaseError, ListenExhausted } from "./Errors.js"
import { type Fatal, supervised } from "./Fatal.js"
import { undisturbed } from "./internal/undisturbed.js"
import * as Jobs from "./Jobs.js"
import * as LiveEvents from "./LiveEvents.js"
import * as LiveStandby from "./LiveStandby.js"
import * as Metrics from "./Metrics.js"
import { Outbox } from "./Outbox.js"
import { type ListenEvent, PgListen } from "./PgListen.js"
import { runWorker } from "./RelayWorker.js"
import { SchemaGate } from "./SchemaGate.js"
import { Settings } from "./Settings.js"
import * as Wake from "./Wake.js"

/** `wake` starts a full claim at once: for those who made old rows pending again. */
export class Relay extends Context.Tag("pg-listener/Relay")<Relay, { readonly wake: Effect.Effect<void> }>() {
  static readonly layer: Layer.Layer<
    Relay,
    never,
    Settings | PgListen | AmqpPublisher | Outbox | SchemaGate | Doorbell.DoorbellDatabase | Fatal
  > = Layer.scoped(
    this,
    Effect.gen(function* () {
      const settings = yield* Settings
      const listen = yield* PgListen
      const publisher = yield* AmqpPublisher
      const outbox = yield* Outbox
      const gate = yield* SchemaGate
      const wake = yield* Wake.make
      const doorbell = yield* Doorbell.make({
        database: yield* Doorbell.DoorbellDatabase,
        ring: wake.ring,
        canPublish: Effect.map(publisher.status, (status) => status.connected && !status.blocked),
        thresholdPerSecond: settings.busyThresholdPerSecond,
        gap: settings.busyGap
      })
      const live = yield* LiveEvents.make((notification) => encodeLive(notification, settings))

      const afterGate = <A, E>(loop: Effect.Effect<A, E>) => Effect.zipRight(gate.awaitOpen, loop)

      // Fibers stop in the opposite order of their start: intake first (listen), then the jobs, then what holds a
      // batch (live events, workers), which finishes it.
      const activity = { draining: false, claimedAtMillis: 0 }
      const workerOptions = {
        activity,
        onClaimed: doorbell.noteClaimed,
        outbox,
        publisher,
        wake,
        encode: (row: Parameters<typeof encodeRow>[0]) => encodeRow(row, settings),
        limit: settings.batchSize,
        maxAttempts: settings.maxAttempts,
        eventTypeLabel: Metrics.eventTypeLabel(settings.routes)
      }
      yield* supervised(
        "relay",
        afterGate(
          Effect.all(
            Array.from({ length: settings.workers }, (_, index) =>
              runWorker(workerOptions).pipe(Effect.annotateLogs({ worker: index + 1 }))
            ),
            { concurrency: "unbounded", discard: true }
          )
        )
      )

      yield* supervised("live", afterGate(live.run))

      yield* supervised("doorbell", afterGate(doorbell.run))
      yield* supervised("poll", Jobs.poll(wake, settings.pollInterval))
      yield* supervised("low-water", afterGate(Jobs.lowWater(outbox, wake)))
      yield* supervised("sweep", afterGate(Jobs.sweep(outbox, publisher, wake, activity, settings.sweepInterval)))
      yield* supervised("clean-up", afterGate(Jobs.cleanUp(outbox, settings.cleanupInterval)))

      const standby = LiveStandby.make(listen, live.offer)
      yield* supervised("live-standby", afterGate(standby.run))

      const onEvents = listenHandler({ doorbell, listen, live, standby, outbox, wake, settings })
      let stopping = false
      yield* supervised(
        "listen",
        listen.events.pipe(
          Stream.mapChunksEffect((events) => Effect.as(onEvents(events), Chunk.empty<never>())),
          Stream.runDrain,
          // It may end only when it was stopped, below; else it counts as a loop that ended.
          Effect.zipRight(Effect.suspend(() => (stopping ? Effect.never : Effect.void))),
          // The one failure that must end the process: a defect on its way to exit code 1.
          Effect.catchTag("ListenExhausted", (error: ListenExhausted) => Effect.die(error))
        )
      )
      // The first to run: intake ends once the notifications in hand are handed over, with or without a database.
      yield* Effect.addFinalizer(() =>
        Effect.suspend(() => {
          stopping = true
          return Effect.zipRight(live.stop, listen.stop)
        })
      )
      yield* wake.ringFull

      return { wake: wake.ringFull }
    })
  )
}

type Received = Extract<ListenEvent, { _tag: "Notification" }>

interface HandlerDeps {
  readonly doorbell: Doorbell.Doorbell
  readonly listen: PgListen["Type"]
  readonly live: LiveEvents.LiveEvents
  readonly standby: LiveStandby.LiveStandby
  readonly outbox: Outbox["Type"]
  readonly wake: Wake.Wake
  readonly settings: Settings["Type"]
}

/**
 * What each event of the LISTEN session sets off. Handles a whole chunk of notifications in a few steps, and to its end:
 * a stop in the middle would lose those that are in nobody's hands yet.
 */
const listenHandler = ({ doorbell, listen, live, outbox, settings, standby, wake }: HandlerDeps) => {
  const routed = new Set(settings.routes.channels)

  const onListening = (disconnectedAt: number | undefined) =>
    Effect.gen(function* () {
      yield* wake.ringFull
      if (disconnectedAt === undefined) return
      yield* Metric.increment(Metrics.reconnects)
      yield* catchUp(outbox, disconnectedAt)
    })

  const onNotifications = (events: ReadonlyArray<Received>) =>
    Effect.gen(function* () {
      const full = events.some(({ channel, payload }) => channel === settings.wakeChannel && payload === Wake.FULL)
      yield* full ? wake.ringFull : wake.ring
      const receivedAtSeconds = yield* LiveEvents.nowSeconds
      const received = events
        .filter(({ channel }) => channel !== settings.wakeChannel && routed.has(channel))
        .map(({ channel, payload }) => ({ id: randomUUID(), channel, payload, receivedAtSeconds }))
      let rings = 0
      for (const { channel } of events) {
        Metrics.countNotification(channel)
        if (channel === settings.wakeChannel) rings++
      }
      doorbell.noteRings(rings)
      Metrics.wakeUpsByNotification.unsafeUpdate(rings, [])
      if (received.length === 0) return
      yield* (yield* listen.isLiveOwner)
        ? live.offer([...(yield* standby.takeAll), ...received])
        : standby.add(received)
    })

  return (chunk: Chunk.Chunk<ListenEvent>): Effect.Effect<void> =>
    Effect.gen(function* () {
      let notifications: Array<Received> = []
      const handOn = Effect.suspend(() => {
        const batch = notifications
        notifications = []
        return batch.length > 0 ? undisturbed(onNotifications(batch)) : Effect.void
      })
      for (const event of chunk) {
        if (event._tag === "Notification") notifications.push(event)
        else if (event._tag === "Listening") yield* onListening(event.disconnectedAt)
        else {
          yield* handOn
          if (!event.ourselves) yield* standby.handedOver
        }
      }
      yield* handOn
    })
}

/**
 * After a reconnect every pending row is claimed anyway (the full ring); this says in the log how much the gap left.
 * Not worth more than a few tries: the rows are safe.
 */
const catchUp = (outbox: Outbox["Type"], disconnectedAt: number): Effect.Effect<void> =>
  outbox.countPendingSince(disconnectedAt).pipe(
    Effect.retry(Schedule.spaced(Duration.seconds(1)).pipe(Schedule.intersect(Schedule.recurs(2)))),
    Effect.flatMap((rows) =>
      Effect.logInfo("catching up after the LISTEN session was lost").pipe(
        Effect.annotateLogs({
          pending_since_disconnect: rows,
          disconnected_at: DateTime.formatIso(DateTime.unsafeMake(disconnectedAt))
        })
      )
    ),
    Effect.catchAll((error: DatabaseError) =>
      Effect.logWarning(`could not count what the gap left; the rows are claimed all the same: ${error.message}`)
    )
  )
