/**
 * What can happen to PostgreSQL.
 */
import * as Fs from "node:fs"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as ProcessTable from "../../dev/ProcessTable.js"
import type { SqlClient, SqlFailed } from "../support/Sql.js"
import { sqlClient } from "../support/Sql.js"
import type { FaultKind } from "./Faults.js"
import { HOG_ROLE, RELAY_ROLE, type World, type WorldError } from "./World.js"

const nothing = Effect.void

const terminate = (sql: SqlClient, role: string) =>
  sql.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1 and application_name like $2", [
    RELAY_ROLE,
    `replica-% ${role}`
  ])

/** A connection that outlives the injection, and what closes it. */
const held = <A>(use: (scope: Scope.Scope) => Effect.Effect<A, SqlFailed>) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const close = Scope.close(scope, Exit.void)
    yield* Effect.onError(use(scope), () => close)
    return close
  })

/** The process that replays the log before the server takes anybody in, while the server starts. */
const startupProcess = (postmaster: number) =>
  Effect.map(ProcessTable.list, (all) =>
    all.find(({ parent, pid }) => {
      if (parent !== postmaster) return false
      try {
        return Fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("startup")
      } catch {
        return false
      }
    })
  )

/** Until it is let go, the server is there and answers everybody "the database system is starting up". */
const startSlowly = ({ postgres }: World, millis: number): Effect.Effect<void, WorldError> =>
  Effect.gen(function* () {
    const starting = yield* Effect.fork(postgres.start)
    const giveUpAt = (yield* Clock.currentTimeMillis) + 3000
    while ((yield* Clock.currentTimeMillis) < giveUpAt && (yield* Fiber.poll(starting))._tag === "None") {
      const pid = yield* Effect.orElseSucceed(postgres.pid, () => -1)
      const startup = yield* startupProcess(pid)
      if (startup !== undefined) {
        yield* ProcessTable.signal([startup], "SIGSTOP")
        yield* Effect.sleep(millis).pipe(Effect.ensuring(ProcessTable.signal([startup], "SIGCONT")))
        break
      }
      yield* Effect.sleep("1 millis")
    }
    yield* Fiber.join(starting)
  })

export const postgresFaults: ReadonlyArray<FaultKind> = [
  {
    name: "backends terminated",
    at: "PostgreSQL",
    group: "sessions",
    live: "gap",
    plan: (prng) => {
      const role = prng.pick(["%", "relay", "listen", "jobs"])
      const times = prng.int(1, 4)
      return {
        detail: `${role === "%" ? "all" : role}, ${times} times`,
        holdMillis: 0,
        inject: (world) =>
          world.withSql((sql) =>
            Effect.as(
              Effect.forEach(Array.from({ length: times }), () =>
                Effect.zipRight(terminate(sql, role), Effect.sleep("200 millis"))
              ),
              nothing
            )
          )
      }
    }
  },
  {
    name: "postmaster killed",
    at: "PostgreSQL",
    group: "postgres process",
    live: "gap",
    plan: (prng) => ({
      detail: "kill -9",
      holdMillis: prng.int(100, 2000),
      inject: ({ postgres }) => Effect.as(postgres.kill9, postgres.start)
    })
  },
  {
    name: "fast stop",
    at: "PostgreSQL",
    group: "postgres process",
    live: "gap",
    plan: (prng) => ({
      detail: "SIGINT, and a start",
      holdMillis: prng.int(300, 3000),
      inject: ({ postgres }) => Effect.as(postgres.stop, postgres.start)
    })
  },
  {
    name: "slow start",
    at: "PostgreSQL",
    group: "postgres process",
    live: "gap",
    plan: (prng) => {
      const millis = prng.int(1500, 4000)
      return {
        detail: `kill -9, and ${millis} ms of "starting up"`,
        holdMillis: 100,
        inject: (world) => Effect.as(world.postgres.kill9, startSlowly(world, millis))
      }
    }
  },
  {
    name: "PostgreSQL frozen",
    at: "PostgreSQL",
    group: "postgres process",
    live: "gap",
    plan: (prng) => ({
      detail: "SIGSTOP",
      holdMillis: prng.int(3000, 8000),
      inject: ({ postgres }) => Effect.as(postgres.pause, postgres.resume)
    })
  },
  {
    name: "COMMIT fails",
    at: "PostgreSQL",
    group: "table",
    live: "kept",
    plan: (prng) => {
      const how = prng.pick(["raise", "terminate"])
      return {
        detail: `a third of the relay's, by ${how}`,
        holdMillis: prng.int(2000, 4000),
        inject: (world) =>
          world.withSql((sql) =>
            Effect.as(
              sql.query(
                `set lock_timeout = '8s'; create constraint trigger faults_refuse_commit after update on event_outbox
                deferrable initially deferred for each row execute function faults_refuse_commit('${how}')`
              ),
              world.withSql((again) => again.query("drop trigger if exists faults_refuse_commit on event_outbox"))
            )
          )
      }
    }
  },
  {
    name: "connection slots exhausted",
    at: "PostgreSQL",
    group: "slots",
    live: "gap",
    plan: (prng) => ({
      detail: "and the relay's connections terminated",
      holdMillis: prng.int(2000, 4000),
      inject: (world) =>
        held((scope) => {
          const hog = sqlClient(world.urlAs(HOG_ROLE)).pipe(Scope.extend(scope))
          const untilFull = Effect.ignore(Effect.forever(hog))
          return untilFull.pipe(
            Effect.zipRight(Effect.ignore(world.withSql((sql) => terminate(sql, "%")))),
            Effect.zipRight(untilFull)
          )
        })
    })
  },
  {
    name: "table locked",
    at: "PostgreSQL",
    group: "table",
    live: "kept",
    plan: (prng) => ({
      detail: "ACCESS EXCLUSIVE",
      holdMillis: prng.int(2000, 6000),
      inject: (world) =>
        held((scope) =>
          Effect.flatMap(Scope.extend(sqlClient(world.postgres.url), scope), (sql) =>
            sql.query("set lock_timeout = '8s'; begin; lock table event_outbox in access exclusive mode")
          )
        )
    })
  },
  {
    name: "statements cancelled",
    at: "PostgreSQL",
    group: "sessions",
    live: "gap",
    plan: (prng) => {
      const times = prng.int(40, 100)
      const cancel = "select pg_cancel_backend(pid) from pg_stat_activity where usename = $1 and state = 'active'"
      return {
        detail: `whatever the relay runs, ${times} times`,
        holdMillis: 0,
        inject: (world) =>
          world.withSql((sql) =>
            Effect.as(
              Effect.forEach(Array.from({ length: times }), () =>
                Effect.zipRight(sql.query(cancel, [RELAY_ROLE]), Effect.sleep("15 millis"))
              ),
              nothing
            )
          )
      }
    }
  }
]
