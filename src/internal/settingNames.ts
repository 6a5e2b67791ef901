/**
 * Names in the environment that look like ours and are not: typing errors, and what Kubernetes puts there.
 */

const PREFIX = "PG_LISTENER_"

const serviceLink =
  /^PG_LISTENER(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$/

const serviceAddress = /^(tcp|udp|sctp):\/\//

/**
 * Whether Kubernetes put this variable there, for a Service named `pg-listener` or `pg-listener-…`.
 *
 * `…_PORT` is told by its value `tcp://…`: a Service named `pg-listener-health` takes the very name of a setting of ours.
 */
export const isServiceLink = (name: string, value: string): boolean =>
  serviceLink.test(name) || (/^PG_LISTENER(_[A-Z0-9_]+)?_PORT$/.test(name) && serviceAddress.test(value))

/** Whether a variable was meant for this program, but is none that it knows. */
export const isUnknown = (name: string, value: string, known: ReadonlySet<string>): boolean =>
  name.startsWith(PREFIX) && !known.has(name) && !isServiceLink(name, value)

/** The known name that is the likeliest to have been meant, or `undefined` when none is near. */
export const nearest = (name: string, known: ReadonlySet<string>): string | undefined => {
  const ending = `_${name.slice(PREFIX.length)}`
  const longer = [...known].filter((candidate) => candidate.endsWith(ending))
  if (longer.length === 1) return longer[0]
  let best: string | undefined
  let least = Math.max(2, Math.floor((name.length - PREFIX.length) / 2)) + 1
  for (const candidate of known) {
    const distance = editDistance(name, candidate)
    if (distance < least) {
      best = candidate
      least = distance
    }
  }
  return best
}

/** How many letters must be put in, taken out or changed to make one text of the other. */
export const editDistance = (a: string, b: string): number => {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1]
    for (let j = 0; j < b.length; j++) {
      const change = (row[j] ?? 0) + (a[i] === b[j] ? 0 : 1)
      next.push(Math.min(change, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1))
    }
    row = next
  }
  return row[b.length] ?? 0
}
