/** `/admin` over HTTP, on a scripted port: who is let in, what is understood, and how each failure is told. */
import { connect } from "node:net"
import * as HttpLayerRouter from "@effect/platform/HttpLayerRouter"
import * as HttpServer from "@effect/platform/HttpServer"
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { Admin } from "../src/Admin.js"
import * as AdminRoutes from "../src/AdminRoutes.js"
import { type BulkOptions, type DeadLetterInFull, DeadLetters, type ListOptions } from "../src/DeadLetters.js"
import { BulkUnfinished, DatabaseError, NotDeadAnyMore, SettingsError, UnknownDeadLetter } from "../src/Errors.js"
import { Settings } from "../src/Settings.js"

const token = "correct-horse-battery-staple"
const id = "0193a0f0-0000-7000-8000-000000000001"
const letter: DeadLetterInFull = {
  seq: "17",
  id,
  channel: null,
  eventType: "order.created",
  aggregateType: "order",
  aggregateId: "7",
  attempts: 10,
  lastError: "unroutable",
  createdAt: "2026-01-01T00:00:00.000000Z",
  deadAt: "2026-01-01T01:00:00.000000Z",
  target: "orders",
  headers: '{"traceparent": "00-1"}',
  payload: '{"secret": 9007199254740993}',
  payloadOmitted: undefined
}
const { headers: _headers, payload: _payload, payloadOmitted: _omitted, ...summary } = letter

const gone = new DatabaseError({ operation: "list", kind: "connection", reason: "nobody there", sqlState: undefined })

const unused: DeadLetters["Type"] = {
  list: () => gone,
  show: () => gone,
  retryOne: () => gone,
  retryAll: () => Effect.succeed(0),
  discard: () => gone,
  discardAll: () => Effect.succeed(0)
}

interface Line {
  readonly message: string
  readonly annotations: Readonly<Record<string, unknown>>
}

interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  readonly json: unknown
}

/** The routes on a server of their own, over a port that remembers what it was asked. */
const serve = (
  parts: {
    readonly port?: Partial<DeadLetters["Type"]>
    readonly environment?: Readonly<Record<string, string>>
    readonly token?: Settings["Type"]["adminToken"]
    readonly attached?: boolean
  } = {}
) =>
  Effect.gen(function* () {
    const asked: Array<ListOptions | BulkOptions | string> = []
    const lines: Array<Line> = []
    const remember =
      <A extends ListOptions | BulkOptions | string, B>(answer: B) =>
      (options: A) =>
        Effect.sync(() => {
          asked.push(options)
          return answer
        })
    const port: DeadLetters["Type"] = {
      list: remember({ deadLetters: [{ ...summary }], next: "17" }),
      show: remember(letter),
      retryOne: remember(summary),
      retryAll: remember(120),
      discard: remember(summary),
      discardAll: remember(3),
      ...parts.port
    }
    const settings = Layer.map(
      Settings.layerFrom({
        DATABASE_URL: "postgres://relay@db/app",
        AMQP_URL: "amqp://relay@broker",
        PG_LISTENER_ROUTES: "order.*=orders,user.*=events/user",
        PG_LISTENER_ADMIN_TOKEN: token,
        ...parts.environment
      }),
      (context) =>
        parts.token === undefined
          ? context
          : Context.make(Settings, { ...Context.get(context, Settings), adminToken: parts.token })
    )
    const scope = yield* Effect.scope
    const admin = Layer.provideMerge(
      parts.attached === false ? Layer.empty : Admin.open.pipe(Layer.provide(Layer.succeed(DeadLetters, port))),
      Admin.layer
    )
    const context = yield* HttpLayerRouter.serve(AdminRoutes.layer, {
      disableLogger: true,
      disableListenLog: true
    }).pipe(
      Layer.provide(admin),
      Layer.provide(settings),
      Layer.provide(
        Logger.replace(
          Logger.defaultLogger,
          Logger.make(({ annotations, message }) => {
            lines.push({ message: String(message), annotations: Object.fromEntries(annotations) })
          })
        )
      ),
      Layer.provideMerge(NodeHttpServer.layerTest),
      Layer.buildWithScope(scope)
    )
    const { address } = Context.get(context, HttpServer.HttpServer)
    const tcpPort = address._tag === "TcpAddress" ? address.port : 0

    const request = (method: string, path: string, more: { readonly body?: string; readonly token?: string } = {}) =>
      Effect.promise(async (signal): Promise<Answer> => {
        const response = await fetch(`http://127.0.0.1:${tcpPort}${path}`, {
          method,
          signal,
          headers: { authorization: `Bearer ${more.token ?? token}` },
          ...(more.body === undefined ? {} : { body: more.body })
        })
        const text = await response.text()
        const json: unknown = text.startsWith("{") ? JSON.parse(text) : undefined
        return { status: response.status, headers: response.headers, text, json }
      })
    return { request, asked, lines, tcpPort }
  })

