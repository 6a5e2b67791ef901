/**
 * Every figure the service keeps (design, section 10), by its published name. Counts only go up; times are in seconds.
 *
 * Labels come from the configuration: a value that no route names is counted as `other`, so that no writer can make
 * the number of series grow.
 */
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as MetricBoundaries from "effect/MetricBoundaries"
import type { Routes } from "./Routes.js"

const names = new Set<string>()

/** Whether a metric of the process's registry is one of ours: Effect has some of its own there. */
export const isOurs = (name: string): boolean => names.has(name)

const counter = (name: string, description: string) => {
  names.add(name)
  return Metric.counter(name, { description, incremental: true })
}
const gauge = (name: string, description: string) => {
  names.add(name)
  return Metric.gauge(name, { description })
}
const histogram = (name: string, boundaries: ReadonlyArray<number>, description: string) => {
  names.add(name)
  return Metric.histogram(name, MetricBoundaries.fromIterable(boundaries), description)
}

export const eventsPublished = counter(
  "outbox_events_published_total",
  "Rows confirmed by the broker and marked processed."
)
const eventsFailed = counter(
  "outbox_events_failed_total",
  "Message-level failures, each of which cost a row an attempt."
)
export const eventsSwept = counter(
  "outbox_events_swept_total",
  "Overdue rows found by the sweep: wake-ups were missed."
)
export const eventsCleaned = counter("outbox_events_cleaned_total", "Processed rows deleted after the retention time.")

export const batchDurationSeconds = histogram(
  "outbox_batch_duration_seconds",
  [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  "From the claim to the commit of one batch."
)
export const publishLatencySeconds = histogram(
  "outbox_publish_latency_seconds",
  [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600],
  "From the insert of a row to the broker's confirm."
)

/** The table's figures; they appear once they were read for the first time (see OutboxGauges.ts). */
export const eventsPending = gauge(
  "outbox_events_pending",
  "Rows neither processed nor dead; beyond 100000, an estimate."
)
export const eventsDead = gauge("outbox_events_dead", "Dead letters; beyond 100000, an estimate.")
export const oldestPendingSeconds = gauge(
  "outbox_oldest_pending_seconds",
  "Age of the oldest row that is neither processed nor dead, by the database's clock; 0 without one."
)
export const gaugesUpdated = gauge(
  "outbox_gauges_updated_timestamp_seconds",
  "When outbox_events_pending, outbox_events_dead and outbox_oldest_pending_seconds were last read; 0 for never."
)
export const gaugesFailed = counter(
  "outbox_gauges_failed_total",
  "Readings of the table's figures that failed; the figures stay as they were."
)

const notifications = counter("pg_listener_notifications_total", "Notifications received, by channel.")
const liveEvents = counter(
  "pg_listener_live_events_total",
  "Notifications that may be events of their own, by outcome: published, row (a row has it), kept (as a row), dead."
)
export const reconnects = counter(
  "pg_listener_reconnects_total",
  "Times the LISTEN session was opened again after a loss."
)

export const doorbellBusy = gauge(
  "pg_listener_doorbell_busy",
  "1 while writers are asked not to ring and the relay looks by itself."
)
const wakeUps = counter("pg_listener_wakeups_total", "Times the relay was woken, by kind.")
export const wakeUpsByNotification = Metric.tagged(wakeUps, "kind", "notification")
export const wakeUpsByPoll = Metric.tagged(wakeUps, "kind", "poll")
export const wakeUpsBusy = Metric.tagged(wakeUps, "kind", "busy")

export const spansExported = counter("pg_listener_trace_spans_exported_total", "Spans that the collector took.")
export const spansDropped = counter(
  "pg_listener_trace_spans_dropped_total",
  "Spans that were lost: the collector refused them, or was away for too long."
)

/** What became of a notification on a routed channel. */
export type LiveOutcome = "published" | "row" | "kept" | "dead"
const liveOutcomes: ReadonlyArray<LiveOutcome> = ["published", "row", "kept", "dead"]

const liveEventsWith = (outcome: LiveOutcome) => Metric.tagged(liveEvents, "outcome", outcome)

export const countLiveEvents = (outcome: LiveOutcome, by: number): Effect.Effect<void> =>
  Metric.incrementBy(liveEventsWith(outcome), by)

const OTHER = "other"

/**
 * The label of an event: the source of the route that its type has, or else its channel; `other` without a route. So a
 * pattern is one series, however many types it takes.
 */
export const eventTypeLabel =
  ({ sourceOf }: Pick<Routes, "sourceOf">) =>
  (event: { readonly channel: string | undefined; readonly eventType: string | undefined }): string =>
    sourceOf(event.eventType) ?? sourceOf(event.channel) ?? OTHER

const failuresOf = (label: string) => Metric.tagged(eventsFailed, "event_type", label)

/** Counts one failure. `label`: {@link eventTypeLabel}. */
export const countFailure = (label: string): Effect.Effect<void> => Metric.increment(failuresOf(label))

const byChannel = new Map<string, ReturnType<typeof notificationsOn>>()
const notificationsOn = (channel: string) => Metric.tagged(notifications, "channel", channel)

/** Counts one notification without an Effect step. Only channels that are LISTENed on arrive, so the label is bounded. */
export const countNotification = (channel: string): void => {
  const metric = byChannel.get(channel) ?? notificationsOn(channel)
  byChannel.set(channel, metric)
  metric.unsafeUpdate(1, [])
}

/**
 * Has every series there from the start, with 0: a rate has no first increase to show of a series that begins with it.
 * The table's figures are not among them, since 0 would be a claim.
 */
export const registerAll = (options: {
  readonly routes: Pick<Routes, "all" | "channels">
  readonly wakeChannel: string
}): Effect.Effect<void> =>
  Effect.sync(() => {
    const metrics = [
      eventsPublished,
      eventsSwept,
      eventsCleaned,
      batchDurationSeconds,
      publishLatencySeconds,
      gaugesUpdated,
      gaugesFailed,
      reconnects,
      doorbellBusy,
      wakeUpsByNotification,
      wakeUpsByPoll,
      wakeUpsBusy,
      spansExported,
      spansDropped,
      ...options.routes.all.map(({ source }) => failuresOf(source)),
      failuresOf(OTHER),
      ...options.routes.channels.map(notificationsOn),
      notificationsOn(options.wakeChannel),
      ...liveOutcomes.map(liveEventsWith)
    ]
    for (const metric of metrics) metric.register()
  })
