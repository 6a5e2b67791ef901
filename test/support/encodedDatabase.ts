/**
 * Databases in other encodings than UTF-8.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { inject } from "vitest"
import { migrate, type TestDatabase } from "./Servers.js"
import { sqlClient } from "./Sql.js"

/** A database of its own with the tables in it. `SQL_ASCII` is PostgreSQL's word for any bytes at all. */
export const encodedDatabase = (
  encoding: "SQL_ASCII" | "LATIN1" | "EUC_CN"
): Effect.Effect<TestDatabase, never, Scope.Scope> =>
  Effect.gen(function* () {
    const serverUrl = inject("postgresUrl")
    const name = `test_${process.pid}_${encoding.toLowerCase()}`
    const asAdmin = (statement: string) =>
      Effect.scoped(Effect.flatMap(sqlClient(serverUrl), ({ query }) => query(statement))).pipe(Effect.orDie)
    yield* Effect.acquireRelease(
      asAdmin(`create database ${name} template template0 encoding '${encoding}' locale 'C'`),
      () => asAdmin(`drop database if exists ${name} with (force)`)
    )
    const url = Object.assign(new URL(serverUrl), { pathname: `/${name}` }).href
    yield* migrate(url)
    return { name, url }
  })
