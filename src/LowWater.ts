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
 * An aggregate with a hundred thousand rows behind a failing one would hold the mark back, and have each claim walk them
 * all. So when the mark stays where it is, a round also looks at the held rows directly above it; bounded claims begin
 * above these and leave out their aggregates altogether. Order holds: a row above of such an aggregate is left out, and
 * of any other aggregate nothing ready is below. Full claims use neither, and so find the rows once they are free.
 *
 * The mark is true for the server it was read from. After a fail-over or a restore the sequence may be behind it, so a new
 * session and a sequence that went back both put it to 0.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"

/** Where bounded claims begin, and the aggregates that they leave out. */
export interface ClaimFloor {
  /** Rows above this `seq`. */
  readonly above: bigint
  /** `type` is empty for an aggregate without one. */
  readonly leftOut: ReadonlyArray<{ readonly id: string; readonly type: string }>
}

/** What the mark asks the database; each answer is newer than the one before. */
export interface LowWaterLooks<E> {
  readonly lastSeq: Effect.Effect<bigint, E>
  /** The names of the open transactions that may have inserted, prepared ones among them. */
  readonly openWriters: Effect.Effect<ReadonlyArray<string>, E>
  /** The smallest `seq` above the mark of a row that is ready, locked or not. */
  readonly firstReadyAbove: (mark: bigint) => Effect.Effect<Option.Option<bigint>, E>
  /**
   * The unbroken run of held rows above the mark, as far as `upTo`: the `seq` before the first ready row that is not held,
   * and every aggregate of the run. None when there is no such run, or when it has too many aggregates to leave out.
   */
  readonly heldRunAbove: (mark: bigint, upTo: bigint) => Effect.Effect<Option.Option<ClaimFloor>, E>
}

export interface LowWater<E> {
  /** Ready rows are above it. */
  readonly mark: () => bigint
  /** The mark, or above it when held rows pile up there. */
  readonly floor: () => ClaimFloor
  /** One round. The mark may stay where it is. Tells whether an aggregate is left out no longer: its rows ring nobody. */
  readonly advance: Effect.Effect<boolean, E>
  /** Back to 0: what was known may be about another server. */
  readonly reset: () => void
}

interface Round {
  readonly reached: bigint
  /** The transactions of the round that have not been seen to end. A transaction keeps its name when it is prepared. */
  readonly writers: ReadonlySet<string>
}

const stillOpen = (round: Round, open: ReadonlyArray<string>): Round => ({
  reached: round.reached,
  writers: new Set(open.filter((writer) => round.writers.has(writer)))
})

const min = (a: bigint, b: bigint): bigint => (a < b ? a : b)

export const make = <E>(looks: LowWaterLooks<E>): LowWater<E> => {
  let mark = 0n
  /** Up to here every row that will ever be there is visible. */
  let reachedForSure = 0n
  let heldRun: ClaimFloor | undefined
  let round: Round | undefined
  let epoch = 0
  const reset = () => {
    mark = 0n
    reachedForSure = 0n
    heldRun = undefined
    round = undefined
    epoch++
  }

  const floor = (): ClaimFloor => heldRun ?? { above: mark, leftOut: [] }

  const advance = Effect.gen(function* () {
    const startedIn = epoch
    const reached = yield* looks.lastSeq
    const open = yield* looks.openWriters
    if (startedIn !== epoch) return false
    if (reached < mark) reset()
    const current = epoch

    const older = round === undefined ? undefined : stillOpen(round, open)
    const newer: Round = { reached, writers: new Set(open) }
    if (newer.writers.size === 0) {
      // With nobody open, this round is complete at once, and knows more than the older one.
      reachedForSure = newer.reached
      round = undefined
    } else if (older !== undefined && older.writers.size === 0) {
      reachedForSure = older.reached
      round = newer
    } else round = older ?? newer

    const first = yield* looks.firstReadyAbove(mark)
    if (current !== epoch) return false
    const before = floor().leftOut
    const below = Option.match(first, {
      onNone: () => reachedForSure,
      onSome: (seq) => min(seq - 1n, reachedForSure)
    })
    if (below > mark) {
      mark = below
      heldRun = undefined
    } else if (Option.isSome(first) && first.value <= reachedForSure) {
      const run = yield* looks.heldRunAbove(mark, reachedForSure)
      if (current === epoch) heldRun = Option.getOrUndefined(run)
    } else heldRun = undefined
    const { leftOut } = floor()
    return before.some((old) => !leftOut.some((now) => now.id === old.id && now.type === old.type))
  })

  return { mark: () => mark, floor, advance, reset }
}
