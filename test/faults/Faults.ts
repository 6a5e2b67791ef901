/**
 * What a fault is, and the list of all.
 */
import type * as Effect from "effect/Effect"
import { networkFaults } from "./FaultsOfNetwork.js"
import { postgresFaults } from "./FaultsOfPostgres.js"
import { rabbitMqFaults } from "./FaultsOfRabbitMq.js"
import { processFaults } from "./FaultsOfUs.js"
import type * as Prng from "./Prng.js"
import type { World, WorldError } from "./World.js"

export interface FaultKind {
  readonly name: string
  readonly at: "PostgreSQL" | "RabbitMQ" | "network" | "us"
  /** Of one group, a round has one fault at most: two would undo each other. */
  readonly group: string
  /**
   * What it may do to notifications without a row. `kept`: none is lost. `gap`: those sent while LISTEN is down are.
   * `in hand`: those that a process holds die with it.
   */
  readonly live: "kept" | "gap" | "in hand"
  /** Decides the particulars. */
  readonly plan: (prng: Prng.Prng, replicas: number) => Plan
}

export interface Plan {
  readonly detail: string
  /** From the end of the injection to the beginning of the healing. */
  readonly holdMillis: number
  /** Queues whose messages the broker has reason to refuse meanwhile. */
  readonly refusedQueues?: ReadonlyArray<string>
  /** Does it, and returns what undoes it. */
  readonly inject: (world: World) => Effect.Effect<Effect.Effect<void, WorldError>, WorldError>
}

export const faultKinds: ReadonlyArray<FaultKind> = [
  ...postgresFaults,
  ...rabbitMqFaults,
  ...networkFaults,
  ...processFaults
]
