/**
 * The whole service as one layer graph. Read it from top to bottom.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Admin } from "./Admin.js"
import { AmqpPublisher } from "./AmqpPublisher.js"
import { Database } from "./Database.js"
import { DeadLetters } from "./DeadLetters.js"
import { DoorbellDatabase } from "./Doorbell.js"
import { Fatal } from "./Fatal.js"
import { Health } from "./Health.js"
import * as HealthServer from "./HealthServer.js"
import { MetricsText } from "./MetricsText.js"
import { Outbox } from "./Outbox.js"
import * as OutboxGauges from "./OutboxGauges.js"
import { PgConnector } from "./PgConnector.js"
import { PgListen } from "./PgListen.js"
import { Relay } from "./Relay.js"
import { SchemaGate } from "./SchemaGate.js"
import * as Tracing from "./Tracing.js"

/** Shows the components' states to the probes while they run, and "stopping" from the first moment of the shutdown. */
const ReportHealth = Layer.scopedDiscard(
  Effect.gen(function* () {
    const health = yield* Health
    const listen = yield* PgListen
    const publisher = yield* AmqpPublisher
    const gate = yield* SchemaGate
    yield* health.attach({ pg: listen.status, amqp: publisher.status, schemaInOrder: gate.isOpen })
    yield* Effect.addFinalizer(() => health.stop)
  })
)

/**
 * Layers close in the opposite order of the list below, top first:
 *
 * 1. `ReportHealth`: `/readyz` answers 503 from here on.
 * 2. `Relay`, `OutboxGauges`: intake stops (LISTEN), the jobs stop, every batch in hand is published and settled.
 * 3. `AmqpPublisher`: the confirm channel and the connection are closed.
 * 4. `Outbox`, `Admin.open`: `/admin` answers 503. `Database`: the pool is closed.
 * 5. `Tracing`: the last traces are sent, two seconds at most.
 * 6. `HealthServer`: the HTTP server, last.
 *
 * What it needs from outside: the settings, and `Fatal`, through which a loop that ends brings the process down.
 */
export const App = ReportHealth.pipe(
  Layer.provideMerge(Relay.layer),
  Layer.provideMerge(OutboxGauges.layer),
  Layer.provideMerge(SchemaGate.layer),
  Layer.provideMerge(PgListen.layer),
  Layer.provideMerge(AmqpPublisher.layer),
  Layer.provideMerge(Outbox.layer),
  Layer.provideMerge(Admin.open),
  Layer.provideMerge(DeadLetters.layer),
  Layer.provideMerge(DoorbellDatabase.layer),
  Layer.provideMerge(Database.layer),
  Layer.provideMerge(PgConnector.layer),
  Layer.provideMerge(Tracing.layer),
  Layer.provideMerge(HealthServer.layer),
  Layer.provideMerge(MetricsText.layer),
  Layer.provideMerge(Admin.layer),
  Layer.provideMerge(Health.layer),
  Layer.provideMerge(Fatal.layer)
)
