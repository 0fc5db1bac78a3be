"""Return the calls of a session as spans for any exporter of the OpenTelemetry SDK.

    from callslip import otel

    exporter.export(otel.spans(await ledger.snapshot("thread-1")))

Needs the extra `otel`. `formats/otel/spans.py` decides which spans there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callslip.formats.otel.encode import NAME
from callslip.formats.otel.spans import Source, Span, spans_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status


def spans(source: Source, *, content: bool = False) -> list[ReadableSpan]:
    """Return the spans of a session. A later call returns the same ids for the same turns and calls."""
    return [_readable(span) for span in spans_of(source, content=content)]


def _readable(span: Span) -> ReadableSpan:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanKind

    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.span),
        parent=_context(span.trace, span.parent) if span.parent else None,
        resource=Resource({SERVICE_NAME: NAME}),
        attributes=span.attributes,
        kind=SpanKind.INTERNAL,
        status=_status(span),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=InstrumentationScope(NAME),
    )


def _context(trace: str, span: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _status(span: Span) -> Status:
    from opentelemetry.trace import Status, StatusCode

    if not span.failed:
        return Status()
    return Status(StatusCode.ERROR, span.message or None)
