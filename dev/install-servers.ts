/** Makes sure that a private RabbitMQ can be started on this machine; PostgreSQL comes with the npm dependencies. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as RabbitMqPrograms from "./RabbitMqPrograms.js"

RabbitMqPrograms.findOrInstall.pipe(
  Effect.tapError((error) => Console.error(error.message)),
  NodeRuntime.runMain({ disableErrorReporting: true })
)
