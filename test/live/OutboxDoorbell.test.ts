/**
 * The doorbell: when an insert notifies, and when it must not.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import Pg from "pg"
import { insertEvents, lab } from "../support/outboxLab.js"
import { sqlClient } from "../support/Sql.js"

/** Counts the notifications on a channel. `count` has seen all that was committed before it was asked. */
const bell = (url: string, channel = "event_outbox") =>
  Effect.gen(function* () {
    const client = yield* Effect.acquireRelease(
      Effect.promise(async () => {
        const fresh = new Pg.Client({ connectionString: url })
        fresh.on("error", () => {})
        await fresh.connect()
        return fresh
      }),
      (open) => Effect.promise(() => open.end())
    )
    const heard: Array<Pg.Notification> = []
    client.on("notification", (notification) => heard.push(notification))
    yield* Effect.promise(() => client.query(`listen "${channel}"; listen probe`))
    // Notifications come in the order of the commits, so the probe's own closes the list.
    const count = Effect.map(
      Effect.promise(() => client.query("notify probe")),
      () => heard.filter((notification) => notification.channel === channel).length
    )
    return { count, heard }
  })

const key = "hashtextextended('public.event_outbox', 0)"

describe("the doorbell", () => {
  it.scopedLive("rings once a statement, with an empty payload", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const { count, heard } = yield* bell(url)
      yield* insertEvents(sql, ["x", "y", null])
      assert.strictEqual(yield* count, 1)
      assert.strictEqual(heard[0]?.payload, "")
    })
  )

  it.scopedLive("rings for emit_event and for inserts through the view", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const { count } = yield* bell(url)
      yield* sql.query("select emit_event('c', '1')")
      assert.strictEqual(yield* count, 1)
      yield* sql.query("insert into outbox_events (event_type, payload) values ('e', '1')")
      assert.strictEqual(yield* count, 2)
    })
  )

  it.scopedLive("does not ring for an insert that is rolled back", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const { count } = yield* bell(url)
      yield* sql.query("begin; insert into event_outbox (event_type, payload) values ('e', '1'); rollback")
      assert.strictEqual(yield* count, 0)
    })
  )

  it.scopedLive(
    "is silent from the moment a relay asks for silence, though a writer's transaction keeps it waiting",
    () =>
      Effect.gen(function* () {
        const { sql, url } = yield* lab()
        const { count } = yield* bell(url)
        const writer = yield* sqlClient(url)
        const relay = yield* sqlClient(url)
        yield* writer.query("begin")
        yield* insertEvents(writer, ["x"])
        const asked = yield* Effect.fork(relay.query(`select pg_advisory_lock(${key})`))
        yield* sql
          .query("select 1")
          .pipe(
            Effect.zipRight(
              sql.query<{ waiting: boolean }>(
                "select exists (select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())) as waiting"
              )
            ),
            Effect.repeat({ until: ([row]) => row?.waiting === true })
          )
        yield* insertEvents(sql, ["y"])
        assert.strictEqual(yield* count, 0, "asked for, not granted, and silent already")
        yield* writer.query("commit")
        yield* asked.await
        assert.strictEqual(yield* count, 1, "it had looked before")
        yield* insertEvents(sql, ["z"])
        assert.strictEqual(yield* count, 1)
        yield* relay.query(`select pg_advisory_unlock(${key})`)
        yield* insertEvents(sql, ["z"])
        assert.strictEqual(yield* count, 2)
      })
  )

  it.scopedLive("makes no writer wait for another", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const other = yield* sqlClient(url)
      yield* other.query("begin")
      yield* insertEvents(other, ["x"])
      yield* sql.query("set lock_timeout = '1s'")
      yield* insertEvents(sql, ["x"])
    })
  )
})
