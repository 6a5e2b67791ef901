/** Names that appear in traces. Those of attributes are OpenTelemetry's own, where it has one. */

export const spanNames = {
  cycle: "relay.cycle",
  claim: "outbox.claim",
  publish: "amqp.publish",
  settle: "outbox.settle"
} as const

/** Of a cycle: rows claimed, and what became of them. A cycle that claimed none has none of these. */
export const cycleAttributes = {
  claimed: "outbox.claimed",
  processed: "outbox.processed",
  failed: "outbox.failed",
  unknown: "outbox.unknown"
} as const

export const MESSAGE_COUNT = "messaging.batch.message_count"

export const postgresSpan = { kind: "client", attributes: { "db.system.name": "postgresql" } } as const

export const rabbitSpan = {
  kind: "producer",
  attributes: { "messaging.system": "rabbitmq", "messaging.operation.type": "send" }
} as const
