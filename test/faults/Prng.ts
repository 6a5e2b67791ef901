/**
 * Random numbers that a seed decides, so that a round can be repeated.
 */

export interface Prng {
  /** From 0 up to, but without, 1. */
  readonly next: () => number
  /** A whole number; both ends can come. */
  readonly int: (from: number, to: number) => number
  readonly chance: (probability: number) => boolean
  readonly pick: <A>(choices: ReadonlyArray<A>) => A
  readonly shuffle: <A>(items: ReadonlyArray<A>) => Array<A>
}

/** Any text makes a seed; similar texts make unrelated ones (FNV-1a). */
const hash = (text: string): number => {
  let value = 0x811c9dc5
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193)
  return value >>> 0
}

/** One stream of numbers for each list of parts: what one takes does not change what another gets. */
export const make = (...parts: ReadonlyArray<string | number>): Prng => {
  let state = hash(parts.join("/"))
  // A Weyl sequence, and a mix of its bits.
  const next = (): number => {
    state = (state + 0x9e3779b9) >>> 0
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad)
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32
  }
  const int = (from: number, to: number): number => from + Math.floor(next() * (to - from + 1))
  const pick = <A>(choices: ReadonlyArray<A>): A => {
    const [chosen] = choices.slice(int(0, choices.length - 1))
    if (chosen === undefined) throw new Error("nothing to pick from")
    return chosen
  }
  const shuffle = <A>(items: ReadonlyArray<A>): Array<A> =>
    items
      .map((item) => ({ item, place: next() }))
      .sort((one, other) => one.place - other.place)
      .map(({ item }) => item)
  return { next, int, chance: (probability) => next() < probability, pick, shuffle }
}
