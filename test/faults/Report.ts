/**
 * What a campaign tells: a line for each round, everything about a bad one, and the table at the end.
 */
import { faultKinds } from "./Faults.js"
import type { RoundResult } from "./Round.js"
import { describe, type Schedule } from "./Schedule.js"

export const commandFor = ({ round, seed }: Schedule): string =>
  `npm run faults -- --seed ${seed} --rounds 1 --round ${round}`

/** A round in one line. */
export const line = ({ carriedOut, complaints, lastOpen, quietAfterMillis, schedule, totals }: RoundResult): string => {
  const names = carriedOut.map(({ failure, name }) => (failure === undefined ? name : `(${name})`))
  const extras = [
    totals.duplicates > 0 ? `${totals.duplicates} duplicates` : "",
    totals.refused > 0 ? `${totals.refused} refused` : "",
    totals.liveLost > 0 ? `${totals.liveLost} notifications in a gap` : "",
    totals.handedOver > 0 ? `${totals.handedOver} handed over twice` : "",
    totals.goneWithQueue > 0 ? `${totals.goneWithQueue} gone with their queue` : ""
  ].filter((text) => text !== "")
  return [
    `${complaints.length === 0 ? "ok " : "BAD"} seed ${schedule.seed} round ${schedule.round}: ${names.join(" + ")}`,
    `    ${totals.events} events by ${schedule.replicas} replica(s), quiet after ${(quietAfterMillis / 1000).toFixed(1)} s${quietAfterMillis > 5000 ? ` (last: ${lastOpen})` : ""}${extras.map((text) => `, ${text}`).join("")}`
  ].join("\n")
}

/** All that helps to find out what went wrong in a bad round. */
export const details = (result: RoundResult, folder: string): string => {
  const { beganAt, carriedOut, complaints, schedule } = result
  const happened = carriedOut.map(
    ({ beganAt: from, detail, endedAt, failure, name }) =>
      `  ${`${from - beganAt}`.padStart(6)} to ${`${endedAt - beganAt}`.padStart(6)} ms: ${name}: ${detail}${failure === undefined ? "" : ` (failed: ${failure.split("\n")[0]})`}`
  )
  return [
    `\nSeed ${schedule.seed}, round ${schedule.round} went wrong. Again: ${commandFor(schedule)}`,
    "The schedule:",
    ...describe(schedule).map((text) => `  ${text}`),
    `What happened, from ${beganAt} (epoch milliseconds) on:`,
    ...happened,
    "The ledger's complaint:",
    ...complaints.flatMap(({ count, examples, kind }) => [
      `  ${kind}: ${count}`,
      ...examples.map((example) => `    ${example}`)
    ]),
    `Logs: ${folder}\n`
  ].join("\n")
}

/** A round for a program. */
export const record = ({
  carriedOut,
  complaints,
  lastOpen,
  memoryBytes,
  quietAfterMillis,
  schedule,
  totals
}: RoundResult) => ({
  seed: schedule.seed,
  round: schedule.round,
  replicas: schedule.replicas,
  loadMillis: schedule.loadMillis,
  faults: carriedOut.map(({ detail, failure, name }) => ({ name, detail, failure })),
  totals,
  quietAfterMillis,
  lastOpen,
  memoryMegabytes: memoryBytes.map((bytes) => Math.round(bytes / 1024 / 1024)),
  complaints
})

const sum = (results: ReadonlyArray<RoundResult>, of: (result: RoundResult) => number): number =>
  results.reduce((total, result) => total + of(result), 0)

/** How often each fault was there. */
export const faultCounts = (results: ReadonlyArray<RoundResult>): ReadonlyMap<string, number> => {
  const counts = new Map(faultKinds.map(({ name }) => [name, 0]))
  for (const { carriedOut } of results) {
    for (const { failure, name } of carriedOut) {
      if (failure === undefined) counts.set(name, (counts.get(name) ?? 0) + 1)
    }
  }
  return counts
}

/** The campaign as Markdown. */
export const table = (results: ReadonlyArray<RoundResult>): string => {
  const bad = results.filter(({ complaints }) => complaints.length > 0).length
  const figures: ReadonlyArray<readonly [string, number]> = [
    ["rounds", results.length],
    ["rounds with a complaint", bad],
    ["faults", sum(results, ({ carriedOut }) => carriedOut.filter(({ failure }) => failure === undefined).length)],
    ["events committed", sum(results, ({ totals }) => totals.events)],
    ["deliveries", sum(results, ({ totals }) => totals.deliveries)],
    ["lost", sum(results, ({ totals }) => totals.lost)],
    ["inverted within an aggregate", sum(results, ({ totals }) => totals.inverted)],
    ["phantom", sum(results, ({ totals }) => totals.phantom)],
    ["duplicated, each by an unknown outcome", sum(results, ({ totals }) => totals.duplicates)],
    ["given out again by the broker itself", sum(results, ({ totals }) => totals.redelivered)],
    ["refused by the broker, and retried", sum(results, ({ totals }) => totals.refused)],
    ["bare notifications published by two replicas at a hand-over", sum(results, ({ totals }) => totals.handedOver)],
    ["bare notifications lost while LISTEN was down", sum(results, ({ totals }) => totals.liveLost)],
    ["messages that went with a deleted queue", sum(results, ({ totals }) => totals.goneWithQueue)]
  ]
  return [
    "| what | how many |",
    "| --- | ---: |",
    ...figures.map(([name, n]) => `| ${name} | ${n.toLocaleString("en")} |`),
    "",
    "| fault | times |",
    "| --- | ---: |",
    ...[...faultCounts(results)].map(([name, n]) => `| ${name} | ${n} |`)
  ].join("\n")
}
