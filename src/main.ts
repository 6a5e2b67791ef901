#!/usr/bin/env node
/**
 * The edge: runs the command line's program and turns its end into an exit code.
 *
 * Loading the program takes the better part of a second. A stop in that time must not count as a crash, and must not go
 * unheard either: the first process of a container ignores every signal that it does not handle. So the handlers come
 * first, and everything else is loaded behind them.
 */
const stopBeforeStart = () => process.exit(0)
process.on("SIGTERM", stopBeforeStart)
process.on("SIGINT", stopBeforeStart)

const NodeRuntime = await import("@effect/platform-node/NodeRuntime")
const { exitCode, program, reportAtEdge } = await import("./Cli.js")

// From here on a signal interrupts the program, which then stops in order.
NodeRuntime.runMain(reportAtEdge(program(process.argv.slice(2))), {
  disableErrorReporting: true,
  disablePrettyLogger: true,
  teardown: (exit, onExit) => onExit(exitCode(exit))
})
process.off("SIGTERM", stopBeforeStart)
process.off("SIGINT", stopBeforeStart)

// Makes this a module, which may await at its top.
export {}
