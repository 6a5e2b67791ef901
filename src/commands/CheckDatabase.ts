/**
 * PostgreSQL as the service needs it: reached, new enough, the primary, with tables and rights; and LISTEN, which a pooler in
 * between can break. Nothing is written; the one notification that is sent wakes a relay for nothing.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { Database } from "../Database.js"
import type { DatabaseError, ListenError, SchemaError } from "../Errors.js"
import { openListenSession } from "../internal/listenSession.js"
import { outboxNames } from "../internal/outboxNames.js"
import { pgAdviceIn } from "../internal/pgAdvice.js"
import * as StatusSql from "../internal/statusSql.js"
import { runGrants, runMigrate, verifySchema } from "../internal/verifySchema.js"
import type { SchemaNote } from "../Outbox.js"
import { PgConnector } from "../PgConnector.js"
import { Settings, type SettingsShape } from "../Settings.js"
import { type Check, Finding, type Findings, notChecked } from "./Finding.js"

const connection = "database connection"
const version = "PostgreSQL version"
const primary = "primary server"
const schema = "schema"
const objects = "indexes, views and functions"
const grants = "grants"
const doorbell = "doorbell"
const sessions = "LISTEN"
const wakeChannelOf = ({ wakeChannel }: SettingsShape) => `wake channel ${wakeChannel}`
const channelsOf = ({ routes }: SettingsShape) => routes.channels.map((channel) => `channel ${channel}`)

const listenWhats = (settings: SettingsShape) => [sessions, wakeChannelOf(settings), ...channelsOf(settings)]
const schemaWhats = [schema, objects, grants, doorbell]

/** Every check of this file, for the case that none can be made. */
export const databaseWhats = (settings: SettingsShape): ReadonlyArray<string> => [
  connection,
  version,
  primary,
  ...schemaWhats,
  ...listenWhats(settings)
]

/** A reason that ends with its own advice is taken apart. */
const apart = (reason: string, orElse: string): { readonly detail: string; readonly mend: string } => {
  const mend = pgAdviceIn(reason)
  return mend === undefined
    ? { detail: reason, mend: orElse }
    : { detail: reason.slice(0, -mend.length).replace(/\.? $/, ""), mend }
}

const reachIt = "Start PostgreSQL, or correct host, port and user in DATABASE_URL"

const unexpected = (what: string, error: DatabaseError): Finding =>
  Finding.Fails({ what, ...apart(error.reason, error.kind === "refused" ? "See the reason" : reachIt) })

interface Server {
  readonly version: string
  readonly number: number
  readonly database: string
  readonly role: string
  readonly replica: boolean
  readonly tls: string | null
}

const onServer = (server: Server): Findings => [
  Finding.Holds({
    what: connection,
    detail: `database ${server.database}, role ${server.role}, ${server.tls ?? "without TLS"}`
  }),
  server.number < 140_000
    ? Finding.Fails({ what: version, detail: `${server.version} is too old`, mend: "Use PostgreSQL 14 to 18" })
    : server.number >= 190_000
      ? Finding.Note({ what: version, detail: `${server.version}; tried with 14 to 18` })
      : Finding.Holds({ what: version, detail: server.version }),
  server.replica
    ? Finding.Fails({ what: primary, detail: "this server is a replica", mend: "Name the primary in DATABASE_URL" })
    : Finding.Holds({ what: primary, detail: "not a replica" })
]

const checkObjects = Effect.fnUntraced(function* (settings: SettingsShape) {
  const database = yield* Database
  const sql = yield* SqlClient
  const missing = yield* database.query(
    "look for objects",
    sql.unsafe<{ readonly object: string }>(StatusSql.MISSING_OBJECTS, [settings.schema])
  )
  return missing.length === 0
    ? Finding.Holds({ what: objects, detail: "all there" })
    : Finding.Fails({
        what: objects,
        detail: `not there, or not valid: ${missing.map(({ object }) => object).join(", ")}`,
        mend: "Create them as in sql/0001_event_outbox.sql"
      })
})

/** A problem of the schema is one of the tables or one of the rights; what comes after it can't be told. */
const onSchemaError = ({ mend, reason }: SchemaError): Findings => {
  if (mend === runGrants) {
    return [
      Finding.Holds({ what: schema, detail: "event_outbox is there" }),
      ...notChecked([objects], "the role may not look"),
      Finding.Fails({ what: grants, detail: reason, mend }),
      ...notChecked([doorbell], "the role may not look")
    ]
  }
  return [
    Finding.Fails({ what: schema, detail: reason, mend }),
    ...notChecked([objects, grants, doorbell], mend === runMigrate ? "no tables" : "the schema is not in order")
  ]
}

/** None at all is how a poll-only set-up is made; one that rings for nobody is a mistake. */
const onDoorbell = ({ wakeChannel }: SettingsShape, note: SchemaNote | undefined): Finding => {
  if (note === undefined) return Finding.Holds({ what: doorbell, detail: `rings on ${wakeChannel}` })
  return note.level === "info"
    ? Finding.Note({ what: doorbell, detail: note.message })
    : Finding.Fails({
        what: doorbell,
        detail: note.message,
        mend: `Let the trigger event_outbox_doorbell ring on ${wakeChannel}, or drop it for polls alone`
      })
}

