/**
 * One LISTEN session over a `pg.Client` of its own: opened, proven to receive, registered on every channel.
 */
import { createHash } from "node:crypto"
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as pg from "pg"
import { type DatabaseError, ListenError } from "../Errors.js"
import type { ConnectOptions, PgConnector } from "../PgConnector.js"
import { toDatabaseError } from "./pgErrors.js"
import { pauseReading, resumeReading } from "./pgSocket.js"

/** What a session tells, from the moment it listens. Called from the socket, so they must be quick and never throw. */
export interface ListenHandlers {
  /** False: stop reading until `resumeReading`. */
  readonly onNotification: (channel: string, payload: string) => boolean
  /** A holder of the live lock hands it on; everything received before this was its own to publish. */
  readonly onHandOver: (from: { readonly ourselves: boolean }) => void
  /** The session is over. May be called more than once; the first call tells the reason. */
  readonly onLost: (error: ListenError) => void
}

export interface ListenSession {
  readonly backendPid: number
  /** The heartbeat: the channels that the server has registered for this very session. */
  readonly registeredChannels: Effect.Effect<ReadonlyArray<string>, ListenError>
  /** One try for the lock of the live owner. Once held it lasts as long as the session; not to be tried again then. */
  readonly tryLock: Effect.Effect<boolean, ListenError>
  /** Tells every replica, in the order of the notifications, that the lock is handed on from here. */
  readonly announceHandOver: Effect.Effect<void, ListenError>
  readonly releaseLock: Effect.Effect<void, ListenError>
  readonly resumeReading: () => void
}

/** Opens a session that lasts as long as the scope. */
export type OpenListenSession = (handlers: ListenHandlers) => Effect.Effect<ListenSession, ListenError, Scope.Scope>

export interface ListenSessionOptions {
  readonly connector: PgConnector["Type"]
  readonly channels: ReadonlyArray<string>
  readonly schema: string
  /** How long the server may take for each answer while the session is being opened. */
  readonly answerTimeout: Duration.Duration
}

/**
 * The session advisory lock of the live owner, in PostgreSQL's form of two integers: the first is the same for all,
 * the second tells services of different schemas apart. `$1` is the schema.
 */
export const liveOwnerLock = "hashtext('pg-listener live'), hashtext($1)"

/** Our own channel for hand-overs. A schema's name may fill all 63 bytes, hence its hash. */
const handOverChannel = (schema: string): string =>
  `pg_listener_handover_${createHash("sha256").update(schema).digest("hex").slice(0, 16)}`

const pooler =
  "notifications do not arrive on this session; is a transaction pooler such as PgBouncer in between? " +
  "Connect to PostgreSQL directly or in session mode"

// No limit by the driver: it would also fire while we are the ones who do not read. The caller times each statement.
const connectOptions: ConnectOptions = { role: "listen", statementTimeoutMillis: 0, idleInTransactionTimeoutMillis: 0 }

const notConnected = (error: DatabaseError): ListenError =>
  new ListenError({ why: error.kind === "refused" ? "refused" : "connect", reason: error.message })

const query = (
  client: pg.Client,
  operation: string,
  text: string,
  values: ReadonlyArray<string> = []
): Effect.Effect<ReadonlyArray<Record<string, unknown>>, DatabaseError> =>
  Effect.async((resume) => {
    client.query(text, [...values], (error: Error | null, result: pg.QueryResult<Record<string, unknown>>) =>
      resume(error === null ? Effect.succeed(result.rows) : Effect.fail(toDatabaseError(operation, error)))
    )
  })

/**
 * Sends one notification from another connection and waits for it here. From our own session it would prove nothing:
 * it comes back within the very transaction that sent it, and a transaction pooler passes that on.
 */
