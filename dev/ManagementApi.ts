/**
 * A small client of RabbitMQ's management API on a loopback port, bound to one vhost.
 *
 * Counts and connection lists come from the broker's own statistics and lag behind by up to a second.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"

/** The API can't be reached, refuses, or answers what we do not understand. `status` when it answered. */
export class ManagementError extends Data.TaggedError("ManagementError")<{
  readonly request: string
  readonly status: number | undefined
  readonly reason: string
}> {
  override get message(): string {
    return `${this.request}: ${this.status ?? "no answer"}: ${this.reason}`
  }
}

const Queue = Schema.Struct({
  name: Schema.String,
  durable: Schema.Boolean,
  type: Schema.optional(Schema.String),
  messages: Schema.optionalWith(Schema.Number, { default: () => 0 })
})
const Connection = Schema.Struct({
  name: Schema.String,
  vhost: Schema.optional(Schema.String),
  user: Schema.optional(Schema.String)
})
const Got = Schema.Struct({
  payload: Schema.String,
  routing_key: Schema.String,
  properties: Schema.Record({ key: Schema.String, value: Schema.Unknown })
})

type Ask = Effect.Effect<void, ManagementError>

export interface ManagementApi {
  readonly vhost: string
  /** The same API, bound to another vhost. */
  readonly forVhost: (name: string) => ManagementApi
  /** Creates the bound vhost and gives `guest` all permissions in it. */
  readonly createVhost: Ask
  /** Deletes the bound vhost and closes its connections. */
  readonly deleteVhost: Ask
  /** A pattern each, as the broker takes them; empty for nothing. */
  readonly setPermissions: (patterns: { configure: string; write: string; read: string }) => Ask
  readonly queues: Effect.Effect<ReadonlyArray<typeof Queue.Type>, ManagementError>
  /** Fails with status 404 when it is not there. */
  readonly queue: (name: string) => Effect.Effect<typeof Queue.Type, ManagementError>
  /** Durable. `options` are the queue's arguments, e.g. `{ "x-max-length": 1, "x-overflow": "reject-publish" }`. */
  readonly declareQueue: (name: string, options?: Readonly<Record<string, string | number>>) => Ask
  readonly deleteQueue: (name: string) => Ask
  readonly purgeQueue: (name: string) => Ask
  readonly declareExchange: (name: string, type: "direct" | "topic" | "fanout") => Ask
  readonly deleteExchange: (name: string) => Ask
  readonly bind: (exchange: string, queue: string, routingKey: string) => Ask
  /** Of the bound vhost. A connection shows up within about a second. */
  readonly connections: Effect.Effect<ReadonlyArray<typeof Connection.Type>, ManagementError>
  readonly closeConnection: (name: string) => Ask
  /** For all queues whose names match the pattern. */
  readonly setPolicy: (name: string, pattern: string, definition: Readonly<Record<string, string | number>>) => Ask
  readonly deletePolicy: (name: string) => Ask
  /** True when a queue took it. */
  readonly publish: (exchange: string, routingKey: string, body: string) => Effect.Effect<boolean, ManagementError>
  /** Takes up to `count` messages off the queue. */
  readonly get: (queue: string, count: number) => Effect.Effect<ReadonlyArray<typeof Got.Type>, ManagementError>
}

/** `url` as in `http://127.0.0.1:15672`; the user is `guest`. */
export const make = (url: string, vhost = "/"): ManagementApi => {
  const request = (method: string, path: ReadonlyArray<string>, body?: unknown) => {
    const at = `/api/${path.map(encodeURIComponent).join("/")}`
    const failure = (status: number | undefined, reason: string) =>
      new ManagementError({ request: `${method} ${at}`, status, reason })
    return Effect.tryPromise({
      try: (signal) =>
        fetch(`${url}${at}`, {
          method,
          signal,
          headers: { authorization: `Basic ${btoa("guest:guest")}`, "content-type": "application/json" },
          ...(body === undefined ? {} : { body: JSON.stringify(body) })
        }).then((response) => response.text().then((text) => ({ text, status: response.status, ok: response.ok }))),
      catch: (error) => failure(undefined, `${error}`)
    }).pipe(
      Effect.timeoutFail({ duration: "10 seconds", onTimeout: () => failure(undefined, "no answer within 10 s") }),
      Effect.filterOrFail(
        ({ ok }) => ok,
        ({ status, text }) => failure(status, text)
      ),
      Effect.map(({ text }) => text)
    )
  }
  /** A PUT or a DELETE may be asked again: a broker that is just starting answers nobody for some seconds. */
  const ask = (method: string, path: ReadonlyArray<string>, body?: unknown) =>
    request(method, path, body).pipe(
      Effect.retry({
        while: ({ status }) => status === undefined && method !== "POST",
        schedule: Schedule.spaced("500 millis"),
        times: 40
      }),
      Effect.asVoid
    )
  const read = <A, I>(schema: Schema.Schema<A, I>, method: string, path: ReadonlyArray<string>, body?: unknown) =>
    Effect.flatMap(request(method, path, body), (text) =>
      Schema.decode(Schema.parseJson(schema))(text).pipe(
        Effect.mapError(
          (error) => new ManagementError({ request: `${method} ${path.join("/")}`, status: 200, reason: error.message })
        )
      )
    )

  const setPermissions: ManagementApi["setPermissions"] = (patterns) =>
    ask("PUT", ["permissions", vhost, "guest"], patterns)

  return {
    vhost,
    forVhost: (name) => make(url, name),
    createVhost: Effect.zipRight(
      ask("PUT", ["vhosts", vhost], {}),
      setPermissions({ configure: ".*", write: ".*", read: ".*" })
    ),
    deleteVhost: ask("DELETE", ["vhosts", vhost]),
    setPermissions,
    queues: read(Schema.Array(Queue), "GET", ["queues", vhost]),
    queue: (name) => read(Queue, "GET", ["queues", vhost, name]),
    declareQueue: (name, options = {}) => ask("PUT", ["queues", vhost, name], { durable: true, arguments: options }),
    deleteQueue: (name) => ask("DELETE", ["queues", vhost, name]),
    purgeQueue: (name) => ask("DELETE", ["queues", vhost, name, "contents"]),
    declareExchange: (name, type) => ask("PUT", ["exchanges", vhost, name], { type, durable: true }),
    deleteExchange: (name) => ask("DELETE", ["exchanges", vhost, name]),
    bind: (exchange, queue, routingKey) =>
      ask("POST", ["bindings", vhost, "e", exchange, "q", queue], { routing_key: routingKey }),
    connections: read(Schema.Array(Connection), "GET", ["vhosts", vhost, "connections"]),
    closeConnection: (name) => ask("DELETE", ["connections", name]),
    setPolicy: (name, pattern, definition) =>
      ask("PUT", ["policies", vhost, name], { pattern, definition, "apply-to": "queues" }),
    deletePolicy: (name) => ask("DELETE", ["policies", vhost, name]),
    publish: (exchange, routingKey, body) =>
      read(
        Schema.Struct({ routed: Schema.Boolean }),
        "POST",
        ["exchanges", vhost, exchange || "amq.default", "publish"],
        {
          properties: { delivery_mode: 2 },
          routing_key: routingKey,
          payload: body,
          payload_encoding: "string"
        }
      ).pipe(Effect.map(({ routed }) => routed)),
    get: (queue, count) =>
      read(Schema.Array(Got), "POST", ["queues", vhost, queue, "get"], {
        count,
        ackmode: "ack_requeue_false",
        encoding: "auto"
      })
  }
}
