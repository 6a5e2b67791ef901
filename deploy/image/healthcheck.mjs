/** The image's HEALTHCHECK: ends with 0 while `/livez` of the service in the same container answers 200, else with 1. */
const setting = (name, fallback) => process.env[name]?.trim() || fallback

const host = setting("PG_LISTENER_HEALTH_HOST", "0.0.0.0")
const port = setting("PG_LISTENER_HEALTH_PORT", "6010")
const reachable = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "::1" : host

// Less than the time-out of the HEALTHCHECK, so that a service that hangs is told from a check that does.
const answer = await fetch(`http://${reachable.includes(":") ? `[${reachable}]` : reachable}:${port}/livez`, {
  signal: AbortSignal.timeout(4000)
}).catch(() => undefined)
process.exitCode = answer?.ok === true ? 0 : 1
