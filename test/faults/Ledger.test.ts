import { assert, describe, it } from "@effect/vitest"
import { settle } from "./Ledger.js"
import type {
  ComplaintKind,
  Delivery,
  Excuses,
  RoundRecord,
  StoredRow,
  WrittenEvent,
  WrittenTransaction
} from "./Model.js"

const event = (key: string, more: Partial<WrittenEvent> = {}): WrittenEvent => ({
  key,
  kind: "row",
  queue: "orders",
  aggregate: "a",
  takenBack: false,
  ...more
})
const transaction = (tx: string, ...events: ReadonlyArray<WrittenEvent>): WrittenTransaction => ({
  tx,
  fate: "committed",
  endedAt: 10_000,
  events
})
const row = (key: string, seq: number, more: Partial<StoredRow> = {}): StoredRow => ({
  key,
  id: `id of ${key}`,
  seq,
  queue: "orders",
  attempts: 0,
  lastError: undefined,
  dead: false,
  processedAt: 10_100,
  live: false,
  ...more
})
const delivery = (key: string, more: Partial<Delivery> = {}): Delivery => ({
  key,
  messageId: `id of ${key}`,
  queue: "orders",
  at: 10_090,
  redelivered: false,
  session: 1,
  ...more
})
const noExcuses: Excuses = {
  faults: [],
  refusedQueues: new Set(),
  liveLostFrom: undefined,
  deletions: [],
  brokerKilledAt: []
}

/** Two events of one aggregate that went well. */
const good: RoundRecord = {
  transactions: [transaction("t1", event("k1")), transaction("t2", event("k2"))],
  committed: new Set(["t1", "t2"]),
  rows: [row("k1", 1), row("k2", 2)],
  deliveries: [delivery("k1"), delivery("k2")],
  earlier: new Map(),
  excuses: noExcuses
}

const complaints = (record: Partial<RoundRecord>): ReadonlyArray<ComplaintKind> =>
  settle({ ...good, ...record }).complaints.map(({ kind }) => kind)

const excused = (more: Partial<Excuses>): Excuses => ({ ...noExcuses, ...more })
const fault = (beganAt: number, endedAt: number) => ({ name: "reset", detail: "", beganAt, endedAt })

const live = { transactions: [transaction("t1", event("k1", { kind: "live", aggregate: undefined, queue: "live" }))] }

