/**
 * Every figure the service keeps (design, section 10), by its published name. Counts only go up; times are in seconds.
 *
 * Labels come from the configuration: a value that no route names is counted as `other`, so that no writer can make
 * the number of series grow.
 */
import * as Metric from "effect/Metric"
import * as MetricBoundaries from "effect/MetricBoundaries"

const counter = (name: string, description: string) => Metric.counter(name, { description, incremental: true })

export const eventsPublished = counter(
  "outbox_events_published_total",
  "Rows confirmed by the broker and marked processed."
)
export const eventsFailed = counter(
  "outbox_events_failed_total",
  "Message-level failures, each of which cost a row an attempt."
)
export const eventsSwept = counter(
  "outbox_events_swept_total",
  "Overdue rows found by the sweep: wake-ups were missed."
)
export const eventsCleaned = counter("outbox_events_cleaned_total", "Processed rows deleted after the retention time.")

export const batchDurationSeconds = Metric.histogram(
  "outbox_batch_duration_seconds",
  MetricBoundaries.fromIterable([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]),
  "From the claim to the commit of one batch."
)
export const publishLatencySeconds = Metric.histogram(
  "outbox_publish_latency_seconds",
  MetricBoundaries.fromIterable([
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600
  ]),
  "From the insert of a row to the broker's confirm."
)

export const notifications = counter("pg_listener_notifications_total", "Notifications received, by channel.")
export const liveEvents = counter(
  "pg_listener_live_events_total",
  "Notifications that are events of their own, by outcome."
)
export const reconnects = counter(
  "pg_listener_reconnects_total",
  "Times the LISTEN session was opened again after a loss."
)

export const doorbellBusy = Metric.gauge("pg_listener_doorbell_busy", {
  description: "1 while writers are asked not to ring and the relay looks by itself."
})
const wakeUps = counter("pg_listener_wakeups_total", "Times the relay was woken, by kind.")
export const wakeUpsByNotification = Metric.tagged(wakeUps, "kind", "notification")
export const wakeUpsByPoll = Metric.tagged(wakeUps, "kind", "poll")
export const wakeUpsBusy = Metric.tagged(wakeUps, "kind", "busy")

/** Turns any value into a label value that the configuration bounds. */
export const boundedLabel = (known: Iterable<string>): ((value: string | undefined) => string) => {
  const names = new Set(known)
  return (value) => (value !== undefined && names.has(value) ? value : "other")
}

const byChannel = new Map<string, ReturnType<typeof notificationsOn>>()
const notificationsOn = (channel: string) => Metric.tagged(notifications, "channel", channel)

/** Counts one notification without an Effect step. Only channels that are LISTENed on arrive, so the label is bounded. */
export const countNotification = (channel: string): void => {
  const metric = byChannel.get(channel) ?? notificationsOn(channel)
  byChannel.set(channel, metric)
  metric.unsafeUpdate(1, [])
}
