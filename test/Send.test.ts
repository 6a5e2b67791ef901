/** `npm run send`, as far as it goes without a demo that runs. */
import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"

const script = fileURLToPath(new URL("../dev/send.ts", import.meta.url))

const send = (...args: ReadonlyArray<string>) =>
  Effect.async<{ readonly failed: boolean; readonly stderr: string }>((resume) => {
    execFile(process.execPath, ["--import", "tsx", script, ...args], (error, _, stderr) =>
      resume(Effect.succeed({ failed: error !== null, stderr }))
    )
  })

describe("npm run send", () => {
  it.live("says that a payload is not JSON, and how to write one, before it looks for a database", () =>
    Effect.gen(function* () {
      const { failed, stderr } = yield* send("campaign_click", "{user: 7}")
      assert.isTrue(failed)
      assert.match(stderr, /^The payload is not JSON: \{user: 7\}\n/)
      assert.include(stderr, `npm run send -- campaign_click '{"a":1}'`)
    })
  )
})
