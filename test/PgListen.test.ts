/** The LISTEN loop on a scripted session: no server, and every wait on the virtual clock. */
import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Chunk from "effect/Chunk"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { ListenError, ListenExhausted } from "../src/Errors.js"
import type { ListenHandlers, ListenSession, OpenListenSession } from "../src/internal/listenSession.js"
import { bufferLimits } from "../src/internal/notificationBuffer.js"
import { type ListenEvent, makePgListen, type PgListen } from "../src/PgListen.js"
import { withWallClock } from "./support/wallClock.js"

const channels = ["orders", "event_outbox"]
const refused = new ListenError({ why: "connect", reason: "ECONNREFUSED" })
const dropped = new ListenError({ why: "dropped", reason: "terminating connection" })

/** What the script has opened, and the handles to end it. */
interface Opened {
  readonly handlers: ListenHandlers
  readonly closed: () => boolean
  readonly resumes: () => number
}

interface Script {
  readonly open: OpenListenSession
  readonly attempts: () => number
  readonly sessions: Queue.Queue<Opened>
}

/** Sessions that open, answer every heartbeat and get the lock, but for what the test says otherwise. */
const script = (
  parts: Partial<ListenSession> & { readonly openFails?: (attempt: number) => ListenError | undefined } = {}
): Effect.Effect<Script> =>
  Effect.map(Queue.unbounded<Opened>(), (sessions) => {
    let attempts = 0
    const open: OpenListenSession = (handlers) =>
      Effect.gen(function* () {
        attempts += 1
        const failure = parts.openFails?.(attempts)
        if (failure !== undefined) return yield* failure
        let closed = false
        let resumes = 0
        yield* Effect.addFinalizer(() =>
          Effect.sync(() => {
            closed = true
          })
        )
        yield* Queue.offer(sessions, { handlers, closed: () => closed, resumes: () => resumes })
        return {
          backendPid: 4000 + attempts,
          registeredChannels: Effect.succeed(channels),
          tryLock: Effect.succeed(true),
          announceHandOver: Effect.sync(() => handlers.onHandOver({ ourselves: true })),
          releaseLock: Effect.void,
          resumeReading: () => {
            resumes += 1
          },
          ...parts
        }
      })
    return { open, attempts: () => attempts, sessions }
  })

const start = (
  scripted: Script
): Effect.Effect<
  {
    readonly listen: PgListen["Type"]
    readonly events: Queue.Queue<ListenEvent>
    readonly running: Fiber.RuntimeFiber<void, ListenExhausted>
  },
  never,
  Scope.Scope
> =>
  Effect.gen(function* () {
    const listen = makePgListen({
      open: scripted.open,
      channels,
      heartbeatInterval: Duration.seconds(10),
      heartbeatTimeout: Duration.seconds(5)
    })
    const events = yield* Queue.unbounded<ListenEvent>()
    const running = yield* listen.events.pipe(
      Stream.runForEach((event) => Queue.offer(events, event)),
      Effect.forkScoped
    )
    return { listen, events, running }
  })

const capture = (
  lines: Array<{ level: string; text: string; annotations: Record<string, unknown> }>
): Logger.Logger<unknown, void> =>
  Logger.make(({ annotations, logLevel, message }) => {
    lines.push({
      level: logLevel.label,
      text: Arr.ensure(message).join(" "),
      annotations: Object.fromEntries(annotations)
    })
  })

/** Until the loop has nothing left to do without the clock. */
const settle = TestClock.adjust(0)