const list = "/admin/dead-letters"
const bulk = `${list}/retry`

describe("/admin", () => {
  it.scopedLive("is not there without a token in the settings", () =>
    Effect.gen(function* () {
      const { request } = yield* serve({ environment: { PG_LISTENER_ADMIN_TOKEN: "" } })
      for (const [method, path] of [
        ["GET", list],
        ["POST", bulk],
        ["DELETE", `${list}/${id}`]
      ] as const) {
        assert.strictEqual((yield* request(method, path)).status, 404)
      }
    })
  )

  it.scopedLive("lets nobody in without the token, says which way to send it, and tells the log from where", () =>
    Effect.gen(function* () {
      const { asked, lines, request } = yield* serve()
      for (const wrong of ["", `${token}x`, token.slice(1), token.toUpperCase()]) {
        for (const [method, path] of [
          ["GET", list],
          ["GET", `${list}/${id}`],
          ["POST", `${list}/${id}/retry`],
          ["POST", bulk],
          ["POST", `${list}/discard`],
          ["DELETE", `${list}/${id}`]
        ] as const) {
          const { headers, json, status } = yield* request(method, path, { token: wrong })
          assert.strictEqual(status, 401)
          assert.match(headers.get("www-authenticate") ?? "", /^Bearer realm="pg-listener"/)
          assert.propertyVal(json, "error", "unauthorized")
        }
      }
      assert.deepStrictEqual(asked, [])
      assert.strictEqual(lines.length, 24)
      assert.strictEqual(lines[0]?.message, "admin refused: the token is missing or wrong")
      assert.match(String(lines[0]?.annotations["remote_address"]), /127\.0\.0\.1/)
      assert.notInclude(JSON.stringify(lines), token.slice(1))
    })
  )

  it.scopedLive("reads the token anew for each request, and lets nobody in while it can't be read", () =>
    Effect.gen(function* () {
      const tokens: Array<Effect.Effect<Redacted.Redacted<string>, SettingsError>> = [
        Effect.succeed(Redacted.make("old")),
        Effect.succeed(Redacted.make("new")),
        new SettingsError({
          problems: [{ setting: "X_FILE", problem: "the file /secret is gone", mend: "Put it back" }]
        })
      ]
      const { lines, request } = yield* serve({
        token: Option.some(Effect.suspend(() => tokens.shift() ?? Effect.dieMessage("read too often")))
      })
      assert.strictEqual((yield* request("GET", list, { token: "old" })).status, 200)
      assert.strictEqual((yield* request("GET", list, { token: "old" })).status, 401)
      const { json, status } = yield* request("GET", list, { token: "new" })
      assert.strictEqual(status, 503)
      assert.deepStrictEqual(json, {
        error: "unavailable",
        message: "the admin token can't be read; the log says why"
      })
      assert.include(lines.at(-1)?.message, "/secret")
    })
  )

  it.scopedLive("answers 503 while the process starts, and opens no way to a database that went down", () =>
    Effect.gen(function* () {
      const admin = Context.get(yield* Layer.build(Admin.layer), Admin)
      yield* Effect.scoped(Effect.zipRight(admin.attach(unused), admin.deadLetters))
      assert.strictEqual((yield* Effect.flip(admin.deadLetters))._tag, "AdminClosed")
      const { request } = yield* serve({ attached: false })
      const { json, status } = yield* request("GET", list)
      assert.strictEqual(status, 503)
      assert.deepStrictEqual(json, { error: "unavailable", message: "pg-listener is starting or shutting down" })
      assert.strictEqual((yield* request("GET", list, { token: "wrong" })).status, 401)
    })
  )
})

