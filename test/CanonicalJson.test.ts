import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as FastCheck from "effect/FastCheck"
import { canonical } from "../src/CanonicalJson.js"
import { isExact, mayBeInexact } from "../src/internal/exactNumbers.js"

const expectJson = (text: string, expected: string) => assert.deepStrictEqual(canonical(text), Either.right(expected))

const reasonOf = (text: string): string =>
  Either.match(canonical(text), { onLeft: (error) => error.reason, onRight: (json) => `unexpectedly JSON: ${json}` })

const byV8 = (text: string): string => JSON.stringify(JSON.parse(text))

/** Whether two JSON numbers have the same value, by whole-number arithmetic alone. */
const sameValue = (a: string, b: string): boolean => {
  const scale = 700n
  const scaled = (token: string): bigint => {
    const [mantissa = "", exponent = "0"] = token.toLowerCase().split("e")
    const [whole = "", fraction = ""] = mantissa.split(".")
    return BigInt(whole + fraction) * 10n ** (scale + BigInt(exponent) - BigInt(fraction.length))
  }
  return scaled(a) === scaled(b)
}

const digits = (max: number) =>
  FastCheck.array(FastCheck.constantFrom(..."0123456789"), { minLength: 1, maxLength: max }).map((all) => all.join(""))

/** JSON numbers of any length and size, with many that sit on the edge of what a double holds. */
const anyNumber = FastCheck.oneof(
  FastCheck.tuple(
    FastCheck.constantFrom("", "-"),
    digits(24).map((text) => text.replace(/^0+(?=\d)/, "")),
    FastCheck.option(digits(24), { nil: undefined }),
    FastCheck.option(FastCheck.integer({ min: -320, max: 310 }), { nil: undefined })
  ).map(
    ([sign, whole, fraction, exponent]) =>
      `${sign}${whole}${fraction === undefined ? "" : `.${fraction}`}${exponent === undefined ? "" : `e${exponent}`}`
  ),
  FastCheck.double({ noNaN: true, noDefaultInfinity: true }).map((double) => double.toPrecision(17)),
  FastCheck.bigInt({ min: 2n ** 53n - 40n, max: 2n ** 53n + 40n }).map(String)
)

/** A double as different writers spell it; each spelling has exactly its value. */
const doubleText = FastCheck.tuple(
  FastCheck.double({ noNaN: true, noDefaultInfinity: true }),
  FastCheck.constantFrom(
    (double: number) => JSON.stringify(double),
    (double: number) => double.toExponential(),
    (double: number) =>
      double
        .toExponential()
        .toUpperCase()
        .replace("E", "0E")
        .replace(/^(-?\d)0E/, "$1.0E")
  )
).map(([double, spell]) => spell(double))

const space = FastCheck.constantFrom("", " ", "\n", "\t", "\r\n  ")

const stringText = FastCheck.array(
  FastCheck.oneof(
    FastCheck.constantFrom("\\n", "\\/", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "\\ud800", "\\u0000", "é", "😀"),
    FastCheck.constantFrom("1e400", "9007199254740993,", "@0@", "{", "]", ":", " ", "__proto__", "7", "a")
  ),
  { maxLength: 4 }
).map((parts) => `"${parts.join("")}"`)

/** JSON texts with odd white space, escapes and keys; the numbers come from the given arbitrary. */
const jsonText = (number: FastCheck.Arbitrary<string>): FastCheck.Arbitrary<string> =>
  FastCheck.letrec<{ value: string }>((tie) => ({
    value: FastCheck.oneof(
      { depthSize: "small", withCrossShrink: true },
      FastCheck.oneof(number, stringText, FastCheck.constantFrom("true", "false", "null")),
      FastCheck.tuple(space, FastCheck.array(tie("value"), { maxLength: 4 }), space).map(
        ([before, items, after]) => `${before}[${before}${items.join(`${after},${before}`)}${after}]${after}`
      ),
      FastCheck.tuple(space, FastCheck.array(FastCheck.tuple(stringText, tie("value")), { maxLength: 4 }), space).map(
        ([before, items, after]) =>
          `{${before}${items.map(([key, item]) => `${key}${after}:${before}${item}`).join(`${after},`)}${after}}`
      )
    )
  })).value