describe("what the stream tells", () => {
  it.scoped("Listening comes first, and an empty payload is still a notification", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const { events } = yield* start(scripted)
      const { handlers } = yield* Queue.take(scripted.sessions)
      handlers.onNotification("orders", "")
      handlers.onNotification("orders", "{}")
      assert.deepStrictEqual(yield* Queue.take(events), {
        _tag: "Listening",
        backendPid: 4001,
        disconnectedAt: undefined
      } as ListenEvent)
      const two = [yield* Queue.take(events), yield* Queue.take(events)]
      assert.deepStrictEqual(
        two.map((event) => event._tag === "Notification" && event.payload),
        ["", "{}"]
      )
    })
  )

  it.scoped("what was received before a session was lost is handed out before the next Listening", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const { events } = yield* start(scripted)
      const { handlers } = yield* Queue.take(scripted.sessions)
      yield* Queue.take(events)
      handlers.onNotification("orders", "1")
      handlers.onNotification("orders", "2")
      handlers.onLost(dropped)
      yield* TestClock.adjust("1 second")
      const tags = Chunk.toReadonlyArray(yield* Queue.takeAll(events)).map((event) =>
        event._tag === "Notification" ? event.payload : event._tag
      )
      assert.deepStrictEqual(tags, ["1", "2", "Listening"])
    })
  )

  it.scoped("the status turns at once when the socket closes, and the next Listening says since when", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const { events, listen } = yield* start(scripted)
      assert.deepStrictEqual(yield* listen.status, { connected: false, disconnectedAt: undefined })
      const { closed, handlers } = yield* Queue.take(scripted.sessions)
      yield* Queue.take(events)
      assert.deepStrictEqual(yield* listen.status, { connected: true, disconnectedAt: undefined })
      yield* TestClock.adjust("7 seconds")
      handlers.onLost(dropped)
      assert.deepStrictEqual(yield* listen.status, { connected: false, disconnectedAt: 7000 })
      assert.isFalse(yield* listen.isLiveOwner)
      yield* TestClock.adjust("1 second")
      assert.isTrue(closed())
      assert.deepStrictEqual(yield* Queue.take(events), {
        _tag: "Listening",
        backendPid: 4002,
        disconnectedAt: 7000
      } as ListenEvent)
      assert.deepStrictEqual(yield* listen.status, { connected: true, disconnectedAt: undefined })
    })
  )

  it.scoped("ends its session when its consumer stops, and is not connected after that", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const { listen, running } = yield* start(scripted)
      const { closed } = yield* Queue.take(scripted.sessions)
      yield* settle
      yield* Fiber.interrupt(running)
      assert.isTrue(closed())
      assert.isFalse((yield* listen.status).connected)
    })
  )
})

describe("a session that is of no use", () => {
  it.scoped("an unanswered heartbeat ends it after interval and time-out; the gap begins at the last answer", () =>
    Effect.gen(function* () {
      let silent = false
      const scripted = yield* script({
        registeredChannels: Effect.suspend(() => (silent ? Effect.never : Effect.succeed(channels)))
      })
      const { listen } = yield* start(scripted)
      const { closed } = yield* Queue.take(scripted.sessions)
      yield* TestClock.adjust("10 seconds")
      silent = true
      yield* TestClock.adjust(Duration.millis(14_999))
      assert.isTrue((yield* listen.status).connected)
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(yield* listen.status, { connected: false, disconnectedAt: 10_000 })
      assert.isTrue(closed())
    })
  )

  it.scoped("a channel that is no longer registered ends it, by name", () =>
    Effect.gen(function* () {
      const lines: Array<{ level: string; text: string; annotations: Record<string, unknown> }> = []
      const scripted = yield* script({ registeredChannels: Effect.succeed(["event_outbox"]) })
      yield* start(scripted).pipe(Effect.provide(Logger.replace(Logger.defaultLogger, capture(lines))))
      const { closed } = yield* Queue.take(scripted.sessions)
      yield* TestClock.adjust("10 seconds")
      assert.isTrue(closed())
      const line = lines.find(({ level }) => level === "WARN")
      assert.strictEqual(line?.annotations["why"], "channels-lost")
      assert.include(line?.text, "orders")
      assert.notInclude(line?.text, "event_outbox")
    })
  )

  it.scoped("a heartbeat that fails ends it", () =>
    Effect.gen(function* () {
      const scripted = yield* script({ registeredChannels: Effect.fail(dropped) })
      yield* start(scripted)
      const { closed } = yield* Queue.take(scripted.sessions)
      yield* TestClock.adjust("10 seconds")
      assert.isTrue(closed())
    })
  )

  for (const why of ["replica", "pooler", "refused"] as const) {
    it.scoped(`${why}: nothing is said to listen, and it is tried again`, () =>
      Effect.gen(function* () {
        const scripted = yield* script({
          openFails: (attempt) => (attempt < 3 ? new ListenError({ why, reason: "" }) : undefined)
        })
        const { events, listen } = yield* start(scripted)
        yield* TestClock.adjust("1 second")
        assert.isFalse((yield* listen.status).connected)
        assert.strictEqual(yield* Queue.size(events), 0)
        yield* TestClock.adjust("2 seconds")
        assert.isTrue((yield* listen.status).connected)
      })
    )
  }

  it.scoped("a session lost while it was being opened never counts as connected", () =>
    Effect.gen(function* () {
      let attempts = 0
      const scripted = yield* script()
      const { events, listen } = yield* start({
        ...scripted,
        open: (handlers) => {
          attempts += 1
          if (attempts === 1) handlers.onLost(dropped)
          return scripted.open(handlers)
        }
      })
      yield* settle
      assert.isFalse((yield* listen.status).connected)
      assert.strictEqual(yield* Queue.size(events), 0)
      yield* TestClock.adjust("1 second")
      assert.isTrue((yield* listen.status).connected)
    })
  )
})

