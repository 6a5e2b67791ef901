/**
 * How the demo is stopped: in good order by Ctrl-C or SIGTERM, or when whoever started it is gone; at once by a second Ctrl-C.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"

/** npm passes on the Ctrl-C that the terminal has sent us already: two signals this close are one. */
const sameKeyMillis = 700

/** The stop has this long; then everything is killed. */
const stopMillis = 14_000

const kill = (code: number) =>
  Effect.sync(() => {
    // Servers that still run are killed on the way out (see ServerProcess).
    process.exit(code)
  })

/**
 * Runs the program as this process: its end is the process's end. Exit code 0 when it succeeds or is stopped, 1 when it
 * fails, 130 when it is stopped although `mustFinish`.
 */
export const runAsProcess = <A, E extends Error>(
  program: Effect.Effect<A, E>,
  options: { readonly mustFinish: boolean }
): void => {
  const signals = Effect.runSync(Queue.unbounded<number>())
  const clock = Effect.runSync(Effect.clock)
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(name, () => signals.unsafeOffer(clock.unsafeCurrentTimeMillis()))
  }
  // A closed terminal takes our output away; the stop goes on without.
  for (const output of [process.stdout, process.stderr]) output.on("error", () => {})
  const parent = process.ppid

  Effect.gen(function* () {
    const fiber = yield* Effect.forkDaemon(program)
    yield* Effect.forkDaemon(
      Effect.gen(function* () {
        const first = yield* Queue.take(signals)
        yield* Console.log("\nStopping everything... (Ctrl-C again kills it at once)")
        yield* Effect.forkDaemon(Fiber.interrupt(fiber))
        yield* Effect.forkDaemon(Effect.delay(kill(1), stopMillis))
        while ((yield* Queue.take(signals)) < first + sameKeyMillis) {}
        yield* kill(130)
      })
    )
    const watchParent = Effect.gen(function* () {
      if (process.ppid !== parent) yield* Queue.offer(signals, yield* Clock.currentTimeMillis)
      return process.ppid !== parent
    })
    yield* Effect.forkDaemon(Effect.repeat(Effect.delay(watchParent, "1 second"), { until: (gone) => gone }))

    const exit = yield* Fiber.await(fiber)
    if (Exit.isSuccess(exit)) return yield* kill(0)
    if (Cause.isInterruptedOnly(exit.cause)) return yield* kill(options.mustFinish ? 130 : 0)
    const failure = Cause.failureOption(exit.cause)
    // What we have a name for is for people; the stack trace is for what should never happen.
    yield* Console.error(`\n${Option.isSome(failure) ? failure.value.message : Cause.pretty(exit.cause)}`)
    yield* kill(1)
  }).pipe(Effect.runFork)
}
