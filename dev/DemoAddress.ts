/**
 * Where the running demo's servers are, for the commands that want to talk to them: `.data/demo.json`.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as ProcessTable from "./ProcessTable.js"

/** Git-ignored; all that a demo leaves behind. */
export const dataFolder = fileURLToPath(new URL("../.data", import.meta.url))

const file = Path.join(dataFolder, "demo.json")

const DemoAddress = Schema.Struct({
  owner: ProcessTable.ProcessEntry,
  databaseUrl: Schema.String,
  schema: Schema.String
})
export type DemoAddress = typeof DemoAddress.Type

const Text = Schema.parseJson(DemoAddress)

/** The demo that runs now, if one does. */
export const find: Effect.Effect<Option.Option<DemoAddress>> = Effect.gen(function* () {
  if (!Fs.existsSync(file)) return Option.none()
  const found = yield* Effect.option(Schema.decode(Text)(Fs.readFileSync(file, "utf8")))
  if (Option.isNone(found)) return Option.none()
  return (yield* ProcessTable.stillRunning([found.value.owner])).length > 0 ? found : Option.none()
})

/** Leaves the address there until the scope closes; for this user's eyes only, since the URL may hold a password. */
export const publish = (address: Omit<DemoAddress, "owner">): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function* () {
    const [owner] = yield* ProcessTable.treeOf(process.pid)
    if (owner === undefined) return
    const text = yield* Effect.orDie(Schema.encode(Text)({ owner, ...address }))
    yield* Effect.acquireRelease(
      Effect.sync(() => Fs.writeFileSync(file, text, { mode: 0o600 })),
      () => Effect.sync(() => Fs.rmSync(file, { force: true }))
    )
  })