describe("giving up", () => {
  it.scoped("after 100 retries, 2,881 seconds: ListenExhausted with the last failure, and not a second earlier", () =>
    Effect.gen(function* () {
      const scripted = yield* script({
        openFails: (attempt) => (attempt === 101 ? dropped : refused)
      })
      const { running } = yield* start(scripted)
      yield* TestClock.adjust("2880 seconds")
      assert.strictEqual(scripted.attempts(), 100)
      yield* TestClock.adjust("1 second")
      assert.strictEqual(scripted.attempts(), 101)
      const exit = yield* Fiber.await(running)
      assert.deepStrictEqual(exit, Exit.fail(new ListenExhausted({ retries: 100, last: dropped })))
    })
  )

  it.scoped("a success starts the count and the delays over", () =>
    Effect.gen(function* () {
      const scripted = yield* script({ openFails: (attempt) => (attempt === 61 ? undefined : refused) })
      const { running } = yield* start(scripted)
      // 1 + 2 + 4 + 8 + 16, then 55 times 30.
      yield* TestClock.adjust("1681 seconds")
      const { handlers } = yield* Queue.take(scripted.sessions)
      yield* settle
      handlers.onLost(dropped)
      yield* TestClock.adjust("1 second")
      assert.strictEqual(scripted.attempts(), 62)
      yield* TestClock.adjust("2879 seconds")
      assert.isNull(running.unsafePoll())
      assert.strictEqual(scripted.attempts(), 160)
      yield* TestClock.adjust("1 second")
      const exit = yield* Fiber.await(running)
      assert.deepStrictEqual(exit, Exit.fail(new ListenExhausted({ retries: 100, last: refused })))
    })
  )

  it.scoped(
    "the log warns of the first failure, of another kind, and of every tenth; and then of the gap from start to end",
    () =>
      Effect.gen(function* () {
        const lines: Array<{ level: string; text: string; annotations: Record<string, unknown> }> = []
        const scripted = yield* script({
          openFails: (attempt) => (attempt > 1 && attempt < 13 ? refused : undefined)
        })
        yield* start(scripted).pipe(
          Effect.provide(Logger.replace(Logger.defaultLogger, capture(lines))),
          Logger.withMinimumLogLevel(LogLevel.Debug)
        )
        const { handlers } = yield* Queue.take(scripted.sessions)
        yield* TestClock.adjust("5 seconds")
        handlers.onLost(dropped)
        yield* TestClock.adjust("10 minutes")
        const failures = lines.filter(({ annotations }) => "retry" in annotations)
        assert.deepStrictEqual(
          failures.map(({ annotations, level }) => `${annotations["retry"]} ${level}`),
          ["1 WARN", "2 WARN", ...[3, 4, 5, 6, 7, 8, 9].map((n) => `${n} DEBUG`), "10 WARN", "11 DEBUG", "12 DEBUG"]
        )
        const gaps = lines.filter(({ annotations }) => "gapStart" in annotations)
        // Twelve waits: 1 + 2 + 4 + 8 + 16 + 7 x 30.
        assert.deepStrictEqual(
          gaps.map(({ annotations }) => annotations),
          [{ gapStart: "1970-01-01T00:00:05.000Z", gapEnd: "1970-01-01T00:04:06.000Z", gapMillis: 241_000 }]
        )
        assert.match(gaps[0]?.text ?? "", /^notifications may have been lost: /)
        assert.strictEqual(lines.filter(({ text }) => text === "listening").length, 2)
      })
  )
})

