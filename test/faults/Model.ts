/**
 * What a campaign carries, and what is noted about it: the words that writers, consumers, faults and the ledger share.
 */

/** Where events of one kind go. `source` is their event type's or channel's prefix. */
export interface Lane {
  readonly queue: string
  readonly source: string
  readonly target: string
}

/** The exchange that one fault takes away. */
export const EXCHANGE = "faults_events"

/** Lanes of aggregates. The fault that fills a queue, deletes one, or takes the exchange away hits one lane only. */
export const aggregateLanes = {
  orders: { queue: "orders", source: "order.*", target: "orders" },
  invoices: { queue: "invoices", source: "invoice.*", target: "invoices" },
  small: { queue: "small", source: "small.*", target: "small" },
  deletable: { queue: "deletable", source: "deletable.*", target: "deletable" },
  exchange: { queue: "via_exchange", source: "routed.*", target: `${EXCHANGE}/{aggregate_id}` }
} satisfies Record<string, Lane>

/** Notifications without a row, and rows whose writer notifies as well. */
export const LIVE: Lane = { queue: "live", source: "faults_live", target: "live" }
export const PAIR: Lane = { queue: "pairs", source: "faults_pair", target: "pairs" }

export const lanes: ReadonlyArray<Lane> = [...Object.values(aggregateLanes), LIVE, PAIR]
export const routes = lanes.map(({ source, target }) => `${source}=${target}`).join(",")
export const queues = lanes.map(({ queue }) => queue)

export const AGGREGATES = 40
const laneList: ReadonlyArray<Lane> = Object.values(aggregateLanes)
/** An aggregate's events all go to one queue: across queues, nobody could see their order. */
export const laneOf = (aggregate: number): Lane => laneList[aggregate % laneList.length] ?? aggregateLanes.orders

/** `row`: in the table. `pair`: in the table and notified. `live`: only notified. */
export type EventKind = "row" | "pair" | "live"

/** One event that a writer tried to write. Times are epoch milliseconds of this machine. */
export interface WrittenEvent {
  /** In the payload; unique in a campaign. */
  readonly key: string
  readonly kind: EventKind
  readonly queue: string
  readonly aggregate: string | undefined
  /** Rolled back by a savepoint, whatever became of the transaction. */
  readonly takenBack: boolean
}

/** `unknown`: the COMMIT was sent and nobody answered. The marker row in the database knows. */
export type Fate = "committed" | "rolled back" | "unknown"

export interface WrittenTransaction {
  readonly tx: string
  readonly fate: Fate
  /** When its fate was known. */
  readonly endedAt: number
  readonly events: ReadonlyArray<WrittenEvent>
}

export interface Delivery {
  readonly key: string
  readonly messageId: string
  readonly queue: string
  readonly at: number
  /** Said by the broker: it had given this message to a consumer before. */
  readonly redelivered: boolean
  /** Counts the consumer's connections. */
  readonly session: number
}

/** A row of `event_outbox` as it is after the round. */
export interface StoredRow {
  readonly key: string
  readonly id: string
  readonly seq: number
  readonly queue: string
  readonly attempts: number
  readonly lastError: string | undefined
  readonly dead: boolean
  readonly processedAt: number | undefined
  readonly live: boolean
}

/** When a fault was there. `endedAt` is the end of the healing. */
export interface FaultSpan {
  readonly name: string
  readonly detail: string
  readonly beganAt: number
  readonly endedAt: number
}

/** What the schedule of a round explains; the ledger excuses nothing else. */
export interface Excuses {
  readonly faults: ReadonlyArray<FaultSpan>
  /** Queues whose messages the broker had a reason to refuse. */
  readonly refusedQueues: ReadonlySet<string>
  /** From when on notifications may be lost: LISTEN was down, or a process died with some in hand. */
  readonly liveLostFrom: number | undefined
  /** When queues were deleted: what was confirmed and not yet consumed went with them. */
  readonly deletions: ReadonlyArray<{ readonly queue: string; readonly from: number; readonly to: number }>
  /** The broker was killed: it may give out again what had been acknowledged just before. */
  readonly brokerKilledAt: ReadonlyArray<number>
}

/**
 * What became of an event: `handed over` is a delivered notification of a round in which replicas took over from one
 * another, so that the new holder may publish it again, even in the next round.
 */
export type KeyState = "delivered" | "lost" | "handed over"

export interface RoundRecord {
  readonly transactions: ReadonlyArray<WrittenTransaction>
  /** The transactions that the database has, by their marker rows. */
  readonly committed: ReadonlySet<string>
  readonly rows: ReadonlyArray<StoredRow>
  /** In the order of their arrival. */
  readonly deliveries: ReadonlyArray<Delivery>
  /** Of earlier rounds. */
  readonly earlier: ReadonlyMap<string, KeyState>
  readonly excuses: Excuses
}

export type ComplaintKind =
  | "lost"
  | "inverted"
  | "phantom"
  | "duplicated"
  | "second message id"
  | "attempts"
  | "dead letter"
  | "stuck"
  | "database"
  | "not ready"
  | "exited"
  | "leak"
  | "memory"

export interface Complaint {
  readonly kind: ComplaintKind
  readonly count: number
  readonly examples: ReadonlyArray<string>
}

export interface Totals {
  /** Committed: rows and live notifications. */
  readonly events: number
  readonly deliveries: number
  readonly lost: number
  readonly inverted: number
  readonly phantom: number
  /** Deliveries beyond an event's first, all of them explained unless there is a complaint. */
  readonly duplicates: number
  /** Given out again by the broker itself. */
  readonly redelivered: number
  /** Bare notifications that two replicas published, when one took over from the other. */
  readonly handedOver: number
  readonly liveLost: number
  readonly goneWithQueue: number
  readonly refused: number
}
