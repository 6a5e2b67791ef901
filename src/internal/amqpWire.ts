/**
 * What amqplib's typings leave out, and its messages in words for a person.
 */
import type * as Amqp from "amqplib"
import type { Returned } from "./amqpChannel.js"
import { withoutOpenSslNoise } from "./tlsFault.js"

/** Where the URL leads, without user and password: safe to log. */
export const addressOf = (url: string): string => {
  if (!URL.canParse(url)) return "an address that can't be parsed"
  const parsed = new URL(url)
  return `${parsed.protocol}//${parsed.host}${parsed.pathname}`
}

/** Connections to several addresses of one name fail with an empty message and the reasons inside. */
export const messageOf = (cause: unknown): string => {
  if (cause instanceof AggregateError && cause.message === "") return cause.errors.map(messageOf).join("; ")
  return cause instanceof Error ? brokersWords(withoutOpenSslNoise(cause.message)) : String(cause)
}

/** `Channel closed by server: 404 (NOT-FOUND) with message "NOT_FOUND - no …"` is `404 NOT_FOUND - no …`. */
const brokersWords = (message: string): string =>
  // amqplib drops the broker's reason when that closes the connection at the last step of the opening.
  message.startsWith("Expected ConnectionOpenOk; got <ConnectionClose")
    ? "the broker refuses the vhost: it does not exist, or this user may not use it"
    : message.replace(/^.*?(\d{3}) \([A-Z-]+\) with message "(.*)"$/s, "$1 $2").trim()

/** The broker's reply code and text; no code when the error is not the broker's answer. */
export const refusalOf = (cause: unknown): { readonly code: number | undefined; readonly reason: string } => {
  const code = cause instanceof Error && "code" in cause && typeof cause.code === "number" ? cause.code : undefined
  return { code, reason: messageOf(cause) }
}

export const returnedOf = (message: Amqp.Message): Returned => {
  const fields = message.fields as unknown as { readonly replyCode: number; readonly replyText: string }
  return {
    messageId: String(message.properties.messageId),
    exchange: message.fields.exchange,
    routingKey: message.fields.routingKey,
    code: fields.replyCode,
    text: fields.replyText
  }
}
