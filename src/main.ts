#!/usr/bin/env node
/** The edge: runs the command line's program and turns its end into an exit code. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { exitCode, program, reportAtEdge } from "./Cli.js"

NodeRuntime.runMain(reportAtEdge(program(process.argv.slice(2))), {
  disableErrorReporting: true,
  disablePrettyLogger: true,
  teardown: (exit, onExit) => onExit(exitCode(exit))
})
