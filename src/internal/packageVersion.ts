/** The version in the package's own description, which is the one place for it. */
import { readFileSync } from "node:fs"

export const packageVersion = (): string => {
  const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
    version: string
  }
  return version
}
