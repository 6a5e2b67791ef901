/**
 * Prints "N passed, N failed" for a run of the tests: `node dev/count-tests.mjs <vitest's json report> <its exit code>
 * <steps that failed before>`. A test file that could not run, and a run that failed without a failed test, count as one.
 */
import { readFileSync } from "node:fs"

const [file = "", exitCode = "1", failedBefore = "0"] = process.argv.slice(2)
let passed = 0
let failed = Number(failedBefore)
try {
  const report = JSON.parse(readFileSync(file, "utf8"))
  passed = report.numPassedTests
  const brokenFiles = report.testResults.filter(
    ({ status, assertionResults }) => status === "failed" && !assertionResults.some((test) => test.status === "failed")
  )
  const inTests = report.numFailedTests + brokenFiles.length
  failed += inTests === 0 && exitCode !== "0" ? 1 : inTests
} catch {
  failed += 1
}
process.stdout.write(`${passed} passed, ${failed} failed\n`)
process.exit(failed === 0 && passed > 0 ? 0 : 1)
