const REDACTED = "<redacted>"

// The password may hold "@", ":" or "/" by mistake, so everything up to the last "@" of the word goes.
const userInfo = /(:\/\/[^\s:/?#@"<>]*):[^\s"<>]*@/g
const parameter = /([?&](?:password|sslpassword)=)[^&\s"<>]*/gi

/** The text without the passwords of the URLs in it. Takes rather too much than too little. */
export const redact = (text: string): string =>
  text.includes("://") ? text.replace(userInfo, `$1:${REDACTED}@`).replace(parameter, `$1${REDACTED}`) : text
