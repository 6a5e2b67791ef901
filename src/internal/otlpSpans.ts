/**
 * The spans that are worth telling, and the tracer that makes them.
 *
 * Effect code makes many spans; a few of them, by name, are *recorded*. The others pass their parent on, so that a
 * recorded span is the child of the next recorded one above it. The spans of one trace are kept together until its root
 * ends, since only then it is known whether the trace says anything.
 */
import { randomBytes } from "node:crypto"
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

/** The usual limit of the OpenTelemetry SDKs. */
const LINKS_AT_MOST = 128

/** The recorded spans of one root, in the order of their ends. */
interface Trace {
  readonly ended: Array<RecordedSpan>
  verdict: "open" | "kept" | "dropped"
}

interface SpanStart {
  readonly name: string
  readonly parent: Option.Option<Tracer.AnySpan>
  readonly context: Context.Context<never>
  readonly kind: Tracer.SpanKind
  readonly startTime: bigint
}

/** A span that nobody hears of; it knows the recorded one above it. */
class PassingSpan implements Tracer.Span {
  readonly _tag = "Span"
  readonly sampled: boolean = false
  readonly spanId: string
  readonly traceId: string
  readonly name: string
  readonly parent: Option.Option<Tracer.AnySpan>
  readonly context: Context.Context<never>
  readonly kind: Tracer.SpanKind
  readonly attributes: Map<string, unknown> = new Map()
  readonly links: Array<Tracer.SpanLink> = []
  status: Tracer.SpanStatus

  constructor(
    start: SpanStart,
    readonly above: RecordedSpan | undefined,
    ids: { readonly spanId: string; readonly traceId: string } = above ?? NOBODY
  ) {
    this.spanId = ids.spanId
    this.traceId = ids.traceId
    this.name = start.name
    this.parent = start.parent
    this.context = start.context
    this.kind = start.kind
    this.status = { _tag: "Started", startTime: start.startTime }
  }

  end(endTime: bigint, exit: Exit.Exit<unknown, unknown>): void {
    this.status = { _tag: "Ended", startTime: this.status.startTime, endTime, exit }
  }
  attribute(_key: string, _value: unknown): void {}
  /** Log lines come as events; they are in the log. */
  event(): void {}
  addLinks(_links: ReadonlyArray<Tracer.SpanLink>): void {}
}

const NOBODY = { spanId: "0".repeat(16), traceId: "0".repeat(32) }

/** Times are by the clock that nobody sets, in nanoseconds. */
export class RecordedSpan extends PassingSpan {
  override readonly sampled = true
  /** Links over the limit. */
  droppedLinks = 0

  constructor(
    start: SpanStart,
    above: RecordedSpan | undefined,
    readonly trace: Trace,
    private readonly onEnd: (span: RecordedSpan) => void
  ) {
    const traceId = above?.traceId ?? randomBytes(16).toString("hex")
    super(start, above, { spanId: randomBytes(8).toString("hex"), traceId })
  }

  override end(endTime: bigint, exit: Exit.Exit<unknown, unknown>): void {
    super.end(endTime, exit)
    this.onEnd(this)
  }

  override attribute(key: string, value: unknown): void {
    this.attributes.set(key, value)
  }

  override addLinks(links: ReadonlyArray<Tracer.SpanLink>): void {
    const room = LINKS_AT_MOST - this.links.length
    this.links.push(...links.slice(0, room))
    this.droppedLinks += Math.max(links.length - room, 0)
  }
}

const recordedAbove = (parent: Option.Option<Tracer.AnySpan>): RecordedSpan | undefined => {
  const span = Option.getOrUndefined(parent)
  return span instanceof RecordedSpan ? span : span instanceof PassingSpan ? span.above : undefined
}

/** Why a span failed, or `undefined` when it did not; an interrupt is a stop and no failure. */
export const failureOf = ({ status }: Tracer.Span): Cause.Cause<unknown> | undefined =>
  status._tag === "Ended" && Exit.isFailure(status.exit) && !Cause.isInterruptedOnly(status.exit.cause)
    ? status.exit.cause
    : undefined

export interface TracerOptions {
  /** The names of the spans that are recorded. */
  readonly recorded: ReadonlySet<string>
  /** Whether a trace is worth telling, by its root, which has ended. */
  readonly isWorthTelling: (root: RecordedSpan) => boolean
  /** Takes the spans of a trace that is. Plain code on the relay's path: it must only put them somewhere. */
  readonly take: (spans: ReadonlyArray<RecordedSpan>) => void
}

export const makeTracer = ({ isWorthTelling, recorded, take }: TracerOptions): Tracer.Tracer => {
  const onEnd = (span: RecordedSpan): void => {
    const { above, trace } = span
    if (trace.verdict === "kept") take([span])
    if (trace.verdict !== "open") return
    trace.ended.push(span)
    if (above !== undefined) return
    trace.verdict = isWorthTelling(span) ? "kept" : "dropped"
    const spans = trace.ended.splice(0)
    if (trace.verdict === "kept") take(spans)
  }
  return Tracer.make({
    span: (name, parent, context, links, startTime, kind) => {
      const above = recordedAbove(parent)
      const start = { name, parent, context, kind, startTime }
      if (!recorded.has(name)) return new PassingSpan(start, above)
      const span = new RecordedSpan(start, above, above?.trace ?? { ended: [], verdict: "open" }, onEnd)
      span.addLinks(links)
      return span
    },
    context: (run) => run()
  })
}
