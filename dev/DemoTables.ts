/**
 * The demo's tables in the database, and one sample of each event.
 */
import { randomUUID } from "node:crypto"
import * as Fs from "node:fs"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import Pg from "pg"

export const demoSchema = "event_demo"

export class DemoSqlError extends Data.TaggedError("DemoSqlError")<{ readonly reason: string }> {
  override get message(): string {
    return `the demo's SQL failed: ${this.reason}`
  }
}

/** One event to write: `id` is in the body of the message that must arrive in `queue`. */
export interface Sample {
  readonly id: string
  readonly name: string
  readonly queue: string
  /** For people: how the event comes about. */
  readonly how: string
  readonly statements: ReadonlyArray<readonly [text: string, values: ReadonlyArray<unknown>]>
}

const sample = (
  name: string,
  queue: string,
  how: string,
  statements: (id: string) => Sample["statements"]
): (() => Sample) => {
  return () => {
    const id = randomUUID()
    return { id, name, queue, how, statements: statements(id) }
  }
}

/** The five default channels, and an event of an aggregate that an application writes without a trigger. */
export const samples: ReadonlyArray<() => Sample> = [
  sample("campaign_click", "campaign_click_trigger", "a trigger that notifies and inserts: arrives once", (id) => [
    ["insert into tracking_log (id, campaign_id, url) values ($1, 42, 'https://example.com/spring')", [id]]
  ]),
  sample("attribute_changed", "attribute_change", "emit_event() in a trigger, one user's changes in order", (id) => [
    [`insert into user_attribute (id, user_id, name, value) values ($1, 7, 'plan', '"gold"')`, [id]]
  ]),
  sample("friend_track_event_inserted", "friend_track_event_trigger", "a bare pg_notify()", (id) => [
    ["insert into friend_track_event (id, friend_id, action) values ($1, 9007199254740993, 'follow')", [id]]
  ]),
  sample("form_submitted", "form_submitted_trigger", "emit_event() in a trigger", (id) => [
    [`insert into form_submission (id, form, answers) values ($1, 'survey', '{"stars": 5, "text": "très bien"}')`, [id]]
  ]),
  sample("booking_event", "booking_event_trigger", "emit_event() with an aggregate and an event type", (id) => [
    ["insert into booking (id, room, status) values ($1, 'Lotus', 'made')", [id]]
  ]),
  sample("order.created", "orders", "the application's own insert, in the order's transaction", (id) => [
    ["insert into orders (id, total) values ($1, 19.90)", [id]],
    [
      `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
       values ('order.created', 'order', $1::text, jsonb_build_object('order_id', $1::text, 'total', 19.90))`,
      [id]
    ]
  ])
]

export interface DemoTables {
  /** Writes a sample in a transaction of its own. */
  readonly write: (sample: Sample) => Effect.Effect<void, DemoSqlError>
  /** `created_at` of the row with this message id, in epoch milliseconds; `undefined` for a live event. */
  readonly createdAt: (messageId: string) => Effect.Effect<number | undefined, DemoSqlError>
  readonly drop: Effect.Effect<void, DemoSqlError>
}

const failed = (error: unknown) => new DemoSqlError({ reason: error instanceof Error ? error.message : `${error}` })

/** Connects, and makes tables and triggers that are not there yet. */
export const make = (options: {
  readonly url: string
  /** Where `event_outbox` is. */
  readonly schema: string
}): Effect.Effect<DemoTables, DemoSqlError, Scope.Scope> =>
  Effect.gen(function* () {
    const client = new Pg.Client({
      connectionString: options.url,
      connectionTimeoutMillis: 10_000,
      query_timeout: 10_000,
      application_name: "pg-listener demo"
    })
    // A connection that breaks fails the statement in hand.
    client.on("error", () => {})
    const query = (text: string, values?: ReadonlyArray<unknown>) =>
      Effect.tryPromise({
        try: () => (values === undefined ? client.query(text) : client.query(text, Array.from(values))),
        catch: failed
      })
    yield* Effect.acquireRelease(Effect.tryPromise({ try: () => client.connect(), catch: failed }), () =>
      Effect.timeoutOption(Effect.interruptible(Effect.ignore(Effect.tryPromise(() => client.end()))), "1 second")
    )
    yield* query(`create schema if not exists ${demoSchema}`)
    yield* query(`set search_path = ${demoSchema}, ${Pg.escapeIdentifier(options.schema)}`)
    yield* query(Fs.readFileSync(new URL("demo.sql", import.meta.url), "utf8"))

    const oneAtATime = (yield* Effect.makeSemaphore(1)).withPermits(1)
    return {
      write: ({ statements }) =>
        query("begin").pipe(
          Effect.zipRight(Effect.forEach(statements, ([text, values]) => query(text, values), { discard: true })),
          Effect.zipRight(query("commit")),
          Effect.tapError(() => Effect.ignore(query("rollback"))),
          Effect.asVoid,
          oneAtATime
        ),
      createdAt: (messageId) =>
        Effect.map(
          oneAtATime(
            query("select extract(epoch from created_at)::float8 * 1000 as at from event_outbox where id = $1", [
              messageId
            ])
          ),
          ({ rows }) => rows[0]?.at
        ),
      drop: Effect.asVoid(oneAtATime(query(`drop schema ${demoSchema} cascade`)))
    }
  })
