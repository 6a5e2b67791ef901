/**
 * A consumer on a queue: `consume(url, queue)`, then `take(n, within)`.
 */
export * from "../../dev/Consumer.js"
