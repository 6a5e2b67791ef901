/**
 * A few connections, lent one at a time. A client that is lost, stuck, or in the middle of something when it comes back
 * is closed, and never handed to the next one.
 *
 * Instead of `pg.Pool`, whose clients are built before anything can be read anew (the URL, its secret file) and which
 * takes a client back while an answer is still due.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type * as pg from "pg"
import { DatabaseError } from "../Errors.js"
import { monotonicMillis } from "./monotonic.js"
import { destroySocket } from "./pgSocket.js"

export interface PooledClient {
  /** False once the connection is gone, and with it any open transaction. */
  readonly alive: () => boolean
  /** One statement. An interrupt, and an answer that is too late, cost the connection. */
  readonly query: (statement: {
    readonly text: string
    readonly values: ReadonlyArray<unknown>
    readonly rowMode?: "array"
  }) => Effect.Effect<pg.QueryResult, Error>
}

export interface ClientPool {
  /** A client until the scope closes. Fails with kind `connection` when none is free in time. */
  readonly lend: Effect.Effect<PooledClient, DatabaseError, Scope.Scope>
}

export interface ClientPoolOptions {
  readonly connect: Effect.Effect<pg.Client, DatabaseError, Scope.Scope>
  readonly max: number
  /** How long to wait for a free one; making a new connection has its own bound. */
  readonly lendTimeout: Duration.Duration
}

interface Entry extends PooledClient {
  readonly close: Effect.Effect<void>
  /** Whether the next one can start with a clean session. */
  readonly clean: () => boolean
}

const entryOf = (client: pg.Client, scope: Scope.CloseableScope): Entry => {
  let alive = true
  let unanswered = 0
  const lost = (): void => {
    alive = false
  }
  client.on("error", lost).on("end", lost)
  const hangUp = (): void => {
    alive = false
    destroySocket(client)
  }
  return {
    alive: () => alive,
    clean: () => alive && unanswered === 0 && client.getTransactionStatus() === "I",
    close: Scope.close(scope, Exit.void),
    query: (statement) =>
      Effect.async((resume) => {
        unanswered += 1
        client.query({ ...statement, values: [...statement.values] }, (error: Error | null, result: pg.QueryResult) => {
          unanswered -= 1
          if (error?.message === "Query read timeout") hangUp()
          resume(error === null ? Effect.succeed(result) : Effect.fail(error))
        })
        return Effect.sync(hangUp)
      })
  }
}

/** Makes a pool that ends with the scope; each of its connections then closes within half a second. */
export const makeClientPool = (options: ClientPoolOptions): Effect.Effect<ClientPool, never, Scope.Scope> =>
  Effect.gen(function* () {
    const idle: Array<Entry> = []
    const open = new Set<Entry>()
    const waiting = new Set<() => void>()
    let opening = 0

    /** Everybody looks again: a wake-up can't get lost with the one it was for. */
    const wakeAll = (): void => {
      for (const wake of waiting) wake()
    }

    const discard = (entry: Entry): Effect.Effect<void> =>
      Effect.suspend(() => {
        open.delete(entry)
        wakeAll()
        return entry.close
      })

    const connect: Effect.Effect<Entry, DatabaseError> = Effect.gen(function* () {
      const scope = yield* Scope.make()
      const client = yield* options.connect.pipe(
        Scope.extend(scope),
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
      )
      const entry = entryOf(client, scope)
      open.add(entry)
      return entry
    })

    const wakeUp = Effect.async<void>((resume) => {
      const wake = (): void => {
        waiting.delete(wake)
        resume(Effect.void)
      }
      waiting.add(wake)
      return Effect.sync(() => waiting.delete(wake))
    })

    const take = (restore: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>) =>
      Effect.gen(function* () {
        const giveUpAt = (yield* monotonicMillis) + Duration.toMillis(options.lendTimeout)
        while (true) {
          const entry = idle.pop()
          if (entry?.alive()) return entry
          if (entry !== undefined) {
            yield* discard(entry)
            continue
          }
          if (open.size + opening < options.max) {
            opening += 1
            return yield* restore(connect).pipe(
              Effect.ensuring(
                Effect.sync(() => {
                  opening -= 1
                  wakeAll()
                })
              )
            )
          }
          const left = giveUpAt - (yield* monotonicMillis)
          // Interruptible within the time-out: the callers of transactions are not, and would wait for ever.
          yield* restore(wakeUp.pipe(Effect.interruptible, Effect.timeoutOption(Math.max(left, 0))))
          if (left <= 0) {
            return yield* new DatabaseError({
              operation: "take a connection from the pool",
              kind: "connection",
              reason: `none of ${options.max} was free within ${Duration.format(options.lendTimeout)}`,
              sqlState: undefined
            })
          }
        }
      })

    yield* Effect.addFinalizer(() => Effect.forEach(open, (entry) => entry.close, { concurrency: "unbounded" }))

    return {
      lend: Effect.uninterruptibleMask((restore) =>
        Effect.acquireRelease(take(restore), (entry) =>
          Effect.suspend(() => {
            if (!entry.clean()) return discard(entry)
            idle.push(entry)
            wakeAll()
            return Effect.void
          })
        )
      )
    }
  })
