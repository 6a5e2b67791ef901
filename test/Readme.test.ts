import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { settingsTable } from "../src/Settings.js"

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8")

/** The routes' default is a table of its own in the README. */
const shownDefault = (name: string, text: string) => (name === "PG_LISTENER_ROUTES" ? "the five below" : `\`${text}\``)

describe("the README", () => {
  it("lists every setting with its default and meaning, as --help does", () => {
    const rows = settingsTable.map(
      ({ default: fallback, defaultText, meaning, name }) =>
        `| \`${name}\` | ${fallback === undefined ? defaultText : shownDefault(name, fallback)} | ${meaning} |`
    )
    const expected = ["| variable | default | meaning |", "| --- | --- | --- |", ...rows].join("\n")
    const shown = readme.split("<!-- settings:begin -->")[1]?.split("<!-- settings:end -->")[0]?.trim()
    assert.strictEqual(shown, expected)
  })
})
