/**
 * What `check` finds out about one precondition, and how it shows it.
 */
import * as Data from "effect/Data"
import type * as Effect from "effect/Effect"

/**
 * - `Holds`
 * - `Note`: works, and may yet not be meant so.
 * - `Fails`: must be mended; `mend` says how.
 * - `NotChecked`: something before it failed.
 */
export type Finding = Data.TaggedEnum<{
  Holds: { readonly what: string; readonly detail: string }
  Note: { readonly what: string; readonly detail: string }
  Fails: { readonly what: string; readonly detail: string; readonly mend: string }
  NotChecked: { readonly what: string; readonly detail: string }
}>
export const Finding = Data.taggedEnum<Finding>()

export type Findings = ReadonlyArray<Finding>

/** A group of checks: finds out what it can, and never fails. */
export type Check<R = never> = Effect.Effect<Findings, never, R>

export const notChecked = (whats: ReadonlyArray<string>, detail: string): Findings =>
  whats.map((what) => Finding.NotChecked({ what, detail }))

const words: { readonly [tag in Finding["_tag"]]: string } = {
  Holds: "ok",
  Note: "note",
  Fails: "failed",
  NotChecked: "not checked"
}

export const allHold = (findings: Findings): boolean =>
  findings.every(({ _tag }) => _tag === "Holds" || _tag === "Note")

export const findingsText = (findings: Findings): string =>
  findings
    .map((finding) => {
      const line = `${words[finding._tag].padEnd(11)}  ${finding.what}: ${finding.detail}`
      return finding._tag === "Fails" ? `${line}\n${" ".repeat(13)}mend: ${finding.mend}` : line
    })
    .join("\n")

export const findingsJson = (findings: Findings): string =>
  JSON.stringify({
    ok: allHold(findings),
    checks: findings.map((finding) => ({
      what: finding.what,
      result: words[finding._tag],
      detail: finding.detail,
      mend: finding._tag === "Fails" ? finding.mend : null
    }))
  })