describe("the ledger", () => {
  it("has nothing to say about a round in which everything arrived once, in order", () => {
    const { complaints, keys, totals } = settle(good)
    assert.deepStrictEqual(complaints, [])
    assert.include(totals, { events: 2, deliveries: 2, lost: 0, inverted: 0, phantom: 0, duplicates: 0 })
    assert.deepStrictEqual(
      [...keys],
      [
        ["k1", "delivered"],
        ["k2", "delivered"]
      ]
    )
  })

  it("finds a processed row whose message never came", () => {
    assert.deepStrictEqual(complaints({ deliveries: [delivery("k1")] }), ["lost"])
  })

  it("finds a committed event whose row is gone, delivered or not", () => {
    assert.deepStrictEqual(complaints({ rows: [row("k1", 1)] }), ["lost"])
  })

  it("finds a row that is still pending, and a dead letter", () => {
    const pending = row("k2", 2, { processedAt: undefined })
    assert.deepStrictEqual(complaints({ rows: [row("k1", 1), pending], deliveries: [delivery("k1")] }), ["stuck"])
    assert.deepStrictEqual(complaints({ rows: [row("k1", 1), { ...pending, dead: true }] }), ["dead letter"])
  })

  it("finds two events of an aggregate that came in the wrong order", () => {
    assert.deepStrictEqual(complaints({ deliveries: [delivery("k2"), delivery("k1")] }), ["inverted"])
  })

  it("judges the order by first deliveries: an early event that comes again later is no inversion", () => {
    const deliveries = [delivery("k1"), delivery("k2"), delivery("k1")]
    assert.deepStrictEqual(complaints({ deliveries, excuses: excused({ faults: [fault(9_000, 11_000)] }) }), [])
  })

  it("asks for no order between aggregates", () => {
    const transactions = [transaction("t1", event("k1")), transaction("t2", event("k2", { aggregate: "b" }))]
    assert.deepStrictEqual(complaints({ transactions, deliveries: [delivery("k2"), delivery("k1")] }), [])
  })

  it("finds an event that was rolled back and came all the same, and one that nobody wrote", () => {
    const transactions = [
      ...good.transactions,
      { ...transaction("t3", event("k3")), fate: "rolled back" as const },
      transaction("t1", event("k4", { takenBack: true }))
    ]
    for (const key of ["k3", "k4", "k5"]) {
      assert.deepStrictEqual(
        complaints({ transactions, deliveries: [...good.deliveries, delivery(key)] }),
        ["phantom"],
        key
      )
    }
  })

  it("takes the database's word for a transaction whose COMMIT was never answered", () => {
    const [first, second] = good.transactions
    if (first === undefined || second === undefined) return assert.fail()
    const transactions = [first, { ...second, fate: "unknown" as const }]
    assert.deepStrictEqual(complaints({ transactions }), [])
    const gone = { committed: new Set(["t1"]), rows: [row("k1", 1)], deliveries: [delivery("k1")] }
    assert.deepStrictEqual(complaints({ transactions, ...gone }), [])
  })

  it("finds a database that lost a commit", () => {
    const lost = { committed: new Set(["t1"]), rows: [row("k1", 1)], deliveries: [delivery("k1")] }
    assert.deepStrictEqual(complaints(lost), ["database"])
  })

  it("finds a duplicate without a fault between its writing and its settling", () => {
    const deliveries = [...good.deliveries, delivery("k2", { at: 12_000 })]
    assert.deepStrictEqual(complaints({ deliveries }), ["duplicated"])
    assert.deepStrictEqual(complaints({ deliveries, excuses: excused({ faults: [fault(50_000, 60_000)] }) }), [
      "duplicated"
    ])
    assert.deepStrictEqual(complaints({ deliveries, excuses: excused({ faults: [fault(1_000, 6_000)] }) }), [
      "duplicated"
    ])
    const met = settle({ ...good, deliveries, excuses: excused({ faults: [fault(10_095, 11_000)] }) })
    assert.deepStrictEqual(met.complaints, [])
    assert.strictEqual(met.totals.duplicates, 1)
  })

  it("counts what the broker itself gives out again as its own", () => {
    const said = [...good.deliveries, delivery("k2", { redelivered: true })]
    const forgotten = [...good.deliveries, delivery("k2", { at: 12_000, session: 2 })]
    assert.deepStrictEqual(complaints({ deliveries: said }), [])
    assert.deepStrictEqual(complaints({ deliveries: forgotten }), ["duplicated"])
    const killed = settle({ ...good, deliveries: forgotten, excuses: excused({ brokerKilledAt: [11_000] }) })
    assert.deepStrictEqual(killed.complaints, [])
    assert.include(killed.totals, { redelivered: 1, duplicates: 0 })
  })

  it("finds an event of an earlier round that comes again, and knows one that comes late", () => {
    const deliveries = [...good.deliveries, delivery("k0")]
    assert.deepStrictEqual(complaints({ deliveries, earlier: new Map([["k0", "delivered"]]) }), ["duplicated"])
    assert.deepStrictEqual(complaints({ deliveries, earlier: new Map([["k0", "lost"]]) }), [])
    assert.deepStrictEqual(complaints({ deliveries, earlier: new Map([["k0", "handed over"]]) }), [])
  })

  it("finds a second message id: for a row, or for a row and its notification", () => {
    const deliveries = [delivery("k1"), delivery("k2", { messageId: "another" })]
    const excuses = excused({ faults: [fault(9_000, 11_000)], liveLostFrom: 0 })
    assert.deepStrictEqual(complaints({ deliveries, excuses }), ["second message id"])
    const twice = [...good.rows, row("k2", 3, { live: true })]
    assert.deepStrictEqual(complaints({ rows: twice, excuses }), ["second message id"])
  })

  it("finds attempts on a row that the broker had no reason to refuse", () => {
    const rows = [row("k1", 1), row("k2", 2, { attempts: 1, lastError: "unroutable" })]
    assert.deepStrictEqual(complaints({ rows }), ["attempts"])
    assert.deepStrictEqual(complaints({ rows, excuses: excused({ refusedQueues: new Set(["small"]) }) }), ["attempts"])
    assert.deepStrictEqual(complaints({ rows, excuses: excused({ refusedQueues: new Set(["orders"]) }) }), [])
  })

  it("finds a notification that was lost while LISTEN was up", () => {
    const record = { ...live, committed: new Set(["t1"]), rows: [], deliveries: [] }
    assert.deepStrictEqual(complaints(record), ["lost"])
    assert.deepStrictEqual(complaints({ ...record, excuses: excused({ liveLostFrom: 10_001 }) }), ["lost"])
    const gap = settle({ ...good, ...record, excuses: excused({ liveLostFrom: 9_999 }) })
    assert.deepStrictEqual(gap.complaints, [])
    assert.strictEqual(gap.totals.liveLost, 1)
  })

  it("lets a hand-over publish a notification twice, and nothing else", () => {
    const deliveries = ["one", "other"].map((messageId) => delivery("k1", { messageId, queue: "live" }))
    const record = { ...live, committed: new Set(["t1"]), rows: [], deliveries }
    assert.deepStrictEqual(complaints(record), ["second message id", "duplicated"])
    const handOver = excused({ liveLostFrom: 9_000, faults: [fault(10_000, 11_000)] })
    const verdict = settle({ ...good, ...record, excuses: handOver })
    assert.deepStrictEqual(verdict.complaints, [])
    assert.include(verdict.totals, { handedOver: 1, duplicates: 0 })
    assert.strictEqual(verdict.keys.get("k1"), "handed over")
    const rows = [1, 2].map((seq) => row("k1", seq, { id: seq === 1 ? "one" : "other", live: true, queue: "live" }))
    assert.deepStrictEqual(complaints({ ...record, rows, excuses: handOver }), [])
    assert.deepStrictEqual(complaints({ rows: [...good.rows, row("k2", 3)], excuses: handOver }), ["second message id"])
  })

  it("excuses a message that went with a deleted queue, if it was confirmed before", () => {
    const record = { deliveries: [delivery("k1")] }
    const deleted = (from: number, to: number) => excused({ deletions: [{ queue: "orders", from, to }] })
    assert.deepStrictEqual(complaints({ ...record, excuses: deleted(10_050, 10_150) }), [])
    assert.deepStrictEqual(complaints({ ...record, excuses: deleted(10_200, 10_300) }), ["lost"])
  })
})
