/**
 * A child process of the benchmark: it answers what its parent asks, one request after the other, and ends with it.
 */

/** What a program can be asked; the keys are the requests. */
export type Handlers = Readonly<Record<string, (argument: never) => unknown>>

interface Request {
  readonly id: number
  readonly name: string
  readonly argument: never
}

const say = (message: object) => process.send?.(message)

/** Tells the parent that this program is ready, and answers its requests from now on. */
export const serve = (handlers: Handlers): void => {
  process.on("message", async ({ argument, id, name }: Request) => {
    try {
      say({ id, value: (await handlers[name]?.(argument)) ?? null })
    } catch (error) {
      say({ id, failure: String(error) })
    }
  })
  process.on("disconnect", () => process.exit(0))
  say({ ready: true })
}

/** From the parent: the program's arguments. */
export const argumentsOf = <A>(): A => JSON.parse(process.argv[2] ?? "{}")

/** Where the servers are. */
export interface Site {
  readonly databaseUrl: string
  readonly amqpUrl: string
}
