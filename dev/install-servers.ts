/**
 * Makes sure that a private RabbitMQ can be started on this machine, and that `promtool` is there; PostgreSQL comes with the
 * npm dependencies. Nothing can be tested without a broker; without promtool the one test that needs it fails.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as PromTool from "./PromTool.js"
import * as RabbitMqPrograms from "./RabbitMqPrograms.js"

RabbitMqPrograms.findOrInstall.pipe(
  Effect.tapError((error) => Console.error(error.message)),
  Effect.zipRight(Effect.catchAll(PromTool.findOrInstall, (error) => Console.error(error.message))),
  NodeRuntime.runMain({ disableErrorReporting: true })
)
