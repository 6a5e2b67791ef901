/**
 * The reference: what one writes by hand in an afternoon, with `pg` and `amqplib` and nothing else in the path. It keeps no
 * order, retries nothing and has no dead letters; it is here to show what the servers can do.
 *
 * Two loops, each with a connection of its own: BEGIN and claim, publish, wait for the confirms, mark and COMMIT. A
 * notification wakes one of them, a full batch the other.
 */
import Pg from "pg"
import { connectPublisher } from "./publisher.js"
import { argumentsOf, type Site, serve } from "./serve.js"

const batchSize = 200
const loops = 2
const pollMillis = 1000

interface Row {
  readonly id: string
  readonly queue: string
  readonly payload: string
}

const claim = {
  name: "claim",
  text: `select id::text as id, queue, payload::text as payload
    from reference_outbox where delivered_at is null
    order by seq limit ${batchSize} for update skip locked`
}
const mark = {
  name: "mark",
  text: "update reference_outbox set delivered_at = now() where id = any($1::uuid[])"
}

const { amqpUrl, databaseUrl } = argumentsOf<Site>()
const publisher = await connectPublisher(amqpUrl)

const sleeping: Array<() => void> = []
let rang = false
const ring = () => {
  rang = true
  sleeping.shift()?.()
}

const awaitRing = () =>
  new Promise<void>((resolve) => {
    const wake = () => {
      clearTimeout(poll)
      const at = sleeping.indexOf(wake)
      if (at >= 0) sleeping.splice(at, 1)
      resolve()
    }
    const poll = setTimeout(wake, pollMillis)
    sleeping.push(wake)
  })

const connect = async (): Promise<Pg.Client> => {
  const client = new Pg.Client({ connectionString: databaseUrl, pipeline: true })
  await client.connect()
  return client
}

const loop = async () => {
  const client = await connect()
  while (true) {
    rang = false
    const [, { rows }] = await Promise.all([client.query("begin"), client.query<Row>(claim)])
    if (rows.length === batchSize) ring()
    if (rows.length === 0) {
      await client.query("commit")
    } else {
      await publisher.publishAll(rows.map(({ id, payload, queue }) => ({ queue, body: payload, messageId: id })))
      await Promise.all([client.query({ ...mark, values: [rows.map(({ id }) => id)] }), client.query("commit")])
    }
    if (rows.length < batchSize && !rang) await awaitRing()
  }
}

const listen = await connect()
listen.on("notification", ring)
await listen.query("listen reference_outbox")
for (let i = 0; i < loops; i++) void loop()
serve({})
