/**
 * Users of the shared broker. Each has a name of its own: tests run side by side.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { inject } from "vitest"

/** The management API did not do what a test asked. */
export class BrokerUserError extends Data.TaggedError("BrokerUserError")<{ readonly reason: string }> {
  override get message(): string {
    return this.reason
  }
}

const ask = (method: string, path: ReadonlyArray<string>, body?: unknown) =>
  Effect.tryPromise({
    try: async (signal) => {
      const response = await fetch(`${inject("managementUrl")}/api/${path.map(encodeURIComponent).join("/")}`, {
        method,
        signal,
        headers: { authorization: `Basic ${btoa("guest:guest")}`, "content-type": "application/json" },
        ...(body === undefined ? {} : { body: JSON.stringify(body) })
      })
      if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`)
    },
    catch: (cause) => new BrokerUserError({ reason: `${method} ${path.join("/")}: ${cause}` })
  }).pipe(Effect.timeout("10 seconds"), Effect.orDie)

export const setBrokerPassword = (name: string, password: string): Effect.Effect<void> =>
  ask("PUT", ["users", name], { password, tags: "" })

/** A user who may do everything in one vhost; gone with the scope. */
export const brokerUser = (name: string, password: string, vhost: string): Effect.Effect<void, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.zipRight(
      setBrokerPassword(name, password),
      ask("PUT", ["permissions", vhost, name], { configure: ".*", write: ".*", read: ".*" })
    ),
    () => ask("DELETE", ["users", name])
  )
