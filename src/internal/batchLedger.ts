/**
 * What is known of each message of a batch while it is published, and which one waits for which.
 */
import * as Either from "effect/Either"
import { type Message, Outcome, type Publishable } from "../Message.js"

const held = Outcome.Held()

export interface Ledger {
  readonly batch: ReadonlyArray<Publishable>
  readonly isOpen: (index: number) => boolean
  /** How many messages have no outcome yet. */
  readonly open: () => number
  /** Sets the outcome; a message that is not confirmed holds the later ones of its key. */
  readonly settle: (index: number, outcome: Outcome) => void
  /** The message of the same key that comes next, or -1. */
  readonly next: (index: number) => number
  /** Every message without an outcome, in order: all of them, or only the first of each key. */
  readonly waiting: (which: "all" | "first of each key") => Array<number>
  /** Remembers that this message was written, so that without an answer its fate is unknown, not `Held`. */
  readonly written: (index: number) => void
  /** Ends every open message but `except`: those ever written are `Unknown` for this reason, the rest is `Held`. */
  readonly abandon: (reason: string, except?: (index: number) => boolean) => void
  readonly outcomes: () => ReadonlyArray<Outcome>
}

export const makeLedger = (batch: ReadonlyArray<Publishable>): Ledger => {
  const outcomes = new Array<Outcome | undefined>(batch.length).fill(undefined)
  const written = new Uint8Array(batch.length)
  const next = new Int32Array(batch.length).fill(-1)
  let open = batch.length

  const last = new Map<string, number>()
  for (let index = 0; index < batch.length; index++) {
    const key = batch[index]?.orderKey
    if (key === undefined) continue
    const before = last.get(key)
    if (before !== undefined) next[before] = index
    last.set(key, index)
  }
  const nextOf = (index: number) => next[index] ?? -1
  const isOpen = (index: number) => outcomes[index] === undefined
  const set = (index: number, outcome: Outcome) => {
    if (!isOpen(index)) return
    outcomes[index] = outcome
    open--
  }
  const settle = (index: number, outcome: Outcome) => {
    set(index, outcome)
    if (outcome._tag === "Confirmed") return
    for (let after = nextOf(index); after !== -1; after = nextOf(after)) set(after, held)
  }
  return {
    batch,
    isOpen,
    open: () => open,
    settle,
    next: nextOf,
    waiting: (which) => {
      const indexes: Array<number> = []
      const keys = new Set<string>()
      for (let index = 0; index < batch.length; index++) {
        if (!isOpen(index)) continue
        const key = batch[index]?.orderKey
        if (which === "first of each key" && key !== undefined) {
          if (keys.has(key)) continue
          keys.add(key)
        }
        indexes.push(index)
      }
      return indexes
    },
    written: (index) => {
      written[index] = 1
    },
    abandon: (reason, except = () => false) => {
      for (let index = 0; index < batch.length; index++) {
        if (!except(index)) set(index, written[index] === 1 ? Outcome.Unknown({ reason }) : held)
      }
    },
    outcomes: () => outcomes.map((outcome) => outcome ?? held)
  }
}

export const messageAt = (ledger: Ledger, index: number): Message | undefined => {
  const message = ledger.batch[index]?.message
  return message !== undefined && Either.isRight(message) ? message.right : undefined
}

/** The outcome of an event that has no message. */
export const refusalAt = (ledger: Ledger, index: number): Outcome => {
  const message = ledger.batch[index]?.message
  const { permanent, reason } =
    message !== undefined && Either.isLeft(message) ? message.left : { reason: "", permanent: false }
  return Outcome.Refused({ reason, permanent })
}

/** Built on the first return only: a batch without one needs no map. */
export const indexById = (batch: ReadonlyArray<Publishable>): ReadonlyMap<string, ReadonlyArray<number>> => {
  const byId = new Map<string, Array<number>>()
  batch.forEach(({ message }, index) => {
    if (Either.isLeft(message)) return
    const indexes = byId.get(message.right.id)
    if (indexes === undefined) byId.set(message.right.id, [index])
    else indexes.push(index)
  })
  return byId
}