describe("GET /admin/dead-letters", () => {
  it.scopedLive("gives the page and the cursor, and is nobody's to keep", () =>
    Effect.gen(function* () {
      const { asked, headers, json } = yield* Effect.flatMap(serve(), ({ asked, request }) =>
        Effect.map(request("GET", list), (answer) => ({ ...answer, asked }))
      )
      assert.deepStrictEqual(json, { deadLetters: [summary], next: "17" })
      assert.strictEqual(headers.get("cache-control"), "no-store")
      assert.deepStrictEqual(asked, [{ filter: {}, limit: 100, after: undefined, order: "oldest" }])
    })
  )

  it.scopedLive("takes every condition, escaped as in any URL", () =>
    Effect.gen(function* () {
      const { asked, request } = yield* serve()
      const query = new URLSearchParams({
        channel: "clicks & more",
        eventType: "order.created",
        aggregateType: "order",
        aggregateId: "7",
        queue: "orders",
        error: "100 %",
        olderThan: "2h",
        newerThan: "2026-01-31T09:00:00+01:00",
        limit: "500",
        after: "17",
        order: "newest"
      })
      assert.strictEqual((yield* request("GET", `${list}?${query}`)).status, 200)
      assert.deepStrictEqual(asked, [
        {
          filter: {
            channel: "clicks & more",
            eventType: "order.created",
            aggregateType: "order",
            aggregateId: "7",
            queue: "orders",
            error: "100 %",
            olderThan: { kind: "age", millis: 7_200_000 },
            newerThan: { kind: "at", iso: "2026-01-31T08:00:00.000Z" }
          },
          limit: 500,
          after: "17",
          order: "newest"
        }
      ])
    })
  )

  const bad: ReadonlyArray<readonly [query: string, parameter: string, message: RegExp]> = [
    ["limit=501", "limit", /"501" is not a whole number from 1 to 500\. Give a whole number from 1 to 500$/],
    ["limit=0", "limit", /1 to 500/],
    ["after=x", "after", /"x" is no cursor\. Give the `next`/],
    ["order=up", "order", /oldest, newest/],
    ["olderThan=2", "olderThan", /"2" has no unit/],
    ["newerThan=2026-01-31", "newerThan", /no.* zone\. Write it as in 2026-01-31T08:00:00Z/],
    ["newerThan=2026-01-31T08:00:00", "newerThan", /zone/],
    ["newerThan=2026-13-31T08:00:00Z", "newerThan", /zone/],
    ["queue=ordres", "queue", /no route names the queue "ordres"\. There are orders$/],
    ["eventType=", "eventType", /leave it out/],
    ["channel=%00", "channel", /\\u0000/],
    ["evntType=x", "evntType", /is not known; did you mean eventType\? There are channel, /],
    ["event_type=x", "event_type", /did you mean eventType/],
    ["limit=1&limit=2", "limit", /more than once/]
  ]
  it.scopedLive("tells what is wrong with a query: the parameter, its form and the mend", () =>
    Effect.gen(function* () {
      const { asked, request } = yield* serve()
      for (const [query, parameter, message] of bad) {
        const { json, status } = yield* request("GET", `${list}?${query}`)
        assert.strictEqual(status, 400, query)
        const told = json as { readonly error: string; readonly parameter: string; readonly message: string }
        assert.deepStrictEqual([told.error, told.parameter], ["bad_request", parameter], query)
        assert.match(told.message, message)
      }
      assert.deepStrictEqual(asked, [])
    })
  )
})

