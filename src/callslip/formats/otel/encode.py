"""Encode spans as one OTLP document in JSON, as collectors accept it at `/v1/traces`.

OTLP changes the JSON mapping of protocol buffers: ids are hex, 64-bit numbers are texts, enumerations are numbers.
OpenTelemetry does not have to be installed.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.otel.spans import Source, Span, spans_of
from callslip.model import codec

KIND_INTERNAL = 1
STATUS_UNSET, STATUS_ERROR = 0, 2
NAME = "callslip"


def document(source: Source, *, content: bool = False) -> bytes:
    """Return the spans of a session. With `content`, they have arguments, results and error messages."""
    spans = [_span(span) for span in spans_of(source, content=content)]
    resource = {"attributes": [_attribute("service.name", NAME)]}
    scoped = {"scope": {"name": NAME}, "spans": spans}
    return codec.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}] if spans else []})


def _span(span: Span) -> dict[str, Any]:
    # Without an error the status is unset, because only applications set it to OK.
    message = {"message": span.message} if span.failed and span.message else {}
    fields: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.span,
        "name": span.name,
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": [_attribute(name, value) for name, value in span.attributes.items()],
        "status": {"code": STATUS_ERROR if span.failed else STATUS_UNSET, **message},
    }
    return {**fields, "parentSpanId": span.parent} if span.parent else fields


def _attribute(name: str, value: str | int) -> dict[str, Any]:
    typed = {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}
    return {"key": name, "value": typed}
