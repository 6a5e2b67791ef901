/** What `deploy/monitoring` asks for is what the service tells, and each alert comes when it should. */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as PromTool from "../dev/PromTool.js"
import { run } from "../dev/RunProgram.js"
import { isOurs } from "../src/Metrics.js"

const folder = fileURLToPath(new URL("../deploy/monitoring/", import.meta.url))
const read = (file: string) => readFileSync(`${folder}${file}`, "utf8")

const promtool = (...args: ReadonlyArray<string>) =>
  Effect.flatMap(PromTool.findOrInstall, (command) => run("promtool", { command, args: [...args] }, {}, 30_000))

/** Figures that are read from the components and from Node at each scrape. */
const READ_AT_SCRAPE =
  /^(pg_listener_(connected|build_info)|amqp_(connected|blocked)|process_(cpu_seconds_total|resident_memory_bytes))$/

const names = (text: string) => [
  ...new Set(
    [...text.matchAll(/\b(?:outbox|pg_listener|amqp|process|nodejs)_[a-z_]+\b/g)].map(([name]) =>
      name.replace(/_bucket$/, "")
    )
  )
]

describe("the alerts", () => {
  it.live("each have a case in which they come, and one in which they don't; promtool runs them", () =>
    Effect.gen(function* () {
      yield* promtool("check", "rules", `${folder}alerts.yml`)
      yield* promtool("test", "rules", `${folder}alerts.test.yml`)
      const cases = read("alerts.test.yml")
      for (const [, alert] of read("alerts.yml").matchAll(/alert: (\w+)/g)) {
        assert.isAtLeast(cases.split(`alertname: ${alert}\n`).length - 1, 2, alert)
      }
    })
  )
})

it("alerts and dashboard use only figures that the service has", () => {
  for (const file of ["alerts.yml", "dashboard.json"]) {
    const used = names(read(file).replaceAll("pg_listener_build_info, job", "pg_listener_build_info"))
    assert.isAbove(used.length, 8, file)
    assert.deepStrictEqual(
      used.filter((name) => !isOurs(name) && !READ_AT_SCRAPE.test(name)),
      [],
      file
    )
  }
})