describe("one dead letter", () => {
  it.scopedLive("is shown with headers and payload, digit by digit; the log says who looked, and not at what", () =>
    Effect.gen(function* () {
      const { lines, request } = yield* serve()
      const { json, text } = yield* request("GET", `${list}/${id.toUpperCase()}`)
      assert.include(text, '"payload":{"secret": 9007199254740993}')
      assert.deepInclude(json, { ...summary, headers: { traceparent: "00-1" } })
      assert.strictEqual(lines[0]?.message, "admin looked at")
      assert.strictEqual(lines[0]?.annotations["event_id"], id)
      assert.notInclude(JSON.stringify(lines), "secret")
    })
  )

  it.scopedLive("whose payload was not loaded says why", () =>
    Effect.gen(function* () {
      const show = () => Effect.succeed({ ...letter, payload: undefined, payloadOmitted: 'it has "3" bytes' })
      const { json } = yield* Effect.flatMap(serve({ port: { show } }), ({ request }) =>
        request("GET", `${list}/${id}`)
      )
      assert.notProperty(json, "payload")
      assert.propertyVal(json, "payloadOmitted", 'it has "3" bytes')
    })
  )

  it.scopedLive("is retried and discarded; the log has a line for each, with what and from where", () =>
    Effect.gen(function* () {
      const { asked, lines, request } = yield* serve()
      assert.deepStrictEqual((yield* request("POST", `${list}/${id}/retry`)).json, { retried: 1, id })
      assert.deepStrictEqual((yield* request("DELETE", `${list}/${id}`)).json, { discarded: 1, id })
      assert.deepStrictEqual(asked, [id, id])
      assert.deepStrictEqual(
        lines.map(({ annotations: { remote_address: _, ...what }, message }) => ({ message, ...what })),
        ["admin retried", "admin discarded"].map((message) => ({
          message,
          event_id: id,
          event_type: "order.created",
          channel: null,
          aggregate_id: "7"
        }))
      )
    })
  )

  it.scopedLive("by an id that is no uuid is a bad request; unknown 404; not dead any more 409; no database 503", () =>
    Effect.gen(function* () {
      const failing = (error: UnknownDeadLetter | NotDeadAnyMore | DatabaseError) =>
        Effect.flatMap(
          serve({ port: { show: () => error, retryOne: () => error, discard: () => error } }),
          ({ request }) =>
            Effect.all([
              request("GET", `${list}/${id}`),
              request("POST", `${list}/${id}/retry`),
              request("DELETE", `${list}/${id}`)
            ])
        )
      const cases = [
        [new UnknownDeadLetter({ id }), 404, { error: "not_found" }],
        [new NotDeadAnyMore({ id, state: "processed" }), 409, { error: "not_dead", state: "processed" }],
        [gone, 503, { error: "unavailable", message: "list: nobody there" }]
      ] as const
      for (const [error, status, told] of cases) {
        for (const answer of yield* failing(error)) {
          assert.strictEqual(answer.status, status)
          assert.deepInclude(answer.json, told)
        }
      }
      const { json, status } = yield* Effect.flatMap(serve(), ({ request }) => request("GET", `${list}/17`))
      assert.strictEqual(status, 400)
      assert.propertyVal(json, "parameter", "id")
    })
  )
})

