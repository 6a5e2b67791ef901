/**
 * What the probes answer: the components' own states, attached once they exist. Nothing here asks a server.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { AmqpStatus } from "./AmqpPublisher.js"
import type { ListenStatus } from "./PgListen.js"

export interface HealthReport {
  readonly pg: ListenStatus
  readonly amqp: AmqpStatus
  readonly schemaInOrder: boolean
  /** The process is on its way down: alive, but not to be sent anything. */
  readonly stopping: boolean
}

export interface HealthSources {
  readonly pg: Effect.Effect<ListenStatus>
  readonly amqp: Effect.Effect<AmqpStatus>
  readonly schemaInOrder: Effect.Effect<boolean>
}

/**
 * Below everything else in the graph, so that the HTTP server is up first and down last; the components above it
 * attach their states when they start.
 */
export class Health extends Context.Tag("pg-listener/Health")<
  Health,
  {
    readonly attach: (sources: HealthSources) => Effect.Effect<void>
    readonly stop: Effect.Effect<void>
    readonly report: Effect.Effect<HealthReport>
  }
>() {
  static readonly layer: Layer.Layer<Health> = Layer.sync(this, () => {
    let stopping = false
    let sources: HealthSources = {
      pg: Effect.succeed({ connected: false, disconnectedAt: undefined }),
      amqp: Effect.succeed({ connected: false, blocked: false, blockedReason: undefined }),
      schemaInOrder: Effect.succeed(false)
    }
    return {
      attach: (attached) =>
        Effect.sync(() => {
          sources = attached
        }),
      stop: Effect.sync(() => {
        stopping = true
      }),
      report: Effect.suspend(() =>
        Effect.all({
          pg: sources.pg,
          amqp: sources.amqp,
          schemaInOrder: sources.schemaInOrder,
          stopping: Effect.sync(() => stopping)
        })
      )
    }
  })
}