describe("a consumer that is slower than its notifications", () => {
  it.scoped("reading stops at 10,000, goes on below half of it, and not one is dropped", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const gate = yield* Deferred.make<void>()
      const listen = makePgListen({
        open: scripted.open,
        channels,
        heartbeatInterval: Duration.seconds(10),
        heartbeatTimeout: Duration.seconds(5)
      })
      const seen: Array<string> = []
      yield* listen.events.pipe(
        Stream.runForEach((event) =>
          event._tag === "Listening"
            ? Deferred.await(gate)
            : Effect.sync(() => event._tag === "Notification" && seen.push(event.payload))
        ),
        Effect.forkScoped
      )
      const { handlers, resumes } = yield* Queue.take(scripted.sessions)
      yield* settle
      const answers = Arr.makeBy(bufferLimits.notifications + 50, (n) => handlers.onNotification("orders", `${n}`))
      assert.strictEqual(answers.indexOf(false), bufferLimits.notifications - 1)
      assert.strictEqual(resumes(), 0)
      yield* Deferred.succeed(gate, undefined)
      yield* settle
      assert.strictEqual(resumes(), 1)
      assert.deepStrictEqual(
        seen,
        answers.map((_, n) => `${n}`)
      )
      assert.isTrue(handlers.onNotification("orders", "after"))
    })
  )

  it.scoped("a few huge payloads fill it as well", () =>
    Effect.gen(function* () {
      const scripted = yield* script()
      const listen = makePgListen({
        open: scripted.open,
        channels,
        heartbeatInterval: Duration.seconds(10),
        heartbeatTimeout: Duration.seconds(5)
      })
      yield* listen.events.pipe(
        Stream.runForEach(() => Effect.never),
        Effect.forkScoped
      )
      const { handlers } = yield* Queue.take(scripted.sessions)
      const half = "x".repeat(bufferLimits.characters / 2)
      assert.isTrue(handlers.onNotification("orders", half))
      assert.isFalse(handlers.onNotification("orders", half))
    })
  )

  it.scoped("an unanswered heartbeat is not the server's fault while we do not read", () =>
    Effect.gen(function* () {
      const scripted = yield* script({ registeredChannels: Effect.never })
      const gate = yield* Deferred.make<void>()
      const listen = makePgListen({
        open: scripted.open,
        channels,
        heartbeatInterval: Duration.seconds(10),
        heartbeatTimeout: Duration.seconds(5)
      })
      yield* listen.events.pipe(
        Stream.runForEach((event) => (event._tag === "Listening" ? Deferred.await(gate) : Effect.void)),
        Effect.forkScoped
      )
      const { handlers } = yield* Queue.take(scripted.sessions)
      yield* settle
      for (let n = 0; n < bufferLimits.notifications; n++) handlers.onNotification("orders", "")
      yield* TestClock.adjust("1 minute")
      assert.isTrue((yield* listen.status).connected)
      yield* Deferred.succeed(gate, undefined)
      yield* TestClock.adjust("10 seconds")
      assert.isFalse((yield* listen.status).connected)
    })
  )
})