describe("an action on many", () => {
  it.scopedLive("takes a filter, or all when that is said, with a limit or without; the log has filter and count", () =>
    Effect.gen(function* () {
      const { asked, lines, request } = yield* serve()
      const retried = yield* request("POST", bulk, {
        body: '{"filter": {"queue": "orders", "error": "x"}, "limit": 7}'
      })
      const discarded = yield* request("POST", `${list}/discard`, { body: '{"all": true}' })
      assert.deepStrictEqual([retried.json, discarded.json], [{ retried: 120 }, { discarded: 3 }])
      assert.deepStrictEqual(
        asked.map((options) => (typeof options === "string" ? options : [options.filter, options.limit])),
        [
          [{ queue: "orders", error: "x" }, 7],
          [{}, undefined]
        ]
      )
      assert.deepStrictEqual(
        lines.map(({ annotations: { remote_address: _, ...what }, message }): object => ({ message, ...what })),
        [
          { message: "admin retried", rows: 120, filter: { queue: "orders", error: "x" }, limit: 7 },
          { message: "admin discarded", rows: 3, filter: "all" }
        ]
      )
    })
  )

  const bad: ReadonlyArray<readonly [body: string, parameter: string, message: RegExp]> = [
    ["", "body", /is not a JSON object\. Send/],
    ["nonsense", "body", /is not a JSON object/],
    ["[]", "body", /is not a JSON object/],
    ["null", "body", /is not a JSON object/],
    ["{}", "body", /neither a filter nor all\. Send \{"filter"/],
    ['{"filter": {}}', "filter", /one condition or more/],
    ['{"filter": []}', "filter", /one condition or more/],
    ['{"filter": {"eventType": "x"}, "all": true}', "all", /contradicts/],
    ['{"all": "yes"}', "all", /is not true/],
    ['{"all": false}', "all", /is not true/],
    ['{"eventType": "x"}', "eventType", /is not known.* There are filter, all, limit/],
    ['{"filter": {"evenType": "x"}}', "evenType", /did you mean eventType/],
    ['{"filter": {"limit": "1"}}', "limit", /is not known/],
    ['{"filter": {"__proto__": "1"}}', "__proto__", /is not known/],
    ['{"filter": {"aggregateId": 7}}', "aggregateId", /is not a text/],
    ['{"filter": {"olderThan": "soon"}}', "olderThan", /a duration/],
    ['{"all": true, "limit": "7"}', "limit", /is not a number/],
    ['{"all": true, "limit": 0.5}', "limit", /whole number/]
  ]
  it.scopedLive("does nothing when its body can't be understood, and says what is wrong", () =>
    Effect.gen(function* () {
      const { asked, request } = yield* serve()
      for (const path of [bulk, `${list}/discard`]) {
        for (const [body, parameter, message] of bad) {
          const { json, status } = yield* request("POST", path, { body })
          assert.strictEqual(status, 400, body)
          const told = json as { readonly parameter: string; readonly message: string }
          assert.strictEqual(told.parameter, parameter, body)
          assert.match(told.message, message)
        }
      }
      assert.deepStrictEqual(asked, [])
    })
  )

  it.scopedLive("reads no body of more than 16 KiB", () =>
    Effect.gen(function* () {
      const { asked, request } = yield* serve()
      const body = JSON.stringify({ filter: { error: "x".repeat(17_000) } })
      const { json, status } = yield* request("POST", bulk, { body })
      assert.strictEqual(status, 413)
      assert.propertyVal(json, "error", "too_large")
      assert.deepStrictEqual(asked, [])
    })
  )

  it.scopedLive("that ended early says how many were done, to the asker and in the log", () =>
    Effect.gen(function* () {
      const retryAll = () => new BulkUnfinished({ action: "retry", done: 500, cause: gone })
      const { lines, request } = yield* serve({ port: { retryAll } })
      const { json, status } = yield* request("POST", bulk, { body: '{"all": true}' })
      assert.strictEqual(status, 503)
      assert.deepInclude(json, { error: "unavailable", retried: 500 })
      assert.strictEqual(lines[0]?.message, "admin retried, and then failed")
      assert.strictEqual(lines[0]?.annotations["rows"], 500)
    })
  )

  it.scopedLive("is stopped when the asker goes away", () =>
    Effect.gen(function* () {
      const begun = yield* Deferred.make<void>()
      const stopped = yield* Deferred.make<void>()
      const retryAll = () =>
        Deferred.succeed(begun, undefined).pipe(
          Effect.zipRight(Effect.never),
          Effect.onInterrupt(() => Deferred.succeed(stopped, undefined))
        )
      const { request } = yield* serve({ port: { retryAll } })
      const asking = yield* Effect.fork(request("POST", bulk, { body: '{"all": true}' }))
      yield* Deferred.await(begun)
      yield* Fiber.interruptFork(asking)
      yield* Effect.timeout(Deferred.await(stopped), "5 seconds")
    })
  )

  it.scopedLive("wants the length of its body told ahead, so that too long a one can be refused in words", () =>
    Effect.gen(function* () {
      const { asked, tcpPort } = yield* serve()
      const answer = yield* Effect.async<string>((resume) => {
        const socket = connect(tcpPort, "127.0.0.1", () =>
          socket.write(
            `POST ${bulk} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\ntransfer-encoding: chunked\r\n\r\n`
          )
        )
        socket.once("data", (data) => {
          socket.destroy()
          resume(Effect.succeed(data.toString()))
        })
      }).pipe(Effect.timeout("5 seconds"))
      assert.match(answer, /^HTTP\/1\.1 400 [\s\S]*has no length told ahead/)
      assert.deepStrictEqual(asked, [])
    })
  )
})
