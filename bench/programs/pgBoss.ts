/** pg-boss, whose handler publishes its batch and which then completes the batch. */
import PgBoss from "pg-boss"
import { connectPublisher } from "./publisher.js"
import { argumentsOf, type Site, serve } from "./serve.js"

const workers = 2
/** The best that was found: a fetch sorts the whole backlog, so few and large ones are cheaper. */
const batchSize = 2000
const pollingIntervalSeconds = 0.5

const { amqpUrl, databaseUrl, queue, setUp } = argumentsOf<Site & { readonly queue: string; readonly setUp: boolean }>()
const boss = new PgBoss({ connectionString: databaseUrl, max: workers + 2, supervise: false, schedule: false })
boss.on("error", (error) => process.stderr.write(`${error}\n`))
await boss.start()

if (setUp) {
  await boss.createQueue("relay")
} else {
  const { publishAll } = await connectPublisher(amqpUrl)
  for (let i = 0; i < workers; i++) {
    await boss.work<object>("relay", { batchSize, pollingIntervalSeconds }, (jobs) =>
      publishAll(jobs.map(({ data, id }) => ({ queue, body: JSON.stringify(data), messageId: id })))
    )
  }
}
serve({})
