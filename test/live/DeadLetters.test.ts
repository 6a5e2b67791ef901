/**
 * Dead letters: what is listed, what an action changes, and who is told that somebody was faster.
 *
 * The database's sessions begin in another isolation level than PostgreSQL's own default: what counts on READ COMMITTED has to
 * ask for it.
 */
import { assert, describe, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { Database } from "../../src/Database.js"
import { type DeadLetterFilter, DeadLetters, type ListOptions } from "../../src/DeadLetters.js"
import type { DatabaseError, NotDeadAnyMore, UnknownDeadLetter } from "../../src/Errors.js"
import * as Sql from "../../src/internal/deadLettersSql.js"
import { outboxNames } from "../../src/internal/outboxNames.js"
import { claimSeqs, openOutbox, settingsLayer, settleAll } from "../support/outboxLab.js"
import { migratedDatabase } from "../support/Servers.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

const environment = {
  PG_LISTENER_ROUTES: "clicks=clicks_queue,order.*=orders,user.*=events/user.{aggregate_id}",
  PG_LISTENER_MAX_MESSAGE_BYTES: "1000"
}

class Lab extends Context.Tag("test/Lab")<
  Lab,
  { readonly url: string; readonly sql: SqlClient; readonly deadLetters: DeadLetters["Type"] }
>() {
  static readonly layer = Layer.scoped(
    this,
    Effect.gen(function* () {
      const { name, url } = yield* migratedDatabase
      const sql = yield* sqlClient(url)
      yield* sql.query(`alter database ${name} set default_transaction_isolation = 'repeatable read'`)
      const port = DeadLetters.layer.pipe(Layer.provide(Database.layer), Layer.provide(settingsLayer(url, environment)))
      return { url, sql, deadLetters: Context.get(yield* Layer.build(port), DeadLetters) }
    })
  ).pipe(Layer.orDie)
}

/** An empty table whose next `seq` is 1. */
const fresh = Effect.gen(function* () {
  const lab = yield* Lab
  yield* lab.sql.query("truncate event_outbox restart identity")
  return lab
})

const id = (n: number) => `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`

/** Rows with ids 1, 2, 3 …; each piece sets what it is about. */
const insert = (sql: SqlClient, rows: ReadonlyArray<Readonly<Record<string, unknown>>>) =>
  Effect.forEach(rows, (row, index) => {
    const all = { id: id(index + 1), channel: "clicks", payload: "1", attempts: 10, last_error: "no", ...row }
    const columns = Object.keys(all)
    return sql.query(
      `insert into event_outbox (${columns}) values (${columns.map((_, place) => `$${place + 1}`)})`,
      Object.values(all)
    )
  })

const dead = { dead_at: "2026-01-01T00:00:00Z" }
const many = (sql: SqlClient, rows: number, values = "'clicks', null") =>
  sql.query(
    `insert into event_outbox (channel, event_type, payload, attempts, last_error, dead_at)
     select ${values}, '1', 10, 'no', now() from generate_series(1, ${rows})`
  )

/** An error's own words; the errors themselves can't be compared. */
const said = (error: NotDeadAnyMore | UnknownDeadLetter | DatabaseError) => ({
  _tag: error._tag,
  ...("id" in error ? { id: error.id } : undefined),
  ...("state" in error ? { state: error.state } : undefined)
})

const everything: ListOptions = { filter: {}, limit: 500, after: undefined, order: "oldest" }

const countOf = (sql: SqlClient, condition: string) =>
  Effect.map(
    sql.query<{ readonly rows: number }>(`select count(*)::int as rows from event_outbox where ${condition}`),
    ([row]) => row?.rows ?? -1
  )

const pendingAgain = "dead_at is null and processed_at is null and attempts = 0 and retry_after <= now()"

layer(Lab.layer, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
  describe("the list of dead letters", () => {
    const seqs = (filter: DeadLetterFilter, more: Partial<ListOptions> = {}) =>
      Effect.gen(function* () {
        const { deadLetters } = yield* Lab
        const page = yield* deadLetters.list({ ...everything, ...more, filter })
        return page.deadLetters.map(({ seq }) => Number(seq))
      })

    it.effect("has dead rows alone, with all but payload and headers, and where the routes send them now", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [
          { dead_at: null },
          { ...dead, processed_at: "2026-01-02T00:00:00Z" },
          {
            ...dead,
            channel: null,
            event_type: "user.changed",
            aggregate_type: "user",
            aggregate_id: "7",
            attempts: 3,
            last_error: "unroutable",
            created_at: "2025-12-31T23:59:59.000001Z"
          },
          { ...dead, channel: "nobody_routes_this" }
        ])
        const page = yield* deadLetters.list(everything)
        assert.deepStrictEqual(page.deadLetters[0], {
          seq: "3",
          id: id(3),
          channel: null,
          eventType: "user.changed",
          aggregateType: "user",
          aggregateId: "7",
          attempts: 3,
          lastError: "unroutable",
          createdAt: "2025-12-31T23:59:59.000001Z",
          deadAt: "2026-01-01T00:00:00.000000Z",
          target: "events/user.7"
        })
        assert.deepStrictEqual(
          page.deadLetters.map(({ seq, target }) => [seq, target]),
          [
            ["3", "events/user.7"],
            ["4", null]
          ]
        )
        assert.isNull(page.next)
      })
    )

    it.effect("is filtered by each condition, and by several at once", () =>
      Effect.gen(function* () {
        const { sql } = yield* fresh
        yield* insert(sql, [
          { ...dead, last_error: "No such Exchange 'x'" },
          { ...dead, channel: null, event_type: "order.created", aggregate_type: "order", aggregate_id: "1" },
          { ...dead, channel: null, event_type: "order.paid", aggregate_type: "order", aggregate_id: "2" },
          { ...dead, channel: "clicks", event_type: "order.created", aggregate_type: "cart", aggregate_id: "1" },
          { ...dead, dead_at: "2026-02-01T00:00:00Z", last_error: null },
          { ...dead, channel: null, event_type: "user.changed", aggregate_id: "1" }
        ])
        assert.deepStrictEqual(yield* seqs({}), [1, 2, 3, 4, 5, 6])
        assert.deepStrictEqual(yield* seqs({ channel: "clicks" }), [1, 4, 5])
        assert.deepStrictEqual(yield* seqs({ eventType: "order.created" }), [2, 4])
        assert.deepStrictEqual(yield* seqs({ aggregateType: "order" }), [2, 3])
        assert.deepStrictEqual(yield* seqs({ aggregateId: "1" }), [2, 4, 6])
        assert.deepStrictEqual(yield* seqs({ error: "exchange 'X'" }), [1])
        assert.deepStrictEqual(yield* seqs({ error: "%" }), [])
        assert.deepStrictEqual(yield* seqs({ eventType: "order.created", aggregateType: "cart" }), [4])
        // The channel has the first word: row 4 goes where clicks go, whatever its event type.
        assert.deepStrictEqual(yield* seqs({ queue: "clicks_queue" }), [1, 4, 5])
        assert.deepStrictEqual(yield* seqs({ queue: "orders" }), [2, 3])
      })
    )

    it.effect("is filtered by the time of death, given as a time or as an age, and both ends are in", () =>
      Effect.gen(function* () {
        const { sql } = yield* fresh
        yield* insert(sql, [
          { dead_at: "2026-01-01T00:00:00Z" },
          { dead_at: "2026-01-02T00:00:00Z" },
          { dead_at: "2026-01-03T00:00:00Z" }
        ])
        yield* sql.query("update event_outbox set dead_at = now() - interval '1 hour' where seq = 3")
        const second = { kind: "at", iso: "2026-01-02T00:00:00Z" } as const
        assert.deepStrictEqual(yield* seqs({ olderThan: second }), [1, 2])
        assert.deepStrictEqual(yield* seqs({ newerThan: second }), [2, 3])
        assert.deepStrictEqual(yield* seqs({ newerThan: second, olderThan: second }), [2])
        assert.deepStrictEqual(yield* seqs({ newerThan: { kind: "age", millis: 2 * 3_600_000 } }), [3])
        assert.deepStrictEqual(yield* seqs({ olderThan: { kind: "age", millis: 1_800_000 } }), [1, 2, 3])
        assert.deepStrictEqual(yield* seqs({ olderThan: { kind: "age", millis: 2 * 3_600_000 } }), [1, 2])
      })
    )

    for (const order of ["oldest", "newest"] as const) {
      it.effect(`comes in pages that show each one once, ${order} first, also while some go`, () =>
        Effect.gen(function* () {
          const { deadLetters, sql } = yield* fresh
          yield* many(sql, 7)
          const seen: Array<string> = []
          let after: string | undefined
          for (let pages = 0; pages < 3; pages++) {
            const page = yield* deadLetters.list({ filter: { channel: "clicks" }, limit: 3, after, order })
            seen.push(...page.deadLetters.map(({ seq }) => seq))
            after = page.next ?? undefined
            // The last one shown is the cursor, and need not be there any more.
            yield* sql.query("delete from event_outbox where seq = $1", [seen.at(-1)])
          }
          assert.isUndefined(after)
          const ascending = ["1", "2", "3", "4", "5", "6", "7"]
          assert.deepStrictEqual(seen, order === "oldest" ? ascending : ascending.reverse())
        })
      )
    }
  })

  describe("a dead letter in full", () => {
    it.effect("has its headers and its payload with every digit", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [{ ...dead, payload: '{"n": 9007199254740993}', headers: '{"traceparent": "00-1"}' }])
        const { headers, lastError, payload, payloadOmitted, target } = yield* deadLetters.show(id(1))
        assert.deepStrictEqual(
          { headers, lastError, payload, payloadOmitted, target },
          {
            headers: '{"traceparent": "00-1"}',
            lastError: "no",
            payload: '{"n": 9007199254740993}',
            payloadOmitted: undefined,
            target: "clicks_queue"
          }
        )
      })
    )

    it.effect("is shown without a payload that is too large to be loaded, or can't be text at all", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [
          { ...dead, payload: JSON.stringify("x".repeat(3_000)) },
          { ...dead, payload: '"more than a gigabyte"' }
        ])
        // A text that is too long for PostgreSQL takes it seconds to find out; this says so at once.
        yield* sql.query(`
          create function as_text(value jsonb) returns text language plpgsql as $$
          begin
            if value = '"more than a gigabyte"' then raise program_limit_exceeded; end if;
            return format('%s', value);
          end $$;
          create cast (jsonb as text) with function as_text(jsonb)`)
        const [large, unreadable] = yield* Effect.all([deadLetters.show(id(1)), deadLetters.show(id(2))]).pipe(
          Effect.ensuring(Effect.orDie(sql.query("drop cast (jsonb as text); drop function as_text(jsonb)")))
        )
        assert.isUndefined(large.payload)
        assert.strictEqual(large.payloadOmitted, "it has 3002 bytes, too many to be loaded")
        assert.isUndefined(unreadable.payload)
        assert.strictEqual(unreadable.payloadOmitted, "program_limit_exceeded")
      })
    )
  })

  describe("an id", () => {
    const states = [
      { dead_at: null, retry_after: "2026-01-01T00:00:00Z" },
      { dead_at: null, processed_at: "2026-01-01T00:00:00Z" },
      { ...dead, processed_at: "2026-01-01T00:00:00Z" }
    ]

    it.effect(
      "that is no dead letter's is refused by show, retry and discard, with what it is, and nothing changes",
      () =>
        Effect.gen(function* () {
          const { deadLetters, sql } = yield* fresh
          yield* insert(sql, states)
          const before = yield* sql.query("select * from event_outbox order by seq")
          for (const action of [deadLetters.show, deadLetters.retryOne, deadLetters.discard]) {
            const told = yield* Effect.forEach([1, 2, 3, 4], (n) => Effect.map(Effect.flip(action(id(n))), said))
            assert.deepStrictEqual(told, [
              { _tag: "NotDeadAnyMore", id: id(1), state: "pending" },
              { _tag: "NotDeadAnyMore", id: id(2), state: "processed" },
              { _tag: "NotDeadAnyMore", id: id(3), state: "processed" },
              { _tag: "UnknownDeadLetter", id: id(4) }
            ])
          }
          assert.deepStrictEqual(yield* sql.query("select * from event_outbox order by seq"), before)
        })
    )
  })

  describe("a retry", () => {
    it.effect("makes the row a retry that is due, with its attempts before it and its last error kept", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [{ ...dead, event_type: "order.created", aggregate_type: "order", aggregate_id: "7" }, dead])
        assert.deepStrictEqual(yield* deadLetters.retryOne(id(1)), {
          seq: "1",
          id: id(1),
          channel: "clicks",
          eventType: "order.created",
          aggregateType: "order",
          aggregateId: "7"
        })
        assert.deepStrictEqual(yield* sql.query(`select seq, last_error from event_outbox where ${pendingAgain}`), [
          { seq: "1", last_error: "no" }
        ])
        assert.strictEqual(yield* countOf(sql, "dead_at is not null"), 1)
      })
    )

    it.effect("a second time says that it is pending, and once it went out that it is processed", () =>
      Effect.gen(function* () {
        const { deadLetters, sql, url } = yield* fresh
        yield* insert(sql, [dead])
        yield* deadLetters.retryOne(id(1))
        assert.deepStrictEqual(said(yield* Effect.flip(deadLetters.retryOne(id(1)))), {
          _tag: "NotDeadAnyMore",
          id: id(1),
          state: "pending"
        })
        yield* Effect.scoped(
          Effect.gen(function* () {
            const worker = yield* (yield* openOutbox(url)).openWorker
            yield* settleAll(worker, yield* claimSeqs(worker, { full: true }))
          })
        )
        assert.deepStrictEqual(said(yield* Effect.flip(deadLetters.retryOne(id(1)))), {
          _tag: "NotDeadAnyMore",
          id: id(1),
          state: "processed"
        })
      })
    )

    it.effect(
      "goes before later rows of its aggregate, in the order of the inserts, and holds them until it is out",
      () =>
        Effect.gen(function* () {
          const { deadLetters, sql, url } = yield* fresh
          const ofOne = { aggregate_type: "order", aggregate_id: "7" }
          yield* insert(sql, [
            { ...dead, ...ofOne },
            { ...dead, ...ofOne },
            { dead_at: null, attempts: 0, last_error: null, ...ofOne },
            { dead_at: null, attempts: 0, last_error: null, ...ofOne, aggregate_id: "8" }
          ])
          yield* Effect.scoped(
            Effect.gen(function* () {
              const worker = yield* (yield* openOutbox(url)).openWorker
              assert.strictEqual(yield* deadLetters.retryAll({ filter: {} }), 2)
              for (const expected of [["1", "4"], ["2"], ["3"]]) {
                const seqs = yield* claimSeqs(worker, { full: true })
                assert.deepStrictEqual(seqs, expected)
                yield* settleAll(worker, seqs)
              }
            })
          )
        })
    )

    it.effect("of many takes all that match, a few hundred in one transaction", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* many(sql, 1_201)
        yield* many(sql, 3, "null, 'order.created'")
        yield* insert(sql, [{ dead_at: null, attempts: 0 }])
        assert.strictEqual(yield* deadLetters.retryAll({ filter: { channel: "clicks" } }), 1_201)
        assert.deepStrictEqual(
          yield* sql.query(
            `select count(*)::int as rows, count(distinct xmin::text)::int as transactions
             from event_outbox where ${pendingAgain}`
          ),
          [{ rows: 1_201, transactions: 3 }]
        )
        assert.strictEqual(yield* countOf(sql, "dead_at is not null"), 3)
      })
    )

    it.effect("of many with a limit takes the ones inserted first, and the next call goes on", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* many(sql, 700)
        assert.strictEqual(yield* deadLetters.retryAll({ filter: {}, limit: 600 }), 600)
        assert.strictEqual(yield* countOf(sql, `${pendingAgain} and seq <= 600`), 600)
        assert.strictEqual(yield* deadLetters.retryAll({ filter: {}, limit: 600 }), 100)
        assert.strictEqual(yield* deadLetters.retryAll({ filter: {}, limit: 600 }), 0)
      })
    )

    it.effect("of many leaves alone what died after it had begun, so that it ends", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* many(sql, 1_100)
        // The worst broker: each row that is revived dies at once, and takes a new one with it.
        yield* sql.query(`
          create function die_again() returns trigger language plpgsql as $$
          begin
            insert into event_outbox (channel, payload, dead_at) values ('clicks', '2', clock_timestamp());
            new.dead_at := clock_timestamp();
            return new;
          end $$;
          create trigger die_again before update on event_outbox for each row execute function die_again()`)
        const retried = yield* Effect.ensuring(
          deadLetters.retryAll({ filter: {} }),
          Effect.orDie(sql.query("drop trigger die_again on event_outbox; drop function die_again()"))
        )
        assert.strictEqual(retried, 1_100)
        assert.strictEqual(yield* countOf(sql, "dead_at is not null"), 2_200)
      })
    )
  })

  describe("a discard", () => {
    it.effect("deletes the row, and a second one finds nobody", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [dead, dead])
        assert.strictEqual((yield* deadLetters.discard(id(1))).seq, "1")
        assert.strictEqual((yield* Effect.flip(deadLetters.discard(id(1))))._tag, "UnknownDeadLetter")
        assert.strictEqual(yield* countOf(sql, "true"), 1)
      })
    )

    it.effect("of many deletes the dead letters that match, and nothing else", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* many(sql, 600)
        yield* insert(sql, [
          { ...dead, channel: "other" },
          { dead_at: null },
          { dead_at: null, processed_at: "2026-01-01T00:00:00Z" }
        ])
        assert.strictEqual(yield* deadLetters.discardAll({ filter: { channel: "clicks" } }), 600)
        assert.strictEqual(yield* countOf(sql, "true"), 3)
      })
    )
  })

  describe("several operators at once", () => {
    it.effect("act on each row once, and their counts add up", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* many(sql, 1_600)
        const [retried, discarded, retriedToo] = yield* Effect.all(
          [
            deadLetters.retryAll({ filter: {} }),
            deadLetters.discardAll({ filter: {} }),
            deadLetters.retryAll({ filter: {} })
          ],
          { concurrency: "unbounded" }
        )
        assert.strictEqual(yield* countOf(sql, pendingAgain), retried + retriedToo)
        assert.strictEqual(yield* countOf(sql, "true"), 1_600 - discarded)
        assert.strictEqual(retried + retriedToo + discarded, 1_600)
      })
    )

    it.effect("get one row once, and the slower one is told", () =>
      Effect.gen(function* () {
        const { deadLetters, sql } = yield* fresh
        yield* insert(sql, [dead])
        const results = yield* Effect.all(
          Array.from({ length: 3 }, () => Effect.either(deadLetters.retryOne(id(1)))),
          { concurrency: "unbounded" }
        )
        assert.strictEqual(results.filter(Either.isRight).length, 1)
        for (const told of results.filter(Either.isLeft)) {
          assert.deepStrictEqual(said(told.left), { _tag: "NotDeadAnyMore", id: id(1), state: "pending" })
        }
      })
    )

    it.effect("revive an aggregate's rows in order: the second waits for the first, and passes over nothing", () =>
      Effect.gen(function* () {
        const { deadLetters, sql, url } = yield* fresh
        yield* insert(sql, [dead, dead])
        yield* Effect.scoped(
          Effect.gen(function* () {
            const first = yield* sqlClient(url)
            yield* first.query("begin; update event_outbox set dead_at = null, retry_after = now() where seq = 1")
            const second = yield* Effect.fork(deadLetters.retryAll({ filter: {} }))
            yield* Effect.sleep("150 millis")
            assert.strictEqual(yield* countOf(sql, "dead_at is null"), 0)
            yield* first.query("commit")
            assert.strictEqual(yield* Fiber.join(second), 1)
          })
        )
        assert.strictEqual(yield* countOf(sql, "dead_at is null"), 2)
      })
    )
  })

  describe("with 200,000 processed rows beside them", () => {
    interface PlanNode {
      readonly "Node Type": string
      readonly "Index Name"?: string
      readonly Plans?: ReadonlyArray<PlanNode>
    }
    const nodes = (plan: PlanNode): ReadonlyArray<PlanNode> => [plan, ...(plan.Plans ?? []).flatMap(nodes)]

    it.effect("every statement finds its rows by an index, and the list by the one of the dead alone", () =>
      Effect.gen(function* () {
        const { sql } = yield* fresh
        yield* sql.query(
          `insert into event_outbox (channel, payload, processed_at)
           select 'clicks', jsonb_build_object('note', repeat('x', 100)), now() from generate_series(1, 200000)`
        )
        yield* many(sql, 300)
        yield* sql.query("vacuum analyze event_outbox")
        const names = outboxNames("public")
        const filter = "'clicks', null, null, null, 'NO', null, '1 hour', null, null, null, null"
        const filterTypes = "text, text, text, text, text, text, text, text, text, text[], text[]"
        const byId = `'${id(1)}'`
        const statements = [
          ["event_outbox_dead", `${filterTypes}, bigint, integer`, Sql.listOldestFirst(names), `${filter}, null, 100`],
          [
            "event_outbox_dead",
            `${filterTypes}, bigint, integer`,
            Sql.listNewestFirst(names),
            `${filter}, 200200, 100`
          ],
          ["event_outbox_dead", "integer", Sql.routeKeys(names), "0"],
          [
            "event_outbox_dead",
            `${filterTypes}, bigint, integer, text`,
            Sql.retryStep(names),
            `${filter}, 0, 500, 'now'`
          ],
          [
            "event_outbox_dead",
            `${filterTypes}, bigint, integer, text`,
            Sql.discardStep(names),
            `${filter}, 0, 500, 'now'`
          ],
          ["event_outbox_id_key", "text", Sql.findRow(names), byId],
          ["event_outbox_id_key", "text", Sql.retryOne(names), byId],
          ["event_outbox_id_key", "text", Sql.discardOne(names), byId]
        ] as const
        for (const mode of ["force_custom_plan", "force_generic_plan"]) {
          yield* sql.query(`set plan_cache_mode = ${mode}`)
          for (const [index, types, text, values] of statements) {
            yield* sql.query(`prepare asked (${types}) as ${text}`)
            yield* sql.query("begin")
            const [row] = yield* sql.query<{ "QUERY PLAN": ReadonlyArray<{ Plan: PlanNode }> }>(
              `explain (analyze, format json) execute asked (${values})`
            )
            yield* sql.query("rollback; deallocate asked")
            const plan = row?.["QUERY PLAN"][0]?.Plan
            const used = plan === undefined ? [] : nodes(plan)
            assert.include(
              used.map((node) => node["Index Name"]),
              index,
              `${mode}: ${text}`
            )
            assert.notInclude(
              used.map((node) => node["Node Type"]),
              "Seq Scan",
              `${mode}: ${text}`
            )
          }
        }
        yield* sql.query("reset plan_cache_mode")
      })
    )
  })
})
