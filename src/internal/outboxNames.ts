/**
 * The names of our objects, with their schema, ready to stand in a statement. No statement relies on `search_path`.
 */
export interface OutboxNames {
  readonly outbox: string
  readonly migrations: string
  readonly doorbell: string
}

export const quoteName = (name: string): string => `"${name.replaceAll('"', '""')}"`

export const outboxNames = (schema: string): OutboxNames => {
  const inSchema = (name: string) => `${quoteName(schema)}.${name}`
  return {
    outbox: inSchema("event_outbox"),
    migrations: inSchema("event_outbox_migrations"),
    doorbell: inSchema("event_outbox_doorbell")
  }
}