const checkSchema = (settings: SettingsShape): Check<Database | SqlClient> =>
  Effect.gen(function* () {
    const database = yield* Database
    const sql = yield* SqlClient
    const names = outboxNames(settings.schema)
    const notes = yield* database.query("inspect the schema", verifySchema(sql, settings, names))
    const versions = yield* database.query(
      "read the migrations",
      sql.unsafe<{ readonly version: number; readonly name: string }>(StatusSql.namedVersions(names))
    )
    const [note] = notes
    return [
      Finding.Holds({ what: schema, detail: versions.map(({ name, version }) => `${version} (${name})`).join(", ") }),
      yield* checkObjects(settings),
      Finding.Holds({ what: grants, detail: "the role may do all that the service does" }),
      onDoorbell(settings, note)
    ]
  }).pipe(
    Effect.catchTags({
      SchemaError: (error) => Effect.succeed(onSchemaError(error)),
      DatabaseError: (error) =>
        Effect.succeed([
          unexpected(schema, error),
          ...notChecked([objects, grants, doorbell], "the schema could not be read")
        ])
    })
  )

const mendOf = ({ why }: ListenError): string => {
  switch (why) {
    case "pooler":
      return "Connect to PostgreSQL directly, or through a pooler in session mode"
    case "replica":
      return "Name the primary in DATABASE_URL"
    default:
      return reachIt
  }
}

/** A notification on the wake channel, from another session and back; nothing is sent on the channels of events. */
const checkListen = (settings: SettingsShape): Check<Database | SqlClient | PgConnector> =>
  Effect.gen(function* () {
    const connector = yield* PgConnector
    const database = yield* Database
    const sql = yield* SqlClient
    const { heartbeatTimeout, routes, wakeChannel } = settings
    const heard = yield* Deferred.make<void>()
    const channels = [...new Set([...routes.channels, wakeChannel])]
    const session = yield* openListenSession({
      connector,
      channels,
      schema: settings.schema,
      answerTimeout: heartbeatTimeout
    })({
      onNotification: (channel) => {
        if (channel === wakeChannel) Deferred.unsafeDone(heard, Effect.void)
        return true
      },
      onHandOver: () => {},
      onLost: () => {}
    })
    const registered = new Set(yield* session.registeredChannels)
    yield* database.query("notify on the wake channel", sql.unsafe("select pg_notify($1, '')", [wakeChannel]))
    const arrived = yield* Effect.timeoutOption(Deferred.await(heard), heartbeatTimeout)
    return [
      Finding.Holds({ what: sessions, detail: "notifications arrive; no transaction pooler in between" }),
      Option.isSome(arrived)
        ? Finding.Holds({ what: wakeChannelOf(settings), detail: "a notification came back" })
        : Finding.Fails({
            what: wakeChannelOf(settings),
            detail: "a notification did not come back in time",
            mend: "Connect to PostgreSQL directly, or through a pooler in session mode"
          }),
      ...routes.channels.map((channel) =>
        registered.has(channel)
          ? Finding.Holds({ what: `channel ${channel}`, detail: "can be listened on" })
          : Finding.Fails({
              what: `channel ${channel}`,
              detail: "the server does not have it registered",
              mend: "Connect to PostgreSQL directly, or through a pooler in session mode"
            })
      )
    ]
  }).pipe(
    Effect.scoped,
    Effect.catchTags({
      ListenError: (error) =>
        Effect.succeed([
          Finding.Fails({ what: sessions, ...apart(error.reason, mendOf(error)) }),
          ...notChecked(listenWhats(settings).slice(1), "LISTEN does not work")
        ]),
      DatabaseError: (error) =>
        Effect.succeed([
          unexpected(sessions, error),
          ...notChecked(listenWhats(settings).slice(1), "LISTEN could not be tried")
        ])
    })
  )

const everything = (settings: SettingsShape) =>
  Effect.gen(function* () {
    const database = yield* Database
    const sql = yield* SqlClient
    const [server] = yield* database.query("look at the server", sql.unsafe<Server>(StatusSql.SERVER))
    const onTables = yield* checkSchema(settings)
    const onListen =
      server?.replica === true
        ? notChecked(listenWhats(settings), "this server is a replica")
        : yield* checkListen(settings)
    return [...(server === undefined ? [] : onServer(server)), ...onTables, ...onListen]
  }).pipe(
    Effect.catchTag("DatabaseError", (error) =>
      Effect.succeed([
        Finding.Fails({ what: connection, ...apart(error.reason, reachIt) }),
        ...notChecked(databaseWhats(settings).slice(1), "no database connection")
      ])
    )
  )

export const checkDatabase = (settings: SettingsShape): Check =>
  everything(settings).pipe(
    Effect.provide(
      Layer.merge(Database.layer, PgConnector.layer).pipe(Layer.provide(Layer.succeed(Settings, settings)))
    )
  )
