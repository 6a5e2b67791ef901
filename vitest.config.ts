import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/servers.setup.ts"],
    // Processes, not threads: on Linux a private server lives as long as the thread that started it.
    pool: "forks",
    testTimeout: 60_000,
    hookTimeout: 120_000,
    teardownTimeout: 30_000,
    maxWorkers: 2,
    minWorkers: 1
  }
})
