#!/usr/bin/env node
/**
 * The edge: runs the command line's program and turns its end into an exit code.
 *
 * Loading the program takes the better part of a second. A stop in that time must not count as a crash of the service, nor
 * as the success of a command that did nothing, and must not go unheard: the first process of a container ignores every
 * signal that it does not handle. So the handlers come first, and everything else is loaded behind them.
 */
const stopBeforeStart = () => process.exit([undefined, "run"].includes(process.argv[2]) ? 0 : 1)
process.on("SIGTERM", stopBeforeStart)
process.on("SIGINT", stopBeforeStart)

const NodeRuntime = await import("@effect/platform-node/NodeRuntime")
const { endsByStop, exitCode, program, reportAtEdge } = await import("./Cli.js")

// From here on a signal interrupts the program, which then stops in order.
const args = process.argv.slice(2)
NodeRuntime.runMain(reportAtEdge(program(args)), {
  disableErrorReporting: true,
  disablePrettyLogger: true,
  teardown: (exit, onExit) => onExit(exitCode(exit, endsByStop(args)))
})
process.off("SIGTERM", stopBeforeStart)
process.off("SIGINT", stopBeforeStart)

// Makes this a module, which may await at its top.
export {}
