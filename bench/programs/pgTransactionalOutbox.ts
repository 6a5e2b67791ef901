/** pg-transactional-outbox, whose message handler publishes; by polling, or by logical replication. */

import Pg from "pg"
import {
  createReplicationSemaphoreConcurrencyController,
  DatabaseSetup,
  getDisabledLogger,
  initializePollingMessageListener,
  initializeReplicationMessageListener,
  type StoredTransactionalMessage
} from "pg-transactional-outbox"
import { connectPublisher } from "./publisher.js"
import { argumentsOf, type Site, serve } from "./serve.js"

const batchSize = 200
const pollingMillis = 50
/** Handlers at a time. Without a bound it starts one for each row of a transaction. */
const concurrency = 50

const { amqpUrl, databaseUrl, queue, replication, setUp } = argumentsOf<
  Site & { readonly queue: string; readonly setUp: boolean; readonly replication: boolean }
>()
const { hostname, password, pathname, port, username } = new URL(databaseUrl)
const database = pathname.slice(1)

const setUpTables = async () => {
  const names = {
    outboxOrInbox: "outbox" as const,
    database,
    schema: "pgto",
    table: "outbox",
    listenerRole: username,
    handlerRole: username,
    publication: "pgto_pub",
    replicationSlot: `${database}_slot`,
    nextMessagesName: "next_outbox_messages",
    nextMessagesSchema: "pgto"
  }
  const client = new Pg.Client(databaseUrl)
  await client.connect()
  await client.query(DatabaseSetup.dropAndCreateTable(names))
  await client.query(DatabaseSetup.createPollingFunction(names))
  await client.query(DatabaseSetup.setupPollingIndexes(names))
  if (replication) {
    await client.query(DatabaseSetup.setupReplicationCore(names))
    await client.query("select pg_create_logical_replication_slot($1, 'pgoutput')", [names.replicationSlot])
  }
  await client.end()
}

const start = async () => {
  const { publishAll } = await connectPublisher(amqpUrl)
  const handler = {
    handle: ({ id, payload }: StoredTransactionalMessage) =>
      publishAll([{ queue, body: JSON.stringify(payload), messageId: id }])
  }
  const connection = { host: hostname, port: Number(port), user: username, password, database, max: 10 }
  const config = { outboxOrInbox: "outbox" as const, dbListenerConfig: connection, dbHandlerConfig: connection }
  const settings = {
    dbSchema: "pgto",
    dbTable: "outbox",
    enableMaxAttemptsProtection: false,
    enablePoisonousMessageProtection: false,
    messageCleanupIntervalInMs: 0
  }
  if (replication) {
    initializeReplicationMessageListener(
      { ...config, settings: { ...settings, dbPublication: "pgto_pub", dbReplicationSlot: `${database}_slot` } },
      handler,
      getDisabledLogger(),
      { concurrencyStrategy: createReplicationSemaphoreConcurrencyController(concurrency) }
    )
  } else {
    initializePollingMessageListener(
      {
        ...config,
        settings: {
          ...settings,
          nextMessagesFunctionSchema: "pgto",
          nextMessagesFunctionName: "next_outbox_messages",
          nextMessagesBatchSize: batchSize,
          nextMessagesPollingIntervalInMs: pollingMillis,
          nextMessagesLockInMs: 60_000
        }
      },
      handler,
      getDisabledLogger(),
      // It begins with a batch of one after each start and each failure.
      { batchSizeStrategy: async () => batchSize }
    )
  }
}

await (setUp ? setUpTables() : start())
serve({})
