/** The words behind a command: what is understood, and what is refused with which words. */
import { assert, describe, it } from "@effect/vitest"
import * as Either from "effect/Either"
import { optionLines, parseWords } from "../src/internal/commandLine.js"

const options = [
  { name: "--event-type", value: "<type>", meaning: "events of this type" },
  { name: "--limit", value: "<n>", meaning: "at most so many" },
  { name: "--all", meaning: "all of them" }
]

const parse = (line: string, mostOperands = 1) =>
  Either.map(parseWords(line === "" ? [] : line.split(" "), options, mostOperands), ({ flags, operands, values }) => ({
    operands,
    flags: [...flags],
    values: Object.fromEntries(values)
  }))

describe("a command line", () => {
  const understood: ReadonlyArray<readonly [line: string, parsed: object]> = [
    ["", { operands: [], flags: [], values: {} }],
    ["--all x", { operands: ["x"], flags: ["--all"], values: {} }],
    ["x --all", { operands: ["x"], flags: ["--all"], values: {} }],
    ["--event-type a --limit=7", { operands: [], flags: [], values: { "--event-type": "a", "--limit": "7" } }],
    ["--event-type=--x=y", { operands: [], flags: [], values: { "--event-type": "--x=y" } }],
    ["--event-type=", { operands: [], flags: [], values: { "--event-type": "" } }],
    ["-- --all", { operands: ["--all"], flags: [], values: {} }],
    ["-", { operands: ["-"], flags: [], values: {} }],
    ["-h", { operands: [], flags: ["--help"], values: {} }],
    ["--help", { operands: [], flags: ["--help"], values: {} }]
  ]
  for (const [line, parsed] of understood) {
    it(`"${line}" is understood`, () => assert.deepStrictEqual(Either.getOrNull(parse(line)), parsed))
  }

  const refused: ReadonlyArray<readonly [line: string, reason: string]> = [
    ["--evnt-type x", "unknown option: --evnt-type; did you mean --event-type?"],
    ["--frobnicate", "unknown option: --frobnicate"],
    ["-a", "unknown option: -a"],
    ["--evnt-type=secret", "unknown option: --evnt-type; did you mean --event-type?"],
    ["--limit", "--limit needs a value: --limit <n>"],
    ["--event-type --all", "--event-type needs a value: --event-type <type>"],
    ["--all=yes", "--all takes no value"],
    ["--all --all", "--all is given twice"],
    ["--limit 1 --limit 2", "--limit is given twice"],
    ["a b", 'unexpected argument: "b"'],
    ["a -- b", 'unexpected argument: "b"']
  ]
  for (const [line, reason] of refused) {
    it(`"${line}" is refused: ${reason}`, () => assert.strictEqual(Either.getOrNull(Either.flip(parse(line))), reason))
  }

  it("has its options explained in two columns, --help among them", () => {
    assert.strictEqual(
      optionLines(options),
      [
        "  --event-type <type>  events of this type",
        "  --limit <n>          at most so many",
        "  --all                all of them",
        "  --help               show this text"
      ].join("\n")
    )
  })
})
