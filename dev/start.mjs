/** `npm start`: makes sure that everything is there, then runs the demo in this very process. */
import { prepare } from "./prepare.mjs"

prepare()
const { register } = await import("tsx/esm/api")
register()
await import("./demo.ts")
