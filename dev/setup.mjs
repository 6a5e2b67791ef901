/** Before `npm test`: the dependencies, the built service that live tests run, and the servers' programs. */
import { prepare, step } from "./prepare.mjs"

prepare()
step(process.execPath, ["--import", "tsx", "dev/install-servers.ts"], 8)
