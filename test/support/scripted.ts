/**
 * Scripted stand-ins for the ports, for tests on `TestClock`.
 */
import * as Chunk from "effect/Chunk"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import type { AmqpPublisher, AmqpStatus } from "../../src/AmqpPublisher.js"
import type { DoorbellDatabase } from "../../src/Doorbell.js"
import type { DatabaseError, ListenExhausted } from "../../src/Errors.js"
import { Outcome, type Publishable } from "../../src/Message.js"
import type { ClaimedBatch, FailedRow, LiveRow, Outbox, OutboxRow } from "../../src/Outbox.js"
import type { ListenEvent, PgListen } from "../../src/PgListen.js"

/** A row with nothing special about it. */
export const row = (seq: number, over: Partial<OutboxRow> = {}): OutboxRow => ({
  seq: String(seq),
  id: `00000000-0000-7000-8000-${String(seq).padStart(12, "0")}`,
  channel: "campaign_click",
  eventType: undefined,
  aggregateType: undefined,
  aggregateId: undefined,
  payload: `{"seq": ${seq}}`,
  payloadBytes: 10,
  headers: undefined,
  attempts: 0,
  waited: (over.attempts ?? 0) > 0,
  createdAtSeconds: 0,
  ageSeconds: 0,
  ...over
})

export interface Settled {
  readonly processed: ReadonlyArray<string>
  readonly failed: ReadonlyArray<FailedRow>
}

export interface ScriptedOutbox {
  readonly port: Outbox["Type"]
  /** Answers for the coming claims, in order; after them every claim is empty. */
  readonly claims: Array<Effect.Effect<ClaimedBatch, DatabaseError>>
  readonly claimsMade: Array<{ readonly limit: number; readonly full: boolean }>
  readonly settles: Array<Settled>
  readonly rollbacks: { count: number }
  readonly sessions: { opened: number; closed: number }
  readonly liveRows: Array<LiveRow>
  readonly answers: {
    settle: Effect.Effect<void, DatabaseError>
    open: Effect.Effect<void, DatabaseError>
    match: (notification: { readonly channel: string; readonly payload: string }) => boolean
    matchFails: Effect.Effect<void, DatabaseError>
    insertLive: Effect.Effect<void, DatabaseError>
    overdue: number
  }
}

export const scriptedOutbox = (): ScriptedOutbox => {
  const claims: ScriptedOutbox["claims"] = []
  const claimsMade: ScriptedOutbox["claimsMade"] = []
  const settles: Array<Settled> = []
  const rollbacks = { count: 0 }
  const sessions = { opened: 0, closed: 0 }
  const liveRows: Array<LiveRow> = []
  const answers: ScriptedOutbox["answers"] = {
    settle: Effect.void,
    open: Effect.void,
    match: () => false,
    matchFails: Effect.void,
    insertLive: Effect.void,
    overdue: 0
  }
  const port: Outbox["Type"] = {
    openWorker: Effect.acquireRelease(
      Effect.suspend(() => answers.open).pipe(
        Effect.map(() => {
          sessions.opened++
          return {
            claim: (options: { readonly limit: number; readonly full: boolean }) =>
              Effect.suspend(() => {
                claimsMade.push(options)
                return claims.shift() ?? Effect.succeed({ rows: [], contended: false })
              }),
            settle: (batch: Settled) =>
              Effect.suspend(() => {
                settles.push(batch)
                return answers.settle
              }),
            rollback: Effect.sync(() => {
              rollbacks.count++
            })
          }
        })
      ),
      () =>
        Effect.sync(() => {
          sessions.closed++
        })
    ),
    verifySchema: Effect.succeed([]),
    matchRows: (notifications) =>
      Effect.zipRight(
        Effect.suspend(() => answers.matchFails),
        Effect.sync(() => notifications.map(answers.match))
      ),
    insertLive: (rows) =>
      Effect.zipRight(
        Effect.suspend(() => answers.insertLive),
        Effect.sync(() => void liveRows.push(...rows))
      ),
    advanceLowWater: Effect.succeed(false),
    countPendingSince: () => Effect.succeed(0),
    countOverdue: Effect.sync(() => answers.overdue),
    cleanUp: Effect.succeed(0)
  }
  return { port, claims, claimsMade, settles, rollbacks, sessions, liveRows, answers }
}

export interface ScriptedPublisher {
  readonly port: AmqpPublisher["Type"]
  readonly published: Array<ReadonlyArray<Publishable>>
  readonly state: {
    status: AmqpStatus
    ready: Effect.Effect<void>
    outcome: (p: Publishable, index: number) => Outcome
    pause: Effect.Effect<void>
  }
}

/** Confirms everything unless told otherwise. */
export const scriptedPublisher = (): ScriptedPublisher => {
  const published: Array<ReadonlyArray<Publishable>> = []
  const state: ScriptedPublisher["state"] = {
    status: { connected: true, blocked: false, blockedReason: undefined },
    ready: Effect.void,
    outcome: () => Outcome.Confirmed(),
    pause: Effect.void
  }
  return {
    port: {
      publish: (batch) =>
        Effect.suspend(() => {
          published.push(batch)
          return Effect.as(state.pause, batch.map(state.outcome))
        }),
      awaitReady: Effect.suspend(() => state.ready),
      status: Effect.sync(() => state.status)
    },
    published,
    state
  }
}

/** A database in which nobody's silence lasts: each hand-over ends at once. */
export const scriptedDoorbellDatabase: DoorbellDatabase["Type"] = {
  silence: Effect.succeed({ lost: Effect.never }),
  nextTransaction: Effect.succeed(0n),
  oldestTransaction: Effect.succeed(0n)
}

export interface ScriptedListen {
  readonly port: PgListen["Type"]
  /** The events of one call come as one chunk, as notifications of one packet do. */
  readonly emit: (...events: ReadonlyArray<ListenEvent>) => Effect.Effect<void>
  readonly exhaust: (error: ListenExhausted) => Effect.Effect<void>
  readonly state: { owner: boolean; stopped: boolean }
}

export const scriptedListen: Effect.Effect<ScriptedListen> = Effect.gen(function* () {
  const events = yield* Queue.unbounded<Effect.Effect<Chunk.Chunk<ListenEvent>, ListenExhausted>>()
  const state = { owner: true, stopped: false }
  return {
    port: {
      events: Stream.repeatEffectChunk(Effect.flatten(Queue.take(events))),
      status: Effect.succeed({ connected: true, disconnectedAt: undefined }),
      isLiveOwner: Effect.sync(() => state.owner),
      stop: Effect.sync(() => {
        state.stopped = true
      })
    },
    emit: (...list) => Effect.asVoid(Queue.offer(events, Effect.succeed(Chunk.fromIterable(list)))),
    exhaust: (error) => Effect.asVoid(Queue.offer(events, Effect.fail(error))),
    state
  }
})
