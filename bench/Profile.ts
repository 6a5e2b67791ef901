/**
 * The functions that took most time in the CPU profiles of a run (`--profile`).
 */
import * as Fs from "node:fs"
import * as Path from "node:path"

interface Profile {
  readonly nodes: ReadonlyArray<{
    readonly id: number
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number }
  }>
  readonly samples: ReadonlyArray<number>
  /** Microseconds before each sample. */
  readonly timeDeltas: ReadonlyArray<number>
}

const longest = 25

/** Where a function stands, from the last package or source folder on. */
const placeOf = (url: string, line: number) => {
  const [, place = url] = /.*?((?:node_modules|dist|bench)\/.*)$/.exec(url) ?? []
  return place === "" ? "(native)" : `${place.replace(/^.*node_modules\//, "")}:${line + 1}`
}

const describe = (name: string, files: ReadonlyArray<string>): string => {
  const selfTime = new Map<string, number>()
  let total = 0
  for (const file of files) {
    const { nodes, samples, timeDeltas } = JSON.parse(Fs.readFileSync(file, "utf8")) as Profile
    const frames = new Map(nodes.map(({ callFrame, id }) => [id, callFrame]))
    for (const [index, id] of samples.entries()) {
      const frame = frames.get(id)
      if (frame === undefined || ["(idle)", "(root)"].includes(frame.functionName)) continue
      const key = `${frame.functionName || "(anonymous)"}  ${placeOf(frame.url, frame.lineNumber)}`
      const micros = timeDeltas[index] ?? 0
      selfTime.set(key, (selfTime.get(key) ?? 0) + micros)
      total += micros
    }
  }
  const top = [...selfTime].sort(([, a], [, b]) => b - a).slice(0, longest)
  return [
    `${name}: ${(total / 1000).toFixed(0)} ms busy in ${files.length} profile(s)`,
    ...top.map(([key, micros]) => `  ${((100 * micros) / total).toFixed(1).padStart(5)} %  ${key}`)
  ].join("\n")
}

/** One table for each contender, over all of its profiles below the folder. */
export const describeAll = (folder: string): string => {
  const files = Fs.readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) =>
    name.endsWith(".cpuprofile")
  )
  const contenders = [...new Set(files.map((file) => Path.basename(Path.dirname(file))))]
  return contenders
    .map((name) =>
      describe(
        name,
        files.filter((file) => Path.basename(Path.dirname(file)) === name).map((file) => Path.join(folder, file))
      )
    )
    .join("\n\n")
}
