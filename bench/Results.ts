/**
 * What a measurement leaves in `results/`: every run as JSON, a table, and a plot.
 */
import * as Fs from "node:fs"
import { fileURLToPath } from "node:url"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type { Measurement, Options } from "./Measurement.js"
import type { World } from "./World.js"

const folder = fileURLToPath(new URL("results/", import.meta.url))

const machineLine = ({ machine }: World) =>
  `${machine["cores"]} × ${machine["processor"]}, ${machine["memoryGigabytes"]} GB, fsync ${machine["fsyncMillis"]} ms; Node ${machine["node"]}, PostgreSQL ${machine["postgres"]}, RabbitMQ ${machine["rabbitMq"]}; everything on this one machine.`

export const write = <Rows>(
  world: World,
  options: Options,
  { name, plot, table, title }: Measurement<Rows>,
  rows: Rows
): Effect.Effect<string> =>
  Effect.gen(function* () {
    const at = new Date(yield* Clock.currentTimeMillis).toISOString()
    const markdown = table(rows)
    const note = `${machineLine(world)} Medians of ${options.runs} runs in turns, [least..most].${options.quick ? " A quick run: small numbers, rough figures." : ""}`
    Fs.mkdirSync(folder, { recursive: true })
    const files = {
      json: `${JSON.stringify({ name, at, machine: world.machine, options, rows }, undefined, 1)}\n`,
      md: `### ${title}\n\n${markdown}\n\n${note}\n`,
      svg: plot(rows)
    }
    for (const [extension, content] of Object.entries(files)) {
      Fs.writeFileSync(`${folder}${name}.${extension}`, content)
    }
    return markdown
  })
