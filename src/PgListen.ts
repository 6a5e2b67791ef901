/**
 * The LISTEN side: one dedicated session on every channel, reconnected for as long as it makes sense.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import type * as Effect from "effect/Effect"
import type * as Stream from "effect/Stream"
import type { ListenExhausted } from "./Errors.js"

/**
 * What the session tells.
 *
 * - `Listening`: connected, proven to receive, and registered on every channel. The first element after each connect.
 *   `disconnectedAt` (epoch milliseconds) is set when an earlier session was lost: notifications since then are gone.
 * - `Notification`: one NOTIFY. The payload may be empty.
 */
export type ListenEvent = Data.TaggedEnum<{
  Listening: { readonly backendPid: number; readonly disconnectedAt: number | undefined }
  Notification: { readonly channel: string; readonly payload: string }
}>
export const ListenEvent = Data.taggedEnum<ListenEvent>()

/** `disconnectedAt` in epoch milliseconds: when the session was lost; `undefined` while connected or never connected. */
export interface ListenStatus {
  readonly connected: boolean
  readonly disconnectedAt: number | undefined
}

export class PgListen extends Context.Tag("pg-listener/PgListen")<
  PgListen,
  {
    /** Runs the session while it is consumed; fails only when the reconnect schedule is exhausted. To be run once. */
    readonly events: Stream.Stream<ListenEvent, ListenExhausted>
    readonly status: Effect.Effect<ListenStatus>
    /**
     * Whether this process is the one that publishes live notifications: holds, or just got, the session advisory lock
     * on the LISTEN connection. False while disconnected. Cheap when held; a try for a lock held elsewhere is made at
     * most once a second.
     */
    readonly isLiveOwner: Effect.Effect<boolean>
  }
>() {}
