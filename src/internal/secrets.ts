/**
 * Secrets: in a variable, or in a file that is read again at every use.
 */
import { readFile } from "node:fs/promises"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Redacted from "effect/Redacted"
import { SettingsError } from "../Errors.js"
import type { Secret } from "../Settings.js"
import type { Form } from "./settingForms.js"
import { shown } from "./shown.js"

/** A mounted file answers at once; one on a lost network drive never does. */
const READ_TIMEOUT = "5 seconds"

const failed = (setting: string, problem: string, mend: string) =>
  new SettingsError({ problems: [{ setting, problem, mend }] })

const check = (
  setting: string,
  text: string,
  form: Form<string>
): Effect.Effect<Redacted.Redacted<string>, SettingsError> =>
  Either.match(form.parse(text), {
    onLeft: (faults) => new SettingsError({ problems: faults.map((fault) => ({ setting, ...fault })) }),
    onRight: (value) => Effect.succeed(Redacted.make(value))
  })

/** Editors and `kubectl create secret` leave a line end behind that is no part of the secret. */
const withoutLineEnd = (text: string): string => {
  let end = text.length
  while (end > 0 && (text[end - 1] === "\n" || text[end - 1] === "\r")) end--
  return text.slice(0, end)
}

/** A secret in the variable itself. */
export const fromText = (setting: string, text: string, form: Form<string>): Secret => check(setting, text, form)

/** A secret in a file, which is read and checked anew each time the effect runs. */
export const fromFile = (setting: string, path: string, form: Form<string>): Secret =>
  Effect.tryPromise({
    try: (signal) => readFile(path, { encoding: "utf8", signal }),
    catch: (cause) =>
      failed(
        setting,
        `the file ${shown(path)} can't be read (${errorCode(cause)})`,
        "Check its path and who may read it"
      )
  }).pipe(
    Effect.timeoutFail({
      duration: READ_TIMEOUT,
      onTimeout: () =>
        failed(setting, `the file ${shown(path)} could not be read within ${READ_TIMEOUT}`, "Check its drive")
    }),
    Effect.map(withoutLineEnd),
    Effect.filterOrFail(
      (text) => text !== "",
      () => failed(setting, `the file ${shown(path)} is empty`, "Put the secret into it")
    ),
    Effect.flatMap((text) => check(setting, text, form))
  )

const errorCode = (cause: unknown): string =>
  cause instanceof Error && "code" in cause && typeof cause.code === "string" ? cause.code : "unknown error"
