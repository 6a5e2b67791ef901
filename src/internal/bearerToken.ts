/**
 * Bearer tokens of requests (RFC 6750).
 */
import { createHash, timingSafeEqual } from "node:crypto"

/** The token in an `Authorization` header. */
export const bearerToken = (authorization: string | undefined): string | undefined =>
  /^bearer +([\x21-\x7e]+) *$/i.exec(authorization ?? "")?.[1]

const digest = (text: string): Buffer => createHash("sha256").update(text).digest()

/** Takes the same time wherever the two differ; digests are of one length, so that the tokens' lengths don't tell either. */
export const sameToken = (given: string, wanted: string): boolean => timingSafeEqual(digest(given), digest(wanted))
