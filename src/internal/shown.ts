/** A text from outside as messages show it: quoted, control characters made visible, cut at 60 characters. */
export const shown = (text: string): string => JSON.stringify(text.length > 60 ? `${text.slice(0, 57)}...` : text)

/** Whether the text needs more than `limit` bytes in UTF-8. Most texts are short, so the bytes are rarely counted. */
export const exceedsBytes = (text: string, limit: number): boolean =>
  text.length * 3 > limit && Buffer.byteLength(text, "utf8") > limit
