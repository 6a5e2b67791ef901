/**
 * How long to wait before connecting again: 1 s, doubled after each failure, never more than 30 s.
 *
 * To be used with `Stream.retry` over a stream whose first element means "connected": each element starts the delays
 * over, so only failures in a row make the wait longer. `Effect.retry` around a session's whole life would remember
 * failures of long ago.
 */
import * as Schedule from "effect/Schedule"

/** After how many failed reconnects in a row LISTEN gives up (about 48 minutes). */
export const reconnectLimit = 100

/** For AMQP: rows wait in the table meanwhile, so there is no reason to ever give up. */
export const reconnectForever = Schedule.exponential("1 second").pipe(Schedule.union(Schedule.spaced("30 seconds")))

/** For LISTEN: ends after {@link reconnectLimit} failures in a row, so that an orchestrator can restart the process. */
export const reconnectLimited = reconnectForever.pipe(Schedule.intersect(Schedule.recurs(reconnectLimit)))