describe("canonical JSON", () => {
  it("loses white space, and keeps V8's order of keys and V8's escapes", () => {
    expectJson(' { "b" : 1 , "a" : "\\u00e9\\/" , "10" : [ ] , "9" : { } }\n', '{"9":{},"10":[],"b":1,"a":"é/"}')
  })

  it("gives the last of equal keys at the place of the first, and keeps a key __proto__", () => {
    expectJson('{"a":1,"b":2,"a":3,"__proto__":{"x":1e400}}', '{"a":3,"b":2,"__proto__":{"x":1e400}}')
  })

  it.each([
    "9007199254740993",
    "-9007199254740993",
    "1e400",
    "1E400",
    "-1e-400",
    "0.123456789012345678901",
    "4.9e-324",
    "1.00000000000000000001",
    "100000000000000000000000000000000000001"
  ])("keeps the digits of %s, which a double would change", (number) => {
    expectJson(number, number)
    expectJson(`{"a": [${number} , ${number}\n], "b":${number}\t}`, `{"a":[${number},${number}],"b":${number}}`)
    for (const [before, after] of ["[]", "{}", "  ", ",,"].map((pair) => pair.split(""))) {
      assert.isTrue(mayBeInexact(`${before === "{" ? ":" : before}${number}${after}`))
    }
  })

  it.each([
    ["1.0", "1"],
    ["-0", "0"],
    ["-0.000e5", "0"],
    ["0.1", "0.1"],
    ["1.50", "1.5"],
    ["1e5", "100000"],
    ["1e21", "1e+21"],
    ["1000000000000000000000", "1e+21"],
    ["9007199254740992", "9007199254740992"],
    ["0.30000000000000004", "0.30000000000000004"],
    ["0.0000001", "1e-7"],
    ["5e-324", "5e-324"],
    ["0e99999999999999999999", "0"],
    ["0.000000000000000000000", "0"]
  ])("writes %s, whose value a double has, as V8 does: %s", (number, expected) => {
    expectJson(number, expected)
    expectJson(`[${number} ,1e400]`, `[${expected},1e400]`)
  })

  it("does not touch what only looks like a number inside a string or a key", () => {
    const text = '{"9007199254740993":"1e400","a":"x 1e400, \\"1e400","b\\\\":9007199254740993}'
    expectJson(text, text)
  })

  it("keeps strings that look like its own marks", () => {
    const text = '["@0@","@0@0","@1@0","@2@@3@",1e400,"a\\"@3@0","\\"@5@0",{"@6@0":1e400}]'
    expectJson(text, text)
  })

  it.each(["{9007199254740993:1}", "0123456789012345678901", "1e400x", '1e400"a"', "{", "NaN", "'a'", "[1,]", " "])(
    "refuses %s, which is not JSON",
    (text) => {
      assert.match(reasonOf(text), /^the payload is not JSON: /)
    }
  )

  it("says of an empty payload that it is empty", () => {
    assert.strictEqual(reasonOf(""), "the payload is empty, which is not JSON")
  })

  it("tells no control character of a bad payload, since PostgreSQL could not store the reason", () => {
    assert.notMatch(reasonOf("\u0000"), /\p{Cc}/u)
    assert.notMatch(reasonOf('["\u0000"]'), /\p{Cc}/u)
  })

  it("refuses 100,000 levels with a reason instead of a crash", () => {
    const deep = (inner: string) => "[".repeat(100_000) + inner + "]".repeat(100_000)
    assert.strictEqual(reasonOf(deep("")), "the payload is nested too deeply to be written as JSON")
    assert.strictEqual(reasonOf(deep("1e400")), "the payload is nested too deeply to be written as JSON")
  })

  it("handles a number of a million digits and a string of a million digits in little time", () => {
    const long = "1".repeat(1_000_000)
    const small = `0.${"0".repeat(1_000_000)}1`
    expectJson(`[${long}, "${long}", ${small}]`, `[${long},"${long}",${small}]`)
  })

  it.effect.prop("is exactly V8's text when every number is a double's", { text: jsonText(doubleText) }, ({ text }) =>
    Effect.sync(() => expectJson(text, byV8(text)))
  )

  it.effect.prop(
    "gives each number of a list V8's spelling or its own digits",
    { all: FastCheck.array(anyNumber) },
    (given) =>
      Effect.sync(() => {
        const expected = given.all.map((token) => {
          const spelled = byV8(token)
          return spelled !== "null" && sameValue(token, spelled) ? spelled : token
        })
        expectJson(`[ ${given.all.join(" ,\n")} ]`, `[${expected.join(",")}]`)
      })
  )

  it.effect.prop(
    "means the same to V8, and changes nothing when it is applied again",
    { text: jsonText(anyNumber) },
    ({ text }) =>
      Effect.sync(() => {
        const once = Either.getOrThrow(canonical(text))
        expectJson(once, once)
        assert.strictEqual(byV8(once), byV8(text))
      })
  )
})

describe("exact numbers", () => {
  it.effect.prop(
    "are those whose value the double's text has, by whole-number arithmetic",
    { token: anyNumber },
    (given) =>
      Effect.sync(() => {
        const double = Number(given.token)
        const expected = Number.isFinite(double) && sameValue(given.token, String(double))
        assert.strictEqual(isExact(given.token), expected, given.token)
      })
  )

  it.effect.prop("are never overlooked by the quick test", { token: anyNumber, before: space, after: space }, (given) =>
    Effect.sync(() => {
      if (isExact(given.token)) return
      for (const [open, close] of [
        ["", ""],
        ["[", "]"],
        ['{"a":', "}"],
        ["[1,", ",1]"]
      ]) {
        assert.isTrue(mayBeInexact(`${open}${given.before}${given.token}${given.after}${close}`), given.token)
      }
    })
  )
})