describe("a heartbeat in a flood", () => {
  it.scoped("is given time while notifications come in, and no longer", () =>
    Effect.gen(function* () {
      const scripted = yield* script({ registeredChannels: Effect.never })
      const { listen } = yield* start(scripted)
      const { handlers } = yield* Queue.take(scripted.sessions)
      yield* TestClock.adjust("10 seconds")
      for (let second = 0; second < 30; second++) {
        handlers.onNotification("orders", "")
        yield* TestClock.adjust("1 second")
      }
      assert.isTrue((yield* listen.status).connected)
      yield* TestClock.adjust("5 seconds")
      assert.isFalse((yield* listen.status).connected)
    })
  )
})

describe("the live owner", () => {
  it.scoped("is the one that holds the lock, which is asked for once", () =>
    Effect.gen(function* () {
      let tries = 0
      const scripted = yield* script({ tryLock: Effect.sync(() => ++tries > 0) })
      const { listen } = yield* start(scripted)
      assert.isFalse(yield* listen.isLiveOwner)
      yield* settle
      for (let n = 0; n < 5; n++) {
        assert.isTrue(yield* listen.isLiveOwner)
        yield* TestClock.adjust("1 second")
      }
      assert.strictEqual(tries, 1)
    })
  )

  it.scoped("a lock held elsewhere is asked for a second later, wherever the machine's clock was put meanwhile", () =>
    withWallClock((wall) =>
      Effect.gen(function* () {
        let tries = 0
        const scripted = yield* script({ tryLock: Effect.sync(() => ++tries >= 2) })
        const { listen } = yield* start(scripted)
        yield* settle
        wall.setOff(-600_000)
        yield* TestClock.adjust("1 second")
        yield* listen.isLiveOwner
        assert.strictEqual(tries, 2)
      })
    )
  )

  it.scoped("a lock held elsewhere is asked for at most once a second", () =>
    Effect.gen(function* () {
      let tries = 0
      const scripted = yield* script({ tryLock: Effect.sync(() => ++tries >= 3) })
      const { listen } = yield* start(scripted)
      yield* settle
      assert.strictEqual(tries, 1)
      for (let n = 0; n < 3; n++) assert.isFalse(yield* listen.isLiveOwner)
      yield* TestClock.adjust("999 millis")
      assert.isFalse(yield* listen.isLiveOwner)
      assert.strictEqual(tries, 1)
      yield* TestClock.adjust("1 millis")
      assert.isFalse(yield* listen.isLiveOwner)
      assert.strictEqual(tries, 2)
      yield* TestClock.adjust("1 second")
      assert.isTrue(yield* listen.isLiveOwner)
    })
  )

  it.scoped("a lock that fails or stays unanswered is not held, and the wait for it has an end", () =>
    Effect.gen(function* () {
      let tries = 0
      const scripted = yield* script({
        tryLock: Effect.suspend(() => (++tries === 1 ? Effect.fail(dropped) : Effect.never))
      })
      const { listen } = yield* start(scripted)
      yield* settle
      assert.isFalse(yield* listen.isLiveOwner)
      yield* TestClock.adjust("1 second")
      const asked = yield* Effect.fork(listen.isLiveOwner)
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(yield* Fiber.await(asked), Exit.succeed(false))
      yield* TestClock.adjust("1 second")
      const again = yield* Effect.fork(listen.isLiveOwner)
      yield* TestClock.adjust("5 seconds")
      yield* Fiber.await(again)
      assert.strictEqual(tries, 2)
    })
  )

  it.scoped("a lock is gone with its session, and the next session asks anew", () =>
    Effect.gen(function* () {
      let tries = 0
      const scripted = yield* script({ tryLock: Effect.sync(() => ++tries !== 2) })
      const { listen } = yield* start(scripted)
      const { handlers } = yield* Queue.take(scripted.sessions)
      yield* settle
      assert.isTrue(yield* listen.isLiveOwner)
      handlers.onLost(dropped)
      assert.isFalse(yield* listen.isLiveOwner)
      yield* TestClock.adjust("1 second")
      assert.isTrue((yield* listen.status).connected)
      assert.isFalse(yield* listen.isLiveOwner)
    })
  )
})
