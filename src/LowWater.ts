/**
 * The low-water mark: a `seq` below which no ready row is and none can turn up, so that a claim need not look there.
 *
 * Without it, each claim walks the dead index entries at the bottom, which vacuum can't remove while any transaction, a
 * forgotten one or a long report, keeps an old snapshot. `seq` alone does not tell: a transaction takes its numbers early
 * and commits late. So each round
 *
 * 1. reads how far the sequence has come (`reached`), and after that
 * 2. which transactions may have inserted and are open (`writers`): whoever has a number up to `reached` is among them
 *    or has ended;
 * 3. waits, over any number of rounds, until all of these have ended; every row up to `reached` that will ever be there
 *    is then visible;
 * 4. looks, with a new snapshot, for the first ready row, and moves the mark up to just below it, but not above
 *    `reached`.
 *
 * A transaction that is open and has inserted thus holds the mark back; one that only reads does not. Rows that become
 * ready again by hand below the mark are found by full claims, which do not use it.
 *
 * The mark is true for the server it was read from. After a fail-over or a restore the sequence may be behind it, so a new
 * session and a sequence that went back both put it to 0.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"

/** An open transaction that may have inserted. A prepared one is known by another name than before it was prepared. */
export interface OpenWriter {
  readonly transaction: string
  readonly prepared: boolean
}

/** What the mark asks the database; each answer is newer than the one before. */
export interface LowWaterLooks<E> {
  readonly lastSeq: Effect.Effect<bigint, E>
  readonly openWriters: Effect.Effect<ReadonlyArray<OpenWriter>, E>
  /** The smallest `seq` above the mark of a row that is ready, locked or not. */
  readonly firstReadyAbove: (mark: bigint) => Effect.Effect<Option.Option<bigint>, E>
}

export interface LowWater<E> {
  /** Ready rows are above it. */
  readonly mark: () => bigint
  /** One round. The mark may stay where it is. */
  readonly advance: Effect.Effect<void, E>
  /** Back to 0: what was known may be about another server. */
  readonly reset: () => void
}

interface Round {
  readonly reached: bigint
  /** The transactions of the round that have not been seen to end, by name. */
  readonly writers: ReadonlyMap<string, OpenWriter>
}

const startRound = (reached: bigint, open: ReadonlyArray<OpenWriter>): Round => ({
  reached,
  writers: new Map(open.map((writer) => [writer.transaction, writer]))
})

/**
 * Who of the round's transactions is open still. One that was not yet prepared may be any of the prepared ones by now, so
 * as long as there were such, the prepared ones count as well.
 */
const stillOpen = (round: Round, open: ReadonlyArray<OpenWriter>): Round => {
  const mayHavePrepared = Array.from(round.writers.values()).some((writer) => !writer.prepared)
  return startRound(
    round.reached,
    open.filter((writer) => round.writers.has(writer.transaction) || (writer.prepared && mayHavePrepared))
  )
}

const min = (a: bigint, b: bigint): bigint => (a < b ? a : b)

export const make = <E>(looks: LowWaterLooks<E>): LowWater<E> => {
  let mark = 0n
  let round: Round | undefined
  let epoch = 0
  const reset = () => {
    mark = 0n
    round = undefined
    epoch++
  }

  const advance = Effect.gen(function* () {
    const startedIn = epoch
    const reached = yield* looks.lastSeq
    const open = yield* looks.openWriters
    if (startedIn !== epoch) return
    if (reached < mark) reset()
    const current = epoch

    const older = round === undefined ? undefined : stillOpen(round, open)
    const newer = startRound(reached, open)
    let complete: Round
    if (newer.writers.size === 0) {
      // With nobody open, this round is complete at once, and knows more than the older one.
      complete = newer
      round = undefined
    } else if (older !== undefined && older.writers.size === 0) {
      complete = older
      round = newer
    } else {
      round = older ?? newer
      return
    }

    const first = yield* looks.firstReadyAbove(mark)
    if (current !== epoch) return
    const below = Option.match(first, {
      onNone: () => complete.reached,
      onSome: (seq) => min(seq - 1n, complete.reached)
    })
    if (below > mark) mark = below
  })

  return { mark: () => mark, advance, reset }
}
