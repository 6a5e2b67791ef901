/**
 * Loaded into a replica of the service before anything else (`node --import`): does to the process from inside what
 * can't be done from outside. On SIGUSR2 it reads its orders from a file:
 *
 * - `clockMillis`: the system's clock is off by so much. Timers and `performance.now()` go on as before.
 * - `blockMillis`: the event loop stands still for so long.
 * - `collect`: garbage is collected, so that what is left is what is in use.
 */
import { readFileSync, writeFileSync } from "node:fs"
import { setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"

const file = process.env.FAULTS_ORDERS ?? ""
let clockMillis = 0

setFlagsFromString("--expose-gc")
const collect = runInNewContext("gc")

const RealDate = globalThis.Date
const realNow = RealDate.now
globalThis.Date = new Proxy(RealDate, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [realNow() + clockMillis] : args, newTarget),
  get: (target, key, receiver) => (key === "now" ? () => realNow() + clockMillis : Reflect.get(target, key, receiver))
})

process.on("SIGUSR2", () => {
  const orders = JSON.parse(readFileSync(file, "utf8"))
  if (orders.collect) collect()
  if (orders.clockMillis !== undefined) clockMillis = orders.clockMillis
  if (orders.blockMillis !== undefined) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, orders.blockMillis)
})
// Before this line a SIGUSR2 would end the process.
writeFileSync(`${file}.pid`, `${process.pid}`)
