"""`otel` out: spans as one OTLP document in JSON, as collectors take it at `/v1/traces`.

That is the JSON of protocol buffers with changes of its own: ids are hex, 64-bit numbers are texts, enumerations are
their numbers. Nothing of OpenTelemetry has to be installed.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.otel.spans import Source, Span, spans_of
from callslip.model import codec

INTERNAL = 1
UNSET, ERROR = 0, 2
NAME = "callslip"


def document(source: Source, *, content: bool = False) -> bytes:
    """A session's spans. With `content`, also arguments, results and errors in words."""
    spans = [_span(span) for span in spans_of(source, content=content)]
    resource = {"attributes": [_attribute("service.name", NAME)]}
    scoped = {"scope": {"name": NAME}, "spans": spans}
    return codec.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}] if spans else []})


def _span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.span,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": [_attribute(name, value) for name, value in span.attributes.items()],
        "status": _status(span),
    }
    return {**made, "parentSpanId": span.parent} if span.parent else made


def _attribute(name: str, value: str | int) -> dict[str, Any]:
    told = {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}
    return {"key": name, "value": told}


def _status(span: Span) -> dict[str, Any]:
    """What went well has no status: that is for whoever looks at the span to judge."""
    if not span.failed:
        return {"code": UNSET}
    return {"code": ERROR, **({"message": span.message} if span.message else {})}
