/** graphile-worker, whose task publishes the job's payload. With `tuned`: a local queue and completion in batches. */
import { Logger, run, runMigrations } from "graphile-worker"
import { connectPublisher } from "./publisher.js"
import { argumentsOf, type Site, serve } from "./serve.js"

const { amqpUrl, databaseUrl, queue, setUp, tuned } = argumentsOf<
  Site & { readonly queue: string; readonly setUp: boolean; readonly tuned: boolean }
>()
const connection = { connectionString: databaseUrl, logger: new Logger(() => () => {}) }
const tuning = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }

if (setUp) {
  await runMigrations(connection)
} else {
  const { publishAll } = await connectPublisher(amqpUrl)
  await run({
    ...connection,
    noHandleSignals: true,
    taskList: {
      publish: (payload, { job }) => publishAll([{ queue, body: JSON.stringify(payload), messageId: job.id }])
    },
    preset: {
      worker: tuned
        ? { concurrentJobs: 200, maxPoolSize: 10, ...tuning }
        : // Its own default is one job at a time, which its documentation says to raise.
          { concurrentJobs: 50, maxPoolSize: 10 }
    }
  })
}
serve({})