const proveDelivery = Effect.fnUntraced(function* (
  options: ListenSessionOptions,
  channel: string,
  arrived: Deferred.Deferred<void>
) {
  yield* Effect.scoped(
    Effect.flatMap(options.connector.connect(connectOptions), (sender) =>
      query(sender, "notify for the check of delivery", "select pg_notify($1, '')", [channel]).pipe(
        Effect.timeout(options.answerTimeout)
      )
    )
  ).pipe(
    Effect.catchTags({
      DatabaseError: (error) => Effect.fail(notConnected(error)),
      TimeoutException: () => new ListenError({ why: "connect", reason: "the check of delivery was not answered" })
    })
  )
  yield* Deferred.await(arrived).pipe(
    Effect.timeoutFail({
      duration: options.answerTimeout,
      onTimeout: () => new ListenError({ why: "pooler", reason: pooler })
    })
  )
})

export const openListenSession =
  (options: ListenSessionOptions): OpenListenSession =>
  (handlers) =>
    Effect.gen(function* () {
      const client = yield* Effect.mapError(options.connector.connect(connectOptions), notConnected)
      const arrived = yield* Deferred.make<void>()
      const handOver = handOverChannel(options.schema)
      let backendPid = 0
      let checkChannel: string | undefined

      const onLost = (reason: string): void => handlers.onLost(new ListenError({ why: "dropped", reason }))
      const onNotification = (message: pg.Notification): void => {
        if (message.channel === checkChannel) Deferred.unsafeDone(arrived, Effect.void)
        else if (message.channel === handOver) handlers.onHandOver({ ourselves: message.processId === backendPid })
        else if (!handlers.onNotification(message.channel, message.payload ?? "")) pauseReading(client)
      }
      const onError = (error: Error): void => onLost(toDatabaseError("the session", error).message)
      const onEnd = (): void => onLost("the connection was closed")
      // Before LISTEN: a notification may come in the same packet as its answer.
      yield* Effect.acquireRelease(
        Effect.sync(() => client.on("notification", onNotification).on("error", onError).on("end", onEnd)),
        () =>
          Effect.sync(() => {
            client.off("notification", onNotification).off("error", onError).off("end", onEnd)
            // A socket that does not read never sees the server's goodbye.
            resumeReading(client)
          })
      )

      const opening = (operation: string, text: string) =>
        query(client, operation, text).pipe(
          Effect.mapError(notConnected),
          Effect.timeoutFail({
            duration: options.answerTimeout,
            onTimeout: () => new ListenError({ why: "connect", reason: `${operation}: no answer in time` })
          })
        )
      const [facts] = yield* opening(
        "look at the server",
        "select pg_is_in_recovery() as replica, pg_backend_pid() as pid"
      )
      if (facts?.["replica"] !== false) {
        return yield* new ListenError({
          why: "replica",
          reason: "this server is a replica, where LISTEN does not work. Connect to the primary"
        })
      }
      backendPid = Number(facts["pid"])
      checkChannel = `pg_listener_check_${backendPid}`
      const listens = [...options.channels, handOver, checkChannel].map((name) => `LISTEN ${pg.escapeIdentifier(name)}`)
      yield* opening("listen", listens.join("; "))
      yield* proveDelivery(options, checkChannel, arrived)
      yield* opening("end the check of delivery", `UNLISTEN ${pg.escapeIdentifier(checkChannel)}`)

      // `pg` wants one statement at a time; an interrupted caller must not set free a client whose answer is still due.
      const oneAtATime = yield* Effect.makeSemaphore(1)
      const ask = (operation: string, text: string, values: ReadonlyArray<string>) =>
        query(client, operation, text, values).pipe(
          Effect.mapError((error) => new ListenError({ why: "dropped", reason: error.message })),
          oneAtATime.withPermits(1)
        )
      return {
        backendPid,
        registeredChannels: Effect.map(ask("heartbeat", "select pg_listening_channels() as channel", []), (rows) =>
          rows.map((row) => String(row["channel"]))
        ),
        tryLock: Effect.map(
          ask("lock of the live owner", `select pg_try_advisory_lock(${liveOwnerLock}) as held`, [options.schema]),
          ([row]) => row?.["held"] === true
        ),
        announceHandOver: Effect.asVoid(ask("announce the hand-over", "select pg_notify($1, '')", [handOver])),
        releaseLock: Effect.asVoid(
          ask("release the lock of the live owner", `select pg_advisory_unlock(${liveOwnerLock})`, [options.schema])
        ),
        resumeReading: () => resumeReading(client)
      }
    })
