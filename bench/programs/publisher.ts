/**
 * The way to RabbitMQ that every contender but pg-listener uses: one confirm channel, persistent mandatory messages.
 */
import * as Amqp from "amqplib"

export interface Outgoing {
  readonly queue: string
  readonly body: string
  readonly messageId: string
}

export interface Publisher {
  /** Ends when the broker has confirmed them all. */
  readonly publishAll: (messages: ReadonlyArray<Outgoing>) => Promise<void>
  readonly close: () => Promise<void>
}

export const connectPublisher = async (url: string): Promise<Publisher> => {
  const connection = await Amqp.connect(url, { noDelay: true })
  const channel = await connection.createConfirmChannel()
  // A measurement with a message that reached no queue is worth nothing.
  channel.on("return", () => {
    throw new Error("the broker returned a message")
  })
  return {
    publishAll: (messages) =>
      new Promise((resolve, reject) => {
        let open = messages.length
        if (open === 0) resolve()
        const answered = (error: Error | null) => {
          if (error !== null) reject(error)
          else if (--open === 0) resolve()
        }
        for (const { body, messageId, queue } of messages) {
          const options = { persistent: true, mandatory: true, messageId, contentType: "application/json" }
          channel.publish("", queue, Buffer.from(body), options, answered)
        }
      }),
    close: () => connection.close()
  }
}
