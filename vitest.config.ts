import { defineConfig } from "vitest/config"
import { BaseSequencer, type TestSpecification } from "vitest/node"

/** The files that take longest come first: begun last, one would run alone while the other worker has nothing left to do. */
class LongestFirst extends BaseSequencer {
  override async sort(files: Array<TestSpecification>): Promise<Array<TestSpecification>> {
    const sorted = await super.sort(files)
    const isLong = ({ moduleId }: TestSpecification) => longest.test(moduleId)
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))]
  }
}

const longest = /\/test\/(faults\/campaign|live\/(neighbours|hostile)\/[^/]+|live\/Faults)\.test\.ts$/

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/servers.setup.ts"],
    sequence: { sequencer: LongestFirst },
    // Processes, not threads: on Linux a private server lives as long as the thread that started it.
    pool: "forks",
    testTimeout: 60_000,
    hookTimeout: 120_000,
    teardownTimeout: 30_000,
    maxWorkers: 2,
    minWorkers: 1
  }
})
